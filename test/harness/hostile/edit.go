package hostile

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Edit replaces a part of an object with something bad.
type Edit struct {
	Path, Value string
	// n is how many elements the part has then, if it is a list or a map that grows.
	n      int
	change func(v reflect.Value, n, salt int)
}

// On changes an object. Objects that are changed with different salts differ where they can. Lists and maps grow to most elements at most.
func (e Edit) On(o client.Object, salt, most int) {
	at(o, e.Path, func(v reflect.Value) { e.change(v, min(e.n, most), salt) })
}

// Elements returns how many elements the part has then, or 1 if it does not grow.
func (e Edit) Elements(most int) int { return max(1, min(e.n, most)) }

func (e Edit) String() string {
	if value := fmt.Sprintf("%.120q", e.Value); len(e.Value) > 120 {
		return fmt.Sprintf("%s = %s... (%d bytes)", e.Path, value, len(e.Value))
	}
	return fmt.Sprintf("%s = %q", e.Path, e.Value)
}

// Edits returns edits of any part of an object: mostly one, and often of lists around it too, which then repeat it. Annotations and specs are more frequent than
// their number.
func (g *Generator) Edits(o client.Object) []Edit {
	set, unset := sites(o)
	paths := set
	among := pick(g, "", "Annotations", "Spec", "Spec", "Template.Spec", "Devices")
	if narrow := slices.DeleteFunc(slices.Clone(set), func(path string) bool { return !strings.Contains(path, among) }); len(narrow) > 0 {
		paths = narrow
	}
	if len(unset) > 0 && g.maybe(0.2) {
		paths = unset
	}
	path := pick(g, paths...)
	edits := []Edit{g.edit(o, path)}
	if g.maybe(0.5) {
		return edits
	}
	all := g.maybe(0.5)
	for _, outer := range slices.Backward(set) {
		at(o, outer, func(v reflect.Value) {
			if strings.HasPrefix(path, outer+"[") && v.Kind() == reflect.Slice && (all || g.maybe(0.5)) {
				edits = append(edits, g.repeat(outer, v))
			}
		})
	}
	return edits
}

// edit returns an edit of the part of an object at a path.
func (g *Generator) edit(o client.Object, path string) (e Edit) {
	at(o, path, func(v reflect.Value) {
		switch {
		case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
			e = g.repeat(path, v)
		case v.Kind() == reflect.Map:
			e = g.grow(path, v)
		case v.Kind() == reflect.Pointer && (v.Type().Elem().Kind() == reflect.Struct && !slices.Contains(whole, v.Type().Elem()) || !v.IsNil() && g.maybe(0.1)):
			e = Edit{path, "the opposite of unset or set", 0, func(v reflect.Value, _, _ int) {
				if v.IsNil() {
					v.Set(reflect.New(v.Type().Elem()))
					return
				}
				v.SetZero()
			}}
		default:
			e = g.replace(path, v)
		}
	})
	return e
}

// replace returns an edit that replaces a single value.
func (g *Generator) replace(path string, v reflect.Value) Edit {
	t := g.badText(v)
	quantity := quantityOf(t.is)
	number := pick(g, 0, 1, -1, 2, 1000, 1<<31-1, -1<<31, math.MaxInt64, math.MinInt64, 1<<53)
	moment := pick(g, time.Time{}, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(1677, 1, 1, 0, 0, 0, 0, time.UTC))
	values := map[reflect.Type]func(i int) any{
		reflect.TypeFor[resource.Quantity](): func(int) any { return quantity },
		reflect.TypeFor[metav1.Time]():       func(int) any { return metav1.NewTime(moment) },
		reflect.TypeFor[metav1.Duration]():   func(int) any { return metav1.Duration{Duration: time.Duration(number)} },
		reflect.TypeFor[intstr.IntOrString](): func(i int) any {
			if number > 2 {
				return intstr.FromString(t.at(i))
			}
			return intstr.FromInt32(int32(number)) //nolint:gosec // It may overflow.
		},
		reflect.TypeFor[runtime.RawExtension](): func(i int) any { return runtime.RawExtension{Raw: []byte(t.at(i))} },
	}
	value, described := func(i int) any { return t.at(i) }, t.is
	switch of := elem(v.Type()); of.Kind() {
	case reflect.Struct:
		if value = values[of]; value == nil {
			value = func(int) any { return reflect.Zero(of).Interface() }
		}
		described = fmt.Sprintf("%.100v", value(0))
		if of == reflect.TypeFor[resource.Quantity]() || of == reflect.TypeFor[runtime.RawExtension]() {
			described = t.is
		}
	case reflect.Bool:
		value, described = func(int) any { return v.Kind() == reflect.Pointer || !v.Bool() }, "the opposite"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8:
		value, described = func(int) any { return number }, fmt.Sprint(number)
	case reflect.Slice:
		value = func(i int) any { return []byte(t.at(i)) }
	}
	return Edit{path, described, 0, func(v reflect.Value, _, salt int) {
		is := reflect.ValueOf(value(salt)).Convert(elem(v.Type()))
		if v.Kind() == reflect.Pointer {
			pointer := reflect.New(v.Type().Elem())
			pointer.Elem().Set(is)
			is = pointer
		}
		v.Set(is)
	}}
}

