package sharing

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/words"
)

const (
	// maxItems bounds the lists of a configuration. A machine has at most a few dozen GPUs and MIG instances.
	maxItems = 1024
	// maxFindings and maxText bound what is said about a configuration.
	maxFindings, maxText = 32, 300
)

// reader collects errors, so that all of them are reported at once.
type reader struct {
	strict   bool
	warnings []string
	errs     []error
}

func (r *reader) warn(format string, args ...any) {
	switch n := len(r.warnings); {
	case n < maxFindings:
		r.warnings = append(r.warnings, brieflyf(format, args...))
	case n == maxFindings:
		r.warnings = append(r.warnings, "there are more warnings")
	}
}

func brieflyf(format string, args ...any) string {
	return plain.Shorten(fmt.Sprintf(format, args...), maxText)
}

// doubt adds a warning, or an error if the reader is strict.
func (r *reader) doubt(format string, args ...any) {
	if r.strict {
		r.refuse(format, args...)
		return
	}
	r.warn(format, args...)
}

func (r *reader) fail(path, format string, args ...any) {
	r.refuse("%s: %s", path, fmt.Sprintf(format, args...))
}

func (r *reader) refuse(format string, args ...any) {
	switch n := len(r.errs); {
	case n < maxFindings:
		r.errs = append(r.errs, errors.New(brieflyf(format, args...)))
	case n == maxFindings:
		r.errs = append(r.errs, errors.New("there are more errors"))
	}
}

func (r *reader) integer(path string, v any) (int, bool) {
	if number, ok := v.(json.Number); ok {
		if n, err := strconv.Atoi(number.String()); err == nil {
			return n, true
		}
	}
	r.fail(path, "is %s, and must be a whole number", briefValue(v))
	return 0, false
}

func (r *reader) object(path string, v any, fold bool, read func(*object)) {
	if v == nil {
		return
	}
	fields, ok := v.(map[string]any)
	if !ok {
		r.fail(orRoot(path), "is %s, and must be a mapping", briefValue(v))
		return
	}
	o := &object{r: r, path: path, fields: maps.Clone(fields), fold: fold}
	read(o)
	for _, key := range slices.Sorted(maps.Keys(o.fields)) {
		r.doubt("%s: unknown key", o.at(key))
	}
}

// item reads a mapping in a list. An item without a value is an empty mapping.
func (r *reader) item(path string, v any, read func(*object)) {
	if v == nil {
		v = map[string]any{}
	}
	r.object(path, v, false, read)
}

// object is a mapping. Fields that were read are removed, so that the remaining ones are unknown.
type object struct {
	r      *reader
	path   string
	fields map[string]any
	// fold ignores the case of keys, as NVIDIA's plugin does in some objects.
	fold bool
}

func (o *object) at(key string) string {
	if o.path == "" {
		return key
	}
	return o.path + "." + key
}

func (o *object) take(key string) (any, bool) {
	var spellings []string
	for _, k := range slices.Sorted(maps.Keys(o.fields)) {
		if k == key || o.fold && strings.EqualFold(k, key) {
			spellings = append(spellings, k)
		}
	}
	if len(spellings) == 0 {
		return nil, false
	}
	k := spellings[0]
	v := o.fields[k]
	for _, spelling := range spellings {
		delete(o.fields, spelling)
	}
	switch {
	case len(spellings) > 1:
		o.r.fail(o.at(key), "is written %s; keep one", words.And(spellings))
	case k != key:
		o.r.doubt("%s: is read as %s", o.at(k), key)
	}
	return v, true
}

func (o *object) object(key string, read func(*object)) {
	if v, ok := o.take(key); ok {
		o.r.object(o.at(key), v, o.fold, read)
	}
}

func (o *object) text(key string) *string {
	v, ok := o.take(key)
	if !ok || v == nil {
		return nil
	}
	s, ok := v.(string)
	if !ok {
		o.r.fail(o.at(key), "is %s, and must be text", briefValue(v))
	}
	return &s
}

// texts reads a list, which may also be a single text.
func (o *object) texts(key string) []string {
	v, ok := o.take(key)
	if !ok || v == nil {
		return nil
	}
	if s, ok := v.(string); ok {
		return []string{s}
	}
	list, ok := v.([]any)
	if !ok {
		o.r.fail(o.at(key), "is %s, and must be text or a list of texts", briefValue(v))
	}
	var out []string
	for i, item := range list {
		s, ok := item.(string)
		if !ok {
			o.r.fail(indexPath(o.at(key), i), "is %s, and must be text", briefValue(item))
		}
		out = append(out, s)
	}
	return out
}

func (o *object) boolean(key string) *bool {
	v, ok := o.take(key)
	if !ok || v == nil {
		return nil
	}
	b, ok := v.(bool)
	if !ok {
		o.r.fail(o.at(key), "is %s, and must be true or false", briefValue(v))
	}
	return &b
}

func (o *object) list(key string) []any {
	v, ok := o.take(key)
	if !ok || v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		o.r.fail(o.at(key), "is %s, and must be a list", briefValue(v))
	}
	if len(list) > maxItems {
		o.r.fail(o.at(key), "has %d items, and can have at most %d", len(list), maxItems)
		return nil
	}
	return list
}

// duration checks that a value is "60s", "infinite", or a number of nanoseconds.
func (o *object) duration(key string) {
	v, _ := o.take(key)
	valid := v == nil
	switch v := v.(type) {
	case json.Number:
		_, err := v.Float64()
		valid = err == nil
	case string:
		_, err := time.ParseDuration(v)
		valid = err == nil || v == "infinite"
	}
	if !valid {
		o.r.fail(o.at(key), "is %s, and must be a duration such as 60s", briefValue(v))
	}
}

func indexPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func orRoot(path string) string {
	if path == "" {
		return "the document"
	}
	return path
}

// briefValue formats a value, and shortens it if it is long.
func briefValue(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "unreadable"
	}
	if len(text) > 60 {
		return string(text[:57]) + "..."
	}
	return string(text)
}
