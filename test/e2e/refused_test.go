package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/cluster"
	"karve.sh/karve/test/karve"
)

// unknownType is in Karve's catalogue alone: Karpenter fails on it again and again, and waits for it before it launches anything for anybody.
const unknownType = "g4dn.small"

// TestATypeThatCannotBeLaunchedHoldsUpNobody has a cluster of its own, since what it tests against would hold up all others.
func TestATypeThatCannotBeLaunchedHoldsUpNobody(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{InstanceTypes: catalogueWith(t, unknownType)})
	cpu, bad, good := w.scene(t, "cpu"), w.scene(t, "bad"), w.scene(t, "good")
	cpu.pool(poolOptions{stock: true, taintKey: "none", requirements: map[string]string{"karpenter.k8s.aws/instance-family": "m5"}})
	bad.class(v1alpha1.IdleNever)
	bad.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: unknownType}})
	bad.deploy("inference", 25)
	bad.until(enough, "Karve has asked for machines", func() (bool, string) { return len(bad.claims()) > 0, "" })

	// From here Karpenter is stuck.
	cpu.pod("cpu", func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	})
	waited := cpu.until(90*time.Second, "Karpenter's own pod runs", func() (bool, string) { return cpu.running() == 1, strings.Join(cpu.events("Pod", "cpu"), "\n") })
	t.Logf("Karpenter's own pod ran after %s", waited)

	bad.untilGone(bad.name)
	asked := bad.claims()
	for _, c := range asked {
		t.Logf("%s was there for %s", c.name, c.gone.Sub(c.first))
	}
	bad.wantRefused()
	bad.untilCondition(bad.name, v1alpha1.ConditionLaunchHealthy, "False", "LaunchRefused", unknownType, "could not be launched")
	bad.untilEvent("GPUNodeClass", bad.name, "LaunchRefused", unknownType, "NodePool "+bad.name)
	pod := bad.pods()[0]
	bad.untilEvent("Pod", pod.Name, "OfferingsUnavailable", unknownType)
	bad.stays(20*time.Second, "no claim of that type", func() (bool, string) { return len(bad.claims()) == len(asked), lines(bad.claims()) })
	bad.wantRefused()

	bad.delete(&karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: bad.name}})
	good.class(v1alpha1.IdleNever)
	good.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-size": "xlarge"}})
	good.deploy("inference", 10)
	waited = good.until(2*time.Minute, "pods of another pool run", func() (bool, string) { return good.running() == 10, fmt.Sprint(good.running()) })
	t.Logf("Pods of another pool ran after %s", waited)
	good.wantClaims(good.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
	if n := len(bad.claims()); n != len(asked) {
		t.Errorf("%d claims of the type that cannot be launched, want no more than %d:\n%s", n, len(asked), lines(bad.claims()))
	}
}

// wantRefused fails unless the offering is remembered for some time to come.
func (s *scene) wantRefused() {
	s.t.Helper()
	s.until(enough, "GPUNodeClass "+s.name+" remembers the refusal", func() (bool, string) {
		class := &v1alpha1.GPUNodeClass{}
		if err := s.seen.Get(s.t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
			return false, err.Error()
		}
		r := class.Status.RefusedOfferings
		return len(r) == 1 && r[0].InstanceType == unknownType && r[0].Failures == 1 && time.Until(r[0].NotBefore.Time) > 0 && r[0].Message != "", fmt.Sprintf("%+v", r)
	})
}

// catalogueWith is the cluster's catalogue and a cheaper type that is a g4dn.xlarge but for its name.
func catalogueWith(t *testing.T, name string) string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(filepath.Join(root, "test", "cluster", "instance-types.json"))
	if err != nil {
		t.Fatal(err)
	}
	var known []json.RawMessage
	if err := json.Unmarshal(file, &known); err != nil {
		t.Fatal(err)
	}
	more := strings.NewReplacer(`"g4dn.xlarge"`, `"`+name+`"`, `["xlarge"]`, `["small"]`, `"Price":0.526`, `"Price":0.3`).Replace(string(known[0]))
	if strings.Count(more, name) == 0 || !json.Valid([]byte(more)) {
		t.Fatalf("the first type of the catalogue is not what it was: %s", known[0])
	}
	file, err = json.Marshal(append(known, json.RawMessage(more)))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "instance-types.json")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
