package manifests

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/nodecontract"
)

// fields are those of an object of any kind.
type fields map[string]any

// at returns the value at a path. It is nil if there is none.
func (f fields) at(path ...string) any {
	var v any = map[string]any(f)
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// object returns the object at a path. It is nil if there is none.
func (f fields) object(path ...string) fields {
	m, _ := f.at(path...).(map[string]any)
	return m
}

func (f fields) objects(path ...string) []fields {
	list, _ := f.at(path...).([]any)
	var all []fields
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

func (f fields) text(path ...string) string {
	s, _ := f.at(path...).(string)
	return s
}

// count returns the number at a path, or another if there is none. Numbers beyond those of a Kubernetes object count as the largest.
func (f fields) count(otherwise int, path ...string) int {
	n, ok := f.at(path...).(float64)
	if !ok {
		return otherwise
	}
	return int(max(math.MinInt32, min(math.MaxInt32, n)))
}

// mentionsGPU reports whether an object has requests or limits of GPUs.
func mentionsGPU(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if key == "status" {
				continue
			}
			amounts, ok := value.(map[string]any)
			if ok && (key == "limits" || key == "requests") && slices.ContainsFunc(slices.Sorted(maps.Keys(amounts)), func(name string) bool { return isGPU(name) && !isZero(amounts[name]) }) || mentionsGPU(value) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, mentionsGPU)
	}
	return false
}

func isGPU(resource string) bool {
	return strings.HasPrefix(resource, nodecontract.NVIDIAPrefix) || memoryalias.Is(resource)
}

func isZero(v any) bool {
	q, err := amount.Parse(fmt.Sprint(v))
	return err == nil && q.IsZero()
}
