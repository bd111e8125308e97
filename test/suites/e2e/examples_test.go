package e2e

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/test/harness/cluster"
)

// TestTwoPoolsExampleWorks applies examples/two-pools, with the pods of each file in their own namespace.
func TestTwoPoolsExampleWorks(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	shared, dedicated := &scene{w, t, "shared"}, &scene{w, t, "dedicated"}
	shared.example("nodeclass.yaml")
	for _, s := range []*scene{shared, dedicated} {
		s.create(&corev1.Namespace{ObjectMeta: objectMeta(s.name)})
		s.example(s.name + ".yaml")
	}
	shared.untilRunning(10)
	dedicated.untilRunning(2)
	for _, s := range []*scene{shared, dedicated} {
		s.wantOnOwnNodes()
	}
	// The recipe allows spot, which is much cheaper.
	shared.wantClaims(shared.claims(), 1, karpv1.CapacityTypeSpot, 157_800)
	dedicated.wantClaims(dedicated.claims(), 2, karpv1.CapacityTypeSpot, 315_600)
}

// example applies a file of the recipe.
func (s *scene) example(file string) {
	s.t.Helper()
	for _, o := range objectsOf(s.t, filepath.Join("two-pools", file), strings.NewReplacer()) {
		if o.GetKind() == "Deployment" {
			o.SetNamespace(s.name)
		}
		s.create(o)
	}
}

// exampleOf returns the objects of an example for the scene's pool and namespace.
func (s *scene) exampleOf(file string) []*unstructured.Unstructured {
	s.t.Helper()
	return objectsOf(s.t, file, strings.NewReplacer("gpu-shared", s.name, "namespace: default", "namespace: "+s.name))
}

// objectsOf returns the objects of a file below examples, with replacements in its text.
func objectsOf(t *testing.T, file string, change *strings.Replacer) []*unstructured.Unstructured {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "examples", file))
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(change.Replace(string(content))), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("reading %s: %v", file, err)
		}
		objects = append(objects, o)
	}
}
