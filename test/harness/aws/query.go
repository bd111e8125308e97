package aws

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// In the query protocol of EC2, IAM and STS, requests are forms and responses are XML. The names follow from those of the SDK's fields, with the
// exceptions below, so reflection reads and writes the SDK's own types. The tests TestEveryRequestRoundTrips and
// TestSDKReadsResponseOfEveryAction verify that.

// maxList limits the index in a form key, because the caller chooses it and it becomes the length of a list.
const maxList = 1 << 14

// formNames maps request fields to their names in forms, if those differ from the field's name with or without an s.
var formNames = map[string]string{
	"Resources":          "ResourceId",
	"Groups":             "SecurityGroupId",
	"Ipv6Addresses":      "Ipv6Address",
	"PrivateIpAddresses": "PrivateIpAddress",
	"Ipv4Prefixes":       "Ipv4Prefix",
	"Ipv6Prefixes":       "Ipv6Prefix",
	"ExecutableUsers":    "ExecutableBy",
}

// readForm fills an SDK input from a request. It returns an error for a key without a field, because then the client and this server disagree about the
// API.
func readForm(form url.Values, in any) error {
	for key, values := range form {
		if key == "Action" || key == "Version" {
			continue
		}
		if err := set(reflect.ValueOf(in).Elem(), strings.Split(key, "."), values[0]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

func set(v reflect.Value, path []string, text string) error {
	switch {
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return set(v.Elem(), path, text)
	case len(path) == 0:
		return setScalar(v, text)
	case v.Kind() == reflect.Slice:
		if path[0] == "member" {
			path = path[1:]
		}
		return setItem(v, path, text)
	case v.Kind() == reflect.Struct:
		field, ok := formField(v.Type(), path[0])
		if !ok {
			return fmt.Errorf("no field of %s is called %q", v.Type(), path[0])
		}
		return set(v.FieldByIndex(field.Index), path[1:], text)
	}
	return fmt.Errorf("%s has no fields", v.Type())
}

func setItem(v reflect.Value, path []string, text string) error {
	if len(path) == 0 {
		return fmt.Errorf("a list of %s needs a number", v.Type().Elem())
	}
	number, err := strconv.Atoi(path[0])
	if err != nil || number < 1 || number > maxList {
		return fmt.Errorf("%q is no number of an item", path[0])
	}
	for v.Len() < number {
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	}
	return set(v.Index(number-1), path[1:], text)
}

func formField(t reflect.Type, name string) (reflect.StructField, bool) {
	if field, ok := t.FieldByName(name); ok && field.IsExported() {
		return field, true
	}
	for field := range t.Fields() {
		if field.Type.Kind() == reflect.Slice && (field.Name == name+"s" || formNames[field.Name] == name) {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

func setScalar(v reflect.Value, text string) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		v.SetBool(b)
		return err
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(n)
		return err
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		v.SetFloat(f)
		return err
	case reflect.Struct:
		t, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return err
		}
		if !v.CanSet() || v.Type() != reflect.TypeFor[time.Time]() {
			return fmt.Errorf("%s is no time", v.Type())
		}
		v.Set(reflect.ValueOf(t))
	default:
		return fmt.Errorf("%s is no scalar", v.Type())
	}
	return nil
}

// answer writes SDK outputs as XML.
type answer struct {
	bytes.Buffer

	item string // name of a list item
	name func(t reflect.Type, field string) string
}

// element writes a value unless it is unset.
func (a *answer) element(name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			a.element(name, v.Elem())
		}
	case reflect.Slice:
		if v.IsNil() {
			return
		}
		name, item, ok := strings.Cut(name, ">")
		if !ok {
			item = a.item
		}
		a.within(name, func() {
			for i := range v.Len() {
				a.element(item, v.Index(i))
			}
		})
	case reflect.Struct:
		if t, ok := v.Interface().(time.Time); ok {
			a.text(name, t.UTC().Format("2006-01-02T15:04:05.000Z"))
			return
		}
		a.within(name, func() { a.fields(v) })
	case reflect.String:
		if v.String() != "" || v.Type() == reflect.TypeFor[string]() { // an unset enumeration is empty
			a.text(name, v.String())
		}
	default:
		a.text(name, fmt.Sprint(v.Interface()))
	}
}

func (a *answer) fields(v reflect.Value) {
	for field, value := range v.Fields() {
		if field.IsExported() && field.Name != "ResultMetadata" {
			a.element(a.name(v.Type(), field.Name), value)
		}
	}
}

func (a *answer) within(name string, content func()) {
	a.WriteString("<" + name + ">")
	content()
	a.WriteString("</" + name + ">")
}

func (a *answer) text(name, text string) {
	a.within(name, func() { _ = xml.EscapeText(a, []byte(text)) }) // writes to a buffer do not fail
}

// ec2Names maps response fields to their XML names, if those differ from the field's name in lower camel case. The keys are a type and a field, or a
// field alone. The part after > is the name of a list item.
var ec2Names = map[string]string{
	"Tags":                                  "tagSet",
	"CreateFleetOutput.Errors":              "errorSet",
	"CreateFleetOutput.Instances":           "fleetInstanceSet",
	"DescribeImagesOutput.Images":           "imagesSet",
	"EbsInfo.EbsCards":                      "ebsCardSet",
	"GpuDeviceInfo.Workloads":               "workloadSet",
	"Image.BlockDeviceMappings":             "blockDeviceMapping",
	"Image.OwnerId":                         "imageOwnerId",
	"Image.Public":                          "isPublic",
	"Image.State":                           "imageState",
	"Instance.NetworkInterfaces":            "networkInterfaceSet",
	"Instance.SecurityGroups":               "groupSet",
	"Instance.State":                        "instanceState",
	"InferenceAcceleratorInfo.Accelerators": "accelerators>member",
	"InstanceNetworkInterface.Groups":       "groupSet",
	"InstanceStatus.Events":                 "eventsSet",
	"Reservation.Instances":                 "instancesSet",
	"SecurityGroup.Description":             "groupDescription",
	"DescribeCapacityReservationsOutput.CapacityReservations":   "capacityReservationSet",
	"DescribeInstanceStatusOutput.InstanceStatuses":             "instanceStatusSet",
	"DescribeInstanceTypeOfferingsOutput.InstanceTypeOfferings": "instanceTypeOfferingSet",
	"DescribeInstanceTypesOutput.InstanceTypes":                 "instanceTypeSet",
	"DescribeInstancesOutput.Reservations":                      "reservationSet",
	"DescribePlacementGroupsOutput.PlacementGroups":             "placementGroupSet",
	"DescribeSecurityGroupsOutput.SecurityGroups":               "securityGroupInfo",
	"DescribeSpotPriceHistoryOutput.SpotPriceHistory":           "spotPriceHistorySet",
	"DescribeSubnetsOutput.Subnets":                             "subnetSet",
	"TerminateInstancesOutput.TerminatingInstances":             "instancesSet",
}

func ec2Name(t reflect.Type, field string) string {
	for _, key := range []string{t.Name() + "." + field, field} {
		if name, ok := ec2Names[key]; ok {
			return name
		}
	}
	return strings.ToLower(field[:1]) + field[1:]
}

func sameName(_ reflect.Type, field string) string { return field }
