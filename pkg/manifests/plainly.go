package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// plainly describes why an object could not be decoded in terms of manifests and not of Go types.
func plainly(err error, object []byte) error {
	if quantity := badQuantity("", object); quantity != nil {
		return quantity
	}
	mistyped := (*json.UnmarshalTypeError)(nil)
	if !errors.As(err, &mistyped) {
		return err
	}
	is := "a " + mistyped.Value
	switch mistyped.Value {
	case "array":
		is = "a list"
	case "object":
		is = "an object"
	}
	if mistyped.Field == "" {
		return fmt.Errorf("it is %s, not an object", is)
	}
	return fmt.Errorf("%s is %s, not %s", mistyped.Field, is, named(mistyped.Type))
}

// named returns the YAML name of a Go type.
func named(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string: put it in quotes"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "a whole number within bounds"
	}
}

// amounts are the names of the fields that hold quantities.
var amounts = []string{"requests", "limits", "capacity", "allocatable", "overhead"}

// badQuantity returns an error for the first value of such a field that is not a quantity, because decoding errors do not contain its path. It returns nil
// if there is none.
func badQuantity(path string, value json.RawMessage) error {
	var fields map[string]json.RawMessage
	var items []json.RawMessage
	switch {
	case json.Unmarshal(value, &fields) == nil:
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			inner := key
			if path != "" {
				inner = path + "." + key
			}
			err := badQuantity(inner, fields[key])
			if slices.Contains(amounts, key) {
				err = errors.Join(badAmounts(inner, fields[key]), err)
			}
			if err != nil {
				return err
			}
		}
	case json.Unmarshal(value, &items) == nil:
		for i, item := range items {
			if err := badQuantity(fmt.Sprintf("%s[%d]", path, i), item); err != nil {
				return err
			}
		}
	}
	return nil
}

func badAmounts(path string, value json.RawMessage) error {
	var list map[string]json.RawMessage
	if json.Unmarshal(value, &list) == nil {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			var q resource.Quantity
			if json.Unmarshal(list[name], &q) != nil {
				return fmt.Errorf("%s: %s is %s, which is no quantity such as 2, 500m or 1Gi", path, name, list[name])
			}
		}
	}
	return nil
}
