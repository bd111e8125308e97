package dra

import (
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/test/harness/cluster"
)

func TestSchedulerUsesNoDeviceThatKarveReadsAsTaintedByARule(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	w := newWorld(t)
	rules := w.client.ResourceV1().DeviceTaintRules()
	if _, err := rules.List(t.Context(), metav1.ListOptions{}); apierrors.IsNotFound(err) {
		t.Skip("this Kubernetes does not serve DeviceTaintRules in v1")
	}
	n := w.node("two", 2)
	taint := func(by *resourcev1.DeviceTaintSelector) {
		t.Helper()
		_, err := rules.Create(t.Context(), &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "maintenance"}, Spec: resourcev1.DeviceTaintRuleSpec{
			DeviceSelector: by, Taint: resourcev1.DeviceTaint{Key: "example.com/maintenance", Effect: resourcev1.DeviceTaintEffectNoSchedule},
		}}, metav1.CreateOptions{})
		w.must(err)
	}
	taint(&resourcev1.DeviceTaintSelector{Pool: &n.name})
	n.publishes(0)
	n.ask("none", 1)
	n.waits("none")
	w.must(rules.Delete(t.Context(), "maintenance", metav1.DeleteOptions{}))
	n.prepared("none")
	n.end("none")

	all, err := n.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	w.must(err)
	tainted, open := all.Items[0].Spec.Devices[0].Name, all.Items[0].Spec.Devices[1].Name
	taint(&resourcev1.DeviceTaintSelector{Device: &tainted})
	n.publishes(10)
	for i := range 10 {
		name := fmt.Sprintf("pod-%d", i)
		n.ask(name, 1)
		for _, devices := range n.prepared(name) {
			if strings.TrimSpace(devices) != open {
				t.Errorf("%s has %s, want %s", name, devices, open)
			}
		}
	}
	n.ask("last", 1)
	n.waits("last")
}
