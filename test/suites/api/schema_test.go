package api

import (
	"fmt"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/pkg/apis/crds/crdtest"
)

// TestEveryRuleHasPair walks the generated schema. A rule without a pair of objects is untested. A pair without a rule tests something that no longer exists.
func TestEveryRuleHasPair(t *testing.T) {
	t.Parallel()
	rules := rulesOf(t, "karve.sh_gpunodeclasses.yaml")

	tested := map[string]bool{}
	for _, pair := range pairs {
		tested[pair.rule] = true
		if !slices.Contains(rules, pair.rule) {
			t.Errorf("a pair is for a rule that is not in the schema: %s", pair.rule)
		}
	}
	for _, rule := range rules {
		if !tested[rule] {
			t.Errorf("add a pair to `pairs` for the rule: %s", rule)
		}
	}
}

// rulesOf returns the rules in the schema of a generated CRD.
func rulesOf(t *testing.T, file string) []string {
	t.Helper()
	content, err := crds.FS.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return rules(crdtest.Of(t, content))
}

func TestWalkFindsEveryKindOfRule(t *testing.T) {
	t.Parallel()
	var s crdtest.Schema
	if err := yaml.Unmarshal([]byte(`
required: [a]
properties:
  a: {enum: [x], minLength: 1, maxLength: 2, pattern: x}
  b: {minimum: 0, maximum: 0, exclusiveMinimum: true, multipleOf: 2}
  c:
    minItems: 0
    maxItems: 3
    uniqueItems: true
    x-kubernetes-list-map-keys: [k]
    items:
      required: [k]
      properties:
        k: {x-kubernetes-validations: [{rule: "true", message: go on}]}
  d:
    maxProperties: 4
    minProperties: 1
    additionalProperties: {maxLength: 5}
  e: {allOf: [{}], anyOf: [{}], oneOf: [{}], not: {}}
`), &s); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a required",
		"a enum", "a maxLength", "a minLength", "a pattern",
		"b exclusiveMinimum", "b maximum", "b minimum", "b multipleOf",
		"c maxItems", "c minItems", "c unique k", "c uniqueItems", "c[].k required", "c[].k rule: go on",
		"d maxProperties", "d minProperties", "d{} maxLength",
		"e allOf", "e anyOf", "e not", "e oneOf",
	}
	got := rules(s)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("rules:\n got %q\nwant %q", got, want)
	}
}

// bounds are the schema keywords that reject values, except for required properties and CEL rules.
var bounds = []string{
	"enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
	"minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties", "allOf", "anyOf", "oneOf", "not",
}

// rules returns the names of all rules of the schema, sorted. It skips the items of status.conditions, which are Kubernetes' own.
func rules(s crdtest.Schema) []string {
	var out []string
	s.Walk("", func(path string, s crdtest.Schema) bool {
		if path == "status.conditions[]" {
			return false
		}
		for _, keyword := range bounds {
			if _, ok := s[keyword]; ok {
				out = append(out, path+" "+keyword)
			}
		}
		for _, name := range s.List("required") {
			out = append(out, crdtest.Join(path, fmt.Sprint(name))+" required")
		}
		for _, key := range s.List("x-kubernetes-list-map-keys") {
			out = append(out, fmt.Sprintf("%s unique %s", path, key))
		}
		for _, rule := range s.List("x-kubernetes-validations") {
			out = append(out, fmt.Sprintf("%s rule: %s", path, rule.(map[string]any)["message"]))
		}
		return true
	})
	slices.Sort(out)
	return out
}
