// Package crdtest walks the schemas of CRDs in tests that check every field.
package crdtest

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
)

// Schema is an OpenAPI schema in its decoded YAML form.
type Schema map[string]any

// Of returns the schema of a CRD that has one version.
func Of(t *testing.T, crd []byte) Schema {
	t.Helper()
	var content struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema Schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(crd, &content); err != nil {
		t.Fatal(err)
	}
	if len(content.Spec.Versions) != 1 {
		t.Fatalf("there are %d versions, and the test is for one", len(content.Spec.Versions))
	}
	return content.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// Walk calls visit for a schema and everything below it, each with its path: a.b for a property, a[] for the items of a list, and a{} for the values of a map.
// Where visit returns false, Walk skips everything below.
func (s Schema) Walk(path string, visit func(path string, s Schema) bool) {
	if !visit(path, s) {
		return
	}
	properties, _ := s["properties"].(map[string]any)
	for name := range properties {
		if property, ok := properties[name].(map[string]any); ok {
			Schema(property).Walk(Join(path, name), visit)
		}
	}
	for keyword, mark := range map[string]string{"items": "[]", "additionalProperties": "{}"} {
		if below, ok := s[keyword].(map[string]any); ok {
			Schema(below).Walk(path+mark, visit)
		}
	}
}

// Join returns the path of a property.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// List returns the value of a keyword that is a list, or nil if the schema does not have it.
func (s Schema) List(keyword string) []any {
	l, _ := s[keyword].([]any)
	return l
}
