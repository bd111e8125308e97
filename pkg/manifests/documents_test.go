package manifests_test

import (
	"fmt"
	"strings"
	"testing"

	"karve.sh/karve/pkg/manifests"
)

// bomb returns a document in which each of some lists has ten aliases of the one before. The first list has ten aliases of a text.
func bomb(levels, text int) string {
	var out strings.Builder
	fmt.Fprintf(&out, "a0: &a0 %s\n", strings.Repeat("x", text))
	for i := range levels {
		fmt.Fprintf(&out, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return out.String()
}

func TestManifestsHaveBounds(t *testing.T) {
	t.Parallel()
	const object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for name, c := range map[string]struct{ text, want string }{
		"many small aliases":                     {bomb(9, 1), "a.yaml, document 1: document contains excessive aliasing"},
		"few aliases of much":                    {bomb(2, 2_000_000), "a.yaml, document 1: the objects have more than 128 MiB as JSON, with YAML's aliases replaced by what they name"},
		"some aliases in each of many documents": {strings.Repeat(bomb(2, 300_000)+"---\n", 6), "a.yaml, document 5: the objects have more than 128 MiB as JSON"},
		"an alias of itself":                     {"a: &a [*a]", "a.yaml, document 1: anchor 'a' value contains itself"},
		"deep YAML":                              {object + "data: " + deep(200), "a.yaml, document 1: lists and objects are more than 200 deep in one another"},
		"deeper YAML":                            {object + "data: " + deep(20_000), "exceeded max depth of 10000"},
		"deep JSON":                              {`{"a": ` + deep(200) + "}", "a.yaml, document 1: lists and objects are more than 200 deep"},
		"deeper JSON":                            {`{"a": ` + deep(20_000) + "}", "exceeded max depth"},
		"many documents":                         {strings.Repeat("---\n#\n", 200_001), "a.yaml, document 200001: there are more than 200000 objects"},
		"many documents of JSON":                 {strings.Repeat("{}", 200_001), "a.yaml, document 200001: there are more than 200000 objects"},
		"many items":                             {`{"apiVersion": "v1", "kind": "List", "items": [` + strings.Repeat(`{"apiVersion":"v1","kind":"Event"},`, 200_000) + "{}]}", "a.yaml, document 1, item 200000: there are more than 200000 objects"},
		"many claims":                            {made("apps/v1", "StatefulSet", "s", "replicas: 100000, "+selector+", volumeClaimTemplates: ["+strings.Repeat("{metadata: {name: a}}, ", 11)+"]"), "a.yaml, document 1, StatefulSet s: it asks for 1100000 PersistentVolumeClaims, and a plan is made for at most 1000000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := manifests.Read(t.Context(), []manifests.File{{Name: "a.yaml", Content: []byte(c.text)}})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%.300v, want %s", err, c.want)
			}
		})
	}
	for name, text := range map[string]string{"aliases": object + "data: {a: &a {b: c}, d: *a, e: '& *'}", "depth": object + "data: " + deep(150), "brackets in a text": `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"a": "` + strings.Repeat(`\"[\\`, 300) + `"}}`} {
		if _, _, err := manifests.Read(t.Context(), []manifests.File{{Name: "a.yaml", Content: []byte(text)}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