func elem(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// badText returns a bad text for a value, mostly one of the look of the value.
func (g *Generator) badText(v reflect.Value) text {
	looks := look(fmt.Sprint(textOf(v)))
	if v.Type() == reflect.TypeFor[resource.Quantity]() {
		looks = "quantity"
	}
	if g.maybe(0.3) {
		looks = pick(g, "quantity", "time", "cel", "json", "name", "other", "other")
	}
	return pick(g, texts[looks]...)
}

func textOf(v reflect.Value) any {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if raw, ok := v.Interface().(runtime.RawExtension); ok {
		return string(raw.Raw)
	}
	return v.Interface()
}

// quantityOf returns a quantity, or the largest one if the text is none, or one over which a client would never finish.
func quantityOf(text string) resource.Quantity {
	if len(text) < 100 && text != "1e-2000000000" && text != "1e2147483648" {
		if q, err := resource.ParseQuantity(text); err == nil {
			return q
		}
	}
	return resource.MustParse("9223372036854775807")
}

// repeat returns an edit that repeats the first element of a list, with variations.
func (g *Generator) repeat(path string, v reflect.Value) Edit {
	n, seed := pick(g, 0, 2, 8, 20, 32, 100, 200, 400, 1000, 4000, 4000), g.rand.Uint64()
	return Edit{path, fmt.Sprintf("%d elements like the first", n), n, func(v reflect.Value, n, salt int) {
		first := reflect.New(v.Type().Elem()).Elem()
		if v.Len() > 0 {
			first.Set(v.Index(0))
		}
		list := reflect.MakeSlice(v.Type(), 0, n)
		for i := range n {
			next := clone(first)
			if i > 0 || v.Len() == 0 {
				differ(next, seed, salt*n+i)
			}
			list = reflect.Append(list, next)
		}
		v.Set(list)
	}}
}

// clone returns a settable deep copy of a value.
func clone(v reflect.Value) reflect.Value {
	to := reflect.New(v.Type()).Elem()
	if method := v.Addr().MethodByName("DeepCopyInto"); method.IsValid() {
		method.Call([]reflect.Value{to.Addr()})
		return to
	}
	to.Set(v)
	return to
}

// differ changes names, and some of the other texts and numbers below a value. Which ones depends on the seed alone. It leaves enums as they are.
func differ(v reflect.Value, seed uint64, i int) {
	chance := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // It is a test.
	visit(v, "", func(path string, v reflect.Value) bool {
		if v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() != reflect.Struct {
			v.Set(clone(v.Elem()).Addr())
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.String:
			if v.Type() == reflect.TypeFor[string]() && (path == "Name" || chance.IntN(2) == 0) {
				v.SetString(variation(v.String(), i))
			}
		case reflect.Int32, reflect.Int64:
			if chance.IntN(4) == 0 {
				v.SetInt(v.Int() + int64(i%1000))
			}
		}
		return false
	})
}

// variation returns a text like another one.
func variation(text string, i int) string {
	if look(text) == "cel" {
		return fmt.Sprintf("%s && %d < 1000000000", text, i)
	}
	return fmt.Sprint(text, i)
}

// grow returns an edit of a map: one bad value under a key that has a meaning, or many entries.
func (g *Generator) grow(path string, v reflect.Value) Edit {
	n, key := pick(g, 1, 1, 1, 10, 1000, 10_000), pick(g, keys...)
	if strings.HasSuffix(path, "Annotations") || g.maybe(0.3) {
		key = pick(g, Keys()...)
	}
	if g.maybe(0.2) {
		key = pick(g, texts[pick(g, "name", "other")]...).is
	}
	value := reflect.New(v.Type().Elem()).Elem()
	for _, is := range v.MapKeys()[:min(1, v.Len())] {
		value.Set(v.MapIndex(is))
		if g.maybe(0.5) && n > 1 {
			key = is.String()
		}
	}
	e := Edit{}
	if !value.CanInterface() {
		return e
	}
	if elem(value.Type()).Kind() != reflect.Struct || slices.Contains(whole, value.Type()) {
		e = g.replace("", value)
	}
	return Edit{path, fmt.Sprintf("%d times %.60q: %.200s", n, key, e.Value), n, func(v reflect.Value, n, salt int) {
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		for i := range n {
			entry, under := clone(value), key
			if e.change != nil {
				e.change(entry, 0, salt*n+i)
			}
			if i > 0 {
				under = fmt.Sprint(key, i)
			}
			v.SetMapIndex(reflect.ValueOf(under).Convert(v.Type().Key()), entry)
		}
	}}
}

// Below returns a number from 0 to n-1.
func (g *Generator) Below(n int) int { return g.rand.IntN(n) }

// Copies returns how often a tenant creates the same: mostly once.
func (g *Generator) Copies() int {
	switch {
	case g.maybe(0.7):
		return 1
	case g.maybe(0.7):
		return 8
	case g.maybe(0.7):
		return 40
	}
	return 300
}
