package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/words"
)

// unknownTypes returns why the template's requirements name only instance types, or families of them, that are not in the catalog. It returns "" if they
// name others. read is when the catalog was read.
func (t *template) unknownTypes(read time.Time) string {
	for _, key := range slices.Sorted(maps.Keys(t.requirements)) {
		r := t.requirements[key]
		if key != corev1.LabelInstanceTypeStable && !strings.HasSuffix(key, "/instance-family") || r.Operator() != corev1.NodeSelectorOpIn {
			continue
		}
		names := slices.Sorted(slices.Values(r.Values()))
		if len(names) == 0 || slices.ContainsFunc(t.types, func(it catalog.InstanceType) bool { return slices.Contains(names, it.Labels[key]) }) {
			continue
		}
		when := ""
		if !read.IsZero() {
			when = fmt.Sprintf(" of %s", read.UTC().Format(time.DateOnly))
		}
		return fmt.Sprintf("the catalog%s has no instance type with a GPU whose %s is %s: correct the name or, if the type is newer, add it to a file of instance types "+
			"(--instance-types of kubectl karve, --instance-types-file of the controller)", when, key, words.Named(names, maxValues))
	}
	return ""
}
