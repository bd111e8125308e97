package e2e

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
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
	root, err := cluster.Root()
	if err != nil {
		s.t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "examples", "two-pools", file))
	if err != nil {
		s.t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			s.t.Fatalf("reading %s: %v", file, err)
		}
		if o.GetKind() == "Deployment" {
			o.SetNamespace(s.name)
		}
		s.create(o)
	}
}
