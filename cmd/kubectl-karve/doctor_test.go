package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/snapshot"
)

func TestDoctorNeedsACluster(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	status := run(t.Context(), []string{"doctor", "--kubeconfig", kubeconfigFor(t, "http://127.0.0.1:1")}, streams{strings.NewReader(""), &out, &errOut})
	if want := "error: the cluster at http://127.0.0.1:1 cannot be reached: dial tcp 127.0.0.1:1: connect: connection refused: select another one with --kubeconfig or --context\n"; status != 1 || out.Len() > 0 || errOut.String() != want {
		t.Errorf("status %d, %s%s, want %s", status, &out, &errOut, want)
	}
}

// TestDoctorSaysWhichCRDsAreMissing runs doctor on clusters with one half of what Karve needs, and with nothing.
func TestDoctorSaysWhichCRDsAreMissing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kubeconfig string
		missing    []string
	}{
		"without Karpenter": {apiServer(t, "karve.sh/v1alpha1"), []string{"nodepools.karpenter.sh"}},
		"without Karve":     {apiServer(t, "karpenter.sh/v1"), []string{"gpunodeclasses.karve.sh", "gpuimagerollouts.karve.sh"}},
		"without both":      {apiServer(t), []string{"nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "gpunodeclasses.karve.sh"}},
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), []string{"doctor", "--kubeconfig", c.kubeconfig}, streams{strings.NewReader(""), &out, &errOut})
		if status != 1 || !strings.Contains(errOut.String(), "must be fixed") {
			t.Errorf("%s: status %d, %s", name, status, &errOut)
		}
		for _, crd := range c.missing {
			if want := "error  CustomResourceDefinition " + crd + "\n  is not installed\n"; !strings.Contains(out.String(), want) {
				t.Errorf("%s: %q is missing:\n%s", name, want, &out)
			}
		}
	}
}

// TestDoctorGoesOnWithoutRights runs doctor on an API server that answers nothing.
func TestDoctorGoesOnWithoutRights(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	status := run(t.Context(), []string{"doctor", "--kubeconfig", apiServer(t, "karpenter.sh/v1", "karve.sh/v1alpha1")}, streams{strings.NewReader(""), &out, &errOut})
	if status != 0 && !strings.Contains(errOut.String(), "must be fixed") {
		t.Errorf("status %d, %s", status, &errOut)
	}
	for _, want := range []string{"unknown  the controller\n", "fix: needs permission to list deployments.apps", "unknown  NodePools, nodes and pods\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
}

func TestVerdictCountsErrorsAndNeedsFacts(t *testing.T) {
	t.Parallel()
	finding := func(s doctor.Severity) doctor.Finding {
		return doctor.Finding{Severity: s, Object: "x", Message: "is so", Fix: "do it"}
	}
	some := &diagnosis{Findings: []doctor.Finding{finding(doctor.Warning), finding(doctor.Unknown)}}
	for _, facts := range []*doctor.Facts{{Cluster: &snapshot.Cluster{}}, {Controllers: []doctor.Program{}}} {
		if err := some.verdict(facts); err != nil {
			t.Error(err)
		}
	}
	if err := some.verdict(&doctor.Facts{}); err == nil || !strings.HasPrefix(err.Error(), "nothing could be checked: ") {
		t.Errorf("without facts: %v", err)
	}
	two := &diagnosis{Findings: []doctor.Finding{finding(doctor.Error), finding(doctor.Error), finding(doctor.Warning)}}
	if err := two.verdict(&doctor.Facts{}); err == nil || err.Error() != "2 problems must be fixed" {
		t.Error(err)
	}
	var out bytes.Buffer
	if err := two.text(&out, palette{}); err != nil || !strings.HasPrefix(out.String(), "error  x\n  is so\n  fix: do it\n\nerror  x\n") {
		t.Errorf("%v:\n%s", err, &out)
	}
}

func TestVersionsThatCanBeCompared(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v0.1.0": "v0.1.0", "0.1.0": "0.1.0", "1.0.0-rc.1": "1.0.0-rc.1", "(devel)": "", "latest": "", "unknown": "", "v0.1.1-0.20260101000000-0123456789ab": "", "v0.1.0+dirty": "", "0123abc": "",
	} {
		if got := released(version); got != want {
			t.Errorf("%s is %q, want %q", version, got, want)
		}
	}
}

func TestAProgramIsDescribedByItsFirstContainer(t *testing.T) {
	t.Parallel()
	pod := corev1.PodSpec{Containers: []corev1.Container{{
		Image: "localhost:5000/karve/controller:0.1.0@sha256:0123", Args: []string{"--cluster-name=mine", "-v", "--empty="}, Env: []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "C", ValueFrom: &corev1.EnvVarSource{}}},
	}}}
	got := programOf("Deployment", &metav1.ObjectMeta{Namespace: "n", Name: "x"}, &pod)
	if got.Version != "0.1.0" || got.Flags["cluster-name"] != "mine" || got.Env["A"] != "b" || len(got.Env) != 1 || got.String() != "Deployment n/x" {
		t.Errorf("%+v", got)
	}
	pod.Containers[0].Image = "localhost:5000/karve/controller"
	if got := programOf("Deployment", &metav1.ObjectMeta{}, &pod); got.Version != "" {
		t.Errorf("an image without a tag has version %s", got.Version)
	}
}

func TestTheRightsAreThoseOfTheRoles(t *testing.T) {
	t.Parallel()
	r := factReader{facts: &doctor.Facts{Controllers: []doctor.Program{{Flags: map[string]string{"gpu-check-namespace": "checks"}}}}, namespace: "here"}
	var all []doctor.Right
	for _, file := range roleFiles {
		rights, err := r.rightsIn("rbac/" + file + ".yaml")
		if err != nil || len(rights) == 0 {
			t.Fatalf("%s: %v, %v", file, rights, err)
		}
		all = append(all, rights...)
	}
	for _, want := range []doctor.Right{
		{Group: "karpenter.sh", Resource: "nodeclaims", Verb: "create"},
		{Group: "coordination.k8s.io", Resource: "leases", Verb: "update", Namespace: "here", Name: "karve"},
		{Resource: "pods", Verb: "create", Namespace: "checks"},
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
		if got := monitors(c.monitor, set); got != c.want {
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
