package docs

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite docs/api.md")

func TestAPIReferenceMatchesCRDs(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "pkg/apis/crds/*.yaml"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	var page strings.Builder
	page.WriteString("# API reference\n\nGenerated from the CRDs. `kubectl explain gpunodeclass.spec --recursive` has the same.\n")
	slices.Reverse(files) // GPUNodeClass comes first.
	for _, file := range files {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict([]byte(read(t, file)), &crd); err != nil {
			t.Fatal(err)
		}
		page.WriteString(section(&crd))
	}
	want, file := page.String(), filepath.Join(root, "docs/api.md")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, read(t, file)); diff != "" {
		t.Errorf("docs/api.md differs from the CRDs; go -C test test ./suites/docs -run API -update rewrites it (-want +got):\n%s", diff)
	}
}

func section(crd *apiextensionsv1.CustomResourceDefinition) string {
	version := crd.Spec.Versions[0]
	schema := version.Schema.OpenAPIV3Schema
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n`%s/%s`, cluster-scoped, short name `%s`.\n\n%s\n", crd.Spec.Names.Kind, crd.Spec.Group, version.Name,
		strings.Join(crd.Spec.Names.ShortNames, "`, `"), schema.Description)
	b.WriteString("\n| field | type | |\n|---|---|---|\n")
	fields(&b, "spec", schema.Properties["spec"], map[string]string{})
	// Of the status, the page has only the first level, and the first sentence on each.
	fmt.Fprintf(&b, "\n`kubectl explain %s.status --recursive` has the fields of these parts of the status:\n\n| field | |\n|---|---|\n", crd.Spec.Names.Singular)
	for _, name := range slices.Sorted(maps.Keys(schema.Properties["status"].Properties)) {
		fmt.Fprintf(&b, "| `status.%s` | %s |\n", name, strings.TrimSpace(sentence.FindString(description(name, schema.Properties["status"].Properties[name]))))
	}
	return b.String()
}

var (
	// word matches texts that begin with a word, and not with a value such as amd64.
	word = regexp.MustCompile(`^(?:a|how|see|the|those|what|when)\b`)
	// sentence matches the first sentence of a text.
	sentence = regexp.MustCompile(`^.*?\.( |$)`)
)

// description returns the description of a field, which begins with the name of the field, as Go's comments do, without that name.
func description(name string, field apiextensionsv1.JSONSchemaProps) string {
	text := strings.Join(strings.Fields(strings.ReplaceAll(field.Description, "|", `\|`)), " ")
	for _, verb := range []string{" is ", " are ", ": "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			text = rest
			if word.MatchString(rest) {
				text = strings.ToUpper(rest[:1]) + rest[1:]
			}
		}
	}
	return text
}

// fields writes a row for each field of a schema, sorted by name, but none for an object that only defines what its fields say. Objects with the fields of an
// earlier one point to it.
func fields(b *strings.Builder, path string, schema apiextensionsv1.JSONSchemaProps, seen map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		of := path + "." + name
		what, inner, below := field.Type, field, of
		if field.Type == "array" {
			what, inner, below = field.Items.Schema.Type+"[]", *field.Items.Schema, of+"[]"
		}
		if slices.Contains(schema.Required, name) {
			what += ", required"
		}
		text := description(name, field)
		known := false
		if len(inner.Properties) > 0 {
			key, err := json.Marshal(inner.Properties)
			if err != nil {
				panic(err)
			}
			if seen[string(key)] == "" {
				seen[string(key)], known = below, true
			} else {
				text += " Its fields are those of `" + seen[string(key)] + "`."
			}
		}
		if !known || !strings.HasPrefix(text, name+" defines ") {
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", of, what, text)
		}
		if known {
			fields(b, below, inner, seen)
		}
	}
}
