package chart_test

import (
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/chart"
)

func TestEachResourceOfDRAHasADeviceClass(t *testing.T) {
	t.Parallel()
	const enabled = "--set=dra.enabled=true"
	for _, c := range []struct {
		options   []string
		resources []string
	}{
		{nil, nil},
		{[]string{enabled}, []string{nodecontract.ResourceGPUShared}},
		{[]string{enabled, "--set=dra.resources={nvidia.com/gpu,nvidia.com/mig-1g.5gb.me.shared,nvidia.com/mig-1g.24gb-me,nvidia.com/gpu}"}, []string{"nvidia.com/gpu", "nvidia.com/mig-1g.5gb.me.shared", "nvidia.com/mig-1g.24gb-me"}},
	} {
		var got []string
		for _, o := range template(t, c.options...).Kind("DeviceClass") {
			var class resourcev1.DeviceClass
			if err := chart.Convert(o, &class); err != nil {
				t.Fatal(err)
			}
			resource := *class.Spec.ExtendedResourceName
			got = append(got, resource)
			if name, selector := nodecontract.DeviceClass(resource); class.Name != name || len(class.Spec.Selectors) != 1 || class.Spec.Selectors[0].CEL.Expression != selector {
				t.Errorf("%s has the class %+v, want %s with %s", resource, class, name, selector)
			}
		}
		if !slices.Equal(got, c.resources) {
			t.Errorf("%v: there are classes for %v, want %v", c.options, got, c.resources)
		}
	}
	_, err := node.Template(t.Context(), agentImage, enabled, "--set=dra.resources={example.com/gpu}")
	if err == nil || !strings.Contains(err.Error(), "does not match pattern") {
		t.Errorf("a resource that no agent serves: %v", err)
	}
}
