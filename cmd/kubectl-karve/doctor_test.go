package main

import (
	"bytes"
	"strings"
	"testing"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/snapshot/facts"
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
	for _, facts := range []*doctor.Facts{{Cluster: &facts.Cluster{}}, {Controllers: []doctor.Program{}}} {
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
	if text := two.text(palette{}); !strings.HasPrefix(text, "error  x\n  is so\n  fix: do it\n\nerror  x\n") {
		t.Errorf("%s", text)
	}
}
