package hostile

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// serverSet are the fields that the API server or controllers set, and the namespace, which the user does not choose.
var serverSet = []string{
	"TypeMeta", "Status", "ObjectMeta.Namespace", "ObjectMeta.SelfLink", "ObjectMeta.UID", "ObjectMeta.ResourceVersion", "ObjectMeta.Generation", "ObjectMeta.CreationTimestamp",
	"ObjectMeta.DeletionTimestamp", "ObjectMeta.DeletionGracePeriodSeconds", "ObjectMeta.ManagedFields",
}

// whole are the types that are replaced as a whole.
var whole = []reflect.Type{
	reflect.TypeFor[resource.Quantity](), reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.Duration](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[runtime.RawExtension](),
}

// sites returns the paths of all parts of an object that a user may write: set ones, and unset ones of set structs. It finds them by reflection, so a new field of
// an API is among them as soon as the client knows it.
func sites(o client.Object) (set, unset []string) {
	visit(reflect.ValueOf(o).Elem(), "", func(path string, v reflect.Value) bool {
		switch {
		case path == "":
		case v.IsZero():
			unset = append(unset, path)
		case v.Kind() != reflect.Struct || slices.Contains(whole, v.Type()):
			set = append(set, path)
		}
		return false
	})
	return set, unset
}

// at calls change with the part of an object at a path, which change may replace.
func at(o client.Object, path string, change func(reflect.Value)) {
	visit(reflect.ValueOf(o).Elem(), "", func(is string, v reflect.Value) bool {
		if is == path {
			change(v)
		}
		return is == path
	})
}

// visit calls f for a value and for everything below it, until f returns true. f may replace the values that it is called with.
func visit(v reflect.Value, path string, f func(path string, v reflect.Value) bool) bool {
	if slices.Contains(serverSet, path) {
		return false
	}
	if f(path, v) {
		return true
	}
	if slices.Contains(whole, v.Type()) {
		return false
	}
	switch v.Kind() {
	case reflect.Pointer:
		return !v.IsNil() && v.Elem().Kind() == reflect.Struct && visit(v.Elem(), path, skipping(path, f))
	case reflect.Struct:
		for i := range v.NumField() {
			if visit(v.Field(i), strings.TrimPrefix(path+"."+v.Type().Field(i).Name, "."), f) {
				return true
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			if visit(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f) {
				return true
			}
		}
	case reflect.Map:
		return visitMap(v, path, f)
	}
	return false
}

// visitMap is visit for the entries of a map, in the order of their keys. They can be replaced only with a copy.
func visitMap(v reflect.Value, path string, f func(path string, v reflect.Value) bool) bool {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, key := range keys {
		entry := reflect.New(v.Type().Elem()).Elem()
		entry.Set(v.MapIndex(key))
		if visit(entry, fmt.Sprintf("%s[%s]", path, key.String()), f) {
			v.SetMapIndex(key, entry)
			return true
		}
	}
	return false
}

// skipping returns f, but not for the value at path, for which f was called as a pointer already.
func skipping(path string, f func(string, reflect.Value) bool) func(string, reflect.Value) bool {
	return func(is string, v reflect.Value) bool { return is != path && f(is, v) }
}
