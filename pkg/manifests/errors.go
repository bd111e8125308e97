package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/amount"
)

// plainly describes why an object could not be decoded in terms of manifests and not of Go types.
func plainly(err error, object []byte) error {
	if quantity := badQuantity(object); quantity != nil {
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
	return fmt.Errorf("%s is %s, not %s", mistyped.Field, is, typeName(mistyped.Type))
}

// typeName returns the YAML name of a Go type.
func typeName(t reflect.Type) string {
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
var amounts = []string{"requests", "limits", "capacity", "allocatable", "overhead", "hard", "used"}

// badQuantity returns an error for the first value of such a field that is not a quantity, because decoding errors do not contain its path. It returns nil
// if there is none.
func badQuantity(object []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber() // The error has numbers as they were written.
	var value any
	if decoder.Decode(&value) != nil {
		return nil //nolint:nilerr // Who reads the object reports it.
	}
	return badQuantityIn("", value)
}

func badQuantityIn(path string, value any) error {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			inner := key
			if path != "" {
				inner = path + "." + key
			}
			err := badQuantityIn(inner, v[key])
			if slices.Contains(amounts, key) {
				err = errors.Join(badAmounts(inner, v[key]), err)
			}
			if err != nil {
				return err
			}
		}
	case []any:
		for i, item := range v {
			if err := badQuantityIn(fmt.Sprintf("%s[%d]", path, i), item); err != nil {
				return err
			}
		}
	}
	return nil
}

// exponent matches what may be the exponent of a quantity that takes hours to decode, such as 1e-2000000000.
var exponent = regexp.MustCompile(`[eE][-+]?[0-9]{2}`)

// unboundedQuantity returns an error for a quantity in an object, at any depth, that cannot be decoded in bounded time. It returns nil if there is none.
func unboundedQuantity(object []byte) error {
	if !exponent.Match(object) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(object))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return nil //nolint:nilerr // Who reads the object reports it.
	}
	return unboundedIn("", value, false)
}

// unboundedIn checks a value below a path. Its strings and numbers are quantities if it is below one of the fields that hold them.
func unboundedIn(path string, value any, quantities bool) error {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if err := unboundedIn(strings.TrimPrefix(path+"."+key, "."), v[key], quantities || slices.Contains(amounts, key) || key == "sizeLimit"); err != nil {
				return err
			}
		}
	case []any:
		for i, item := range v {
			if err := unboundedIn(fmt.Sprintf("%s[%d]", path, i), item, quantities); err != nil {
				return err
			}
		}
	case string, json.Number:
		if text := fmt.Sprint(v); quantities && exponent.MatchString(text) {
			if _, err := amount.Parse(text); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return nil
}

func badAmounts(path string, value any) error {
	list, _ := value.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		var q resource.Quantity
		text, err := json.Marshal(list[name])
		if err != nil || json.Unmarshal(text, &q) != nil {
			return fmt.Errorf("%s: %s is %.80s, which is no quantity such as 2, 500m or 1Gi", path, name, text)
		}
	}
	return nil
}
