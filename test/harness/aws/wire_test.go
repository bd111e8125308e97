package aws

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/iam"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/google/go-cmp/cmp"
)

// unsaid ignores the fields of the SDK's types that are not sent.
var unsaid = cmp.FilterPath(func(p cmp.Path) bool {
	field, ok := p.Last().(cmp.StructField)
	return ok && (field.Name() == "ResultMetadata" || field.Name() == "noSmithyDocumentSerde")
}, cmp.Ignore())

// TestEveryRequestRoundTrips writes, with the SDK's clients, a request with all fields set for every action of the query protocol.
func TestEveryRequestRoundTrips(t *testing.T) {
	t.Parallel()
	for _, api := range []struct {
		actions map[string]action
		client  func(url string) any
	}{
		{ec2Actions, func(url string) any { return ec2.NewFromConfig(ClientConfig(url)) }},
		{iamActions, func(url string) any { return iam.NewFromConfig(ClientConfig(url)) }},
		{stsActions, func(url string) any { return sts.NewFromConfig(ClientConfig(url)) }},
	} {
		for name := range api.actions {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var form url.Values
				server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					if form, err = url.ParseQuery(string(body)); err != nil {
						t.Error(err)
					}
					panic(http.ErrAbortHandler)
				}))
				defer server.Close()

				method := reflect.ValueOf(api.client(server.URL)).MethodByName(name)
				written := reflect.New(method.Type().In(1).Elem())
				fill(written.Elem(), 0)
				method.Call([]reflect.Value{reflect.ValueOf(t.Context()), written})

				read := reflect.New(written.Type().Elem())
				if err := readForm(form, read.Interface()); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(written.Interface(), read.Interface(), unsaid); diff != "" {
					t.Errorf("what was read differs from what the SDK wrote (-written +read):\n%s", diff)
				}
			})
		}
	}
}

// fill sets every field of a value, and gives every list two items.
func fill(v reflect.Value, depth int) {
	if depth > 12 {
		return // for recursive types
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 8, 1, 12, 30, 15, 0, time.UTC)))
			return
		}
		for field, value := range v.Fields() {
			if field.IsExported() && field.Name != "ResultMetadata" {
				fill(value, depth+1)
			}
		}
	case reflect.String:
		v.SetString("a & b")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(0.125)
	default:
	}
}

func TestUnknownRequestFieldIsAnError(t *testing.T) {
	t.Parallel()
	for key, text := range map[string]string{
		"Color":                      "red",
		"Filter.Name":                "vpc-id",
		"Filter.0.Name":              "vpc-id",
		"Filter.99999999.Name":       "vpc-id",
		"Filter.1.Name.2":            "vpc-id",
		"Filter":                     "vpc-id",
		"MaxResults":                 "many",
		"MaxResults.1":               "5",
		"DryRun":                     "perhaps",
		"noSmithyDocumentSerde.Name": "",
	} {
		if err := readForm(url.Values{key: {text}}, &ec2.DescribeSubnetsInput{}); err == nil {
			t.Errorf("%s=%s was read", key, text)
		}
	}
}

// FuzzReadForm checks that every form is read or refused, without a panic.
func FuzzReadForm(f *testing.F) {
	f.Add("Action=CreateFleet&LaunchTemplateConfigs.1.Overrides.2.Priority=0.5&TargetCapacitySpecification.TotalTargetCapacity=1&ValidUntil=2026-08-01T00:00:00Z")
	f.Add("LaunchTemplateConfigs.1.Overrides.1.InstanceRequirements.VCpuCount.Min=1&LaunchTemplateConfigs.16385.Overrides=")
	f.Fuzz(func(_ *testing.T, body string) {
		if form, err := url.ParseQuery(body); err == nil {
			_ = readForm(form, &ec2.CreateFleetInput{})
			_ = readForm(form, &ec2.CreateLaunchTemplateInput{})
		}
	})
}
