package doctor

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestVersionsThatCanBeCompared(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v0.1.0": "v0.1.0", "0.1.0": "0.1.0", "1.0.0-rc.1": "1.0.0-rc.1", "(devel)": "", "latest": "", "unknown": "", "v0.1.1-0.20260101000000-0123456789ab": "", "v0.1.0+dirty": "", "0123abc": "",
	} {
		if got := Released(version); got != want {
			t.Errorf("%s is %q, want %q", version, got, want)
		}
	}
}

func TestAProgramIsDescribedByItsFirstContainer(t *testing.T) {
	t.Parallel()
	pod := corev1.PodSpec{Containers: []corev1.Container{{
		Image: "localhost:5000/karve/controller:0.1.0@sha256:0123", Args: []string{"--log-level=debug", "-v", "--empty="}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", ValueFrom: &corev1.EnvVarSource{}}},
	}}}
	got := programOf("Deployment", &metav1.ObjectMeta{Namespace: "n", Name: "x"}, &pod)
	if got.Version != "0.1.0" || got.Flags["log-level"] != "debug" || got.Env["A"] != "b" || len(got.Env) != 1 || got.String() != "Deployment n/x" {
		t.Errorf("%+v", got)
	}
	pod.Containers[0].Image = "localhost:5000/karve/controller"
	if got := programOf("Deployment", &metav1.ObjectMeta{}, &pod); got.Version != "" {
		t.Errorf("an image without a tag has version %s", got.Version)
	}
}

func TestTheRightsAreThoseOfTheRoles(t *testing.T) {
	t.Parallel()
	flags := map[string]string{"gpu-check-namespace": "checks"}
	base, err := NeededRights(flags, "here")
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"nominations", "capacity-buffers", "provisioning-requests", "image-rollouts", "dra", "metrics-secure"} {
		flags[flag] = "true"
	}
	flags["memory-aliases"] = "gpuNodeClass=gpu"
	all, err := NeededRights(flags, "here")
	if err != nil || len(all) <= len(base) {
		t.Fatalf("%d rights with all features, %d without: %v", len(all), len(base), err)
	}
	for _, want := range []Right{
		{Group: "karpenter.sh", Resource: "nodeclaims", Verb: "create"},
		{Group: "coordination.k8s.io", Resource: "leases", Verb: "update", Namespace: "here", Name: "karve"},
		{Resource: "pods", Verb: "create", Namespace: "checks"},
		{Group: "autoscaling.x-k8s.io", Resource: "provisioningrequests/status", Verb: "patch"},
	} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is missing in %v", want, all)
		}
	}
}

func TestAMonitorIsFoundByWhatItSelects(t *testing.T) {
	t.Parallel()
	monitor := func(labels map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"selector": map[string]any{"matchLabels": labels}}}}
	}
	set := map[string]string{"app": "karve", "component": "controller"}
	for name, c := range map[string]struct {
		monitor *unstructured.Unstructured
		want    bool
	}{
		"the same":    {monitor(map[string]any{"app": "karve"}), true},
		"another one": {monitor(map[string]any{"app": "other"}), false},
		"nothing":     {&unstructured.Unstructured{Object: map[string]any{}}, false},
	} {
		if got := MonitorSelects(c.monitor, set); got != c.want {
			t.Errorf("a monitor that selects %s: %t", name, got)
		}
	}
}

func TestTheOwnCRDsHaveSchemas(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpunodeclasses.karve.sh", "gpuimagerollouts.karve.sh"} {
		own, err := ownCRD(name)
		if err != nil || schemasOf(own)["v1alpha1"] == nil {
			t.Errorf("%s: %v, %v", name, own, err)
		}
	}
	if _, err := ownCRD("nodepools.karpenter.sh"); err == nil {
		t.Error("Karpenter's CRDs are not Karve's")
	}
}
