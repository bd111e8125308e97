package render_test

import (
	"testing"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Without the annotation, agents of all versions are device plugins.
func TestBackendIsPromised(t *testing.T) {
	t.Parallel()
	for backend, want := range map[v1alpha1.Backend]string{"": "", v1alpha1.BackendDevicePlugin: "", v1alpha1.BackendDRA: "DRA", v1alpha1.BackendNVIDIADRA: "NVIDIADRA"} {
		c := cluster()
		c.GPUNodeClasses[0].Spec.Sharing.Backend = backend
		view := snapshot.Build(c)
		claim := render.NodeClaim(&view, planner.Launch{Offering: 0}, nil)
		got, said := claim.Annotations[nodecontract.BackendAnnotation]
		if got != want || said != (want != "") || facts.PromiseOf(claim.Annotations).Backend != want {
			t.Errorf("backend %q is promised as %q, want %q", backend, got, want)
		}
	}
}
