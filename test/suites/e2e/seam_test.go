package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// gates returns the names of all feature gates of Karpenter's core.
func gates() (names []string) {
	for _, gate := range coreoptions.KarpenterFeatureGates {
		names = append(names, gate.Name)
	}
	return names
}

// allGates returns the value of Karpenter's setting that opens all gates of its core.
func allGates() string { return strings.Join(gates(), "=true,") + "=true" }

// awsGates opens all gates of Karpenter's AWS provider.
const awsGates = "AWS_FEATURE_GATES=NodeClassCEL=true,DRANVIDIAGPU=true,DRAEFA=true,RebootForRepair=true"

// TestKarpenterIgnoresKarveNodesWithEachFeatureGate restarts Karpenter with each of its feature gates alone, and at last with all of them. Each time, Karve has
// to launch one more machine, and there are more pods than the pool's limit lets Karve serve. Karpenter must neither launch for the pending pods nor remove one
// of our machines, although it consolidates at once. Pools of Karpenter show that it would do both.
//
// The names clash on purpose. The GPUNodeClass, the EC2NodeClass and the NodePool have the same name, because Karpenter's AWS provider finds the node class of
// any NodePool by its name alone. A NodeOverlay tells Karpenter how many replicas our machines have.
func TestKarpenterIgnoresKarveNodesWithEachFeatureGate(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{KarpenterEnv: []string{"BATCH_IDLE_DURATION=200ms", awsGates}}, karve.Options{Alone: true, BatchIdle: 200 * time.Millisecond, DRA: true})
	s := w.scene(t, "seam")
	s.class(v1alpha1.IdleNever)
	s.create(overlay(s.name))
	s.pool(poolOptions{
		consolidateAfter: "0s", limits: map[string]string{"nvidia.com/gpu": "0"},
		// SpotToSpotConsolidation only affects spot capacity.
		requirements: map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot, corev1.LabelInstanceTypeStable: cheapest},
	})
	s.deploy("inference", 0)
	s.control(0)
	for i, gate := range append(gates(), "all") {
		t.Run(gate, func(t *testing.T) {
			began := time.Now()
			w.restartKarpenter(t, gate)
			(&scene{w, t, s.name}).withOneMore(i + 1)
			t.Logf("%s took %s", gate, time.Since(began).Round(time.Second))
		})
	}
	// By default Karpenter ignores pods with ResourceClaims.
	t.Run("claims", func(t *testing.T) {
		if !servesDRA() {
			t.Skip("this version of Kubernetes does not serve resource.k8s.io/v1")
		}
		w.scene(t, "ignored").karveAloneServesDRAPods()
	})
}

// TestKarpenterWithEveryGateTouchesNothingDuringChurn scales pods of Karve's pool and of a pool of Karpenter up and down for ten minutes, with all of
// Karpenter's gates on. Each NodeClaim of Karve's pool must be Karve's, and only Karve may delete it. Karpenter must launch nothing for Karve's pods.
func TestKarpenterWithEveryGateTouchesNothingDuringChurn(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{FeatureGates: allGates(), KarpenterEnv: []string{"BATCH_IDLE_DURATION=200ms", "IGNORE_DRA_REQUESTS=false", awsGates}}, karve.Options{Alone: true, BatchIdle: 200 * time.Millisecond, DRA: true})
	s := w.scene(t, "churn")
	s.class("5s")
	s.create(overlay(s.name))
	s.pool(poolOptions{consolidateAfter: "0s"})
	s.pool(poolOptions{name: "stock", stock: true, taintKey: "none", consolidateAfter: "0s", requirements: map[string]string{"karpenter.k8s.aws/instance-family": "m5"}})
	shared := s.deploy("inference", 0)
	stock := s.deploy("web", 0, selects(karpv1.NodePoolLabelKey, "stock"), func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	})
	random, steps := rand.New(rand.NewPCG(1, 2)), 0 //nolint:gosec // The churn is the same each time.
	for began := time.Now(); time.Since(began) < 10*time.Minute; steps++ {
		s.scale(shared, random.Int32N(45))
		s.scale(stock, random.Int32N(12))
		time.Sleep(time.Duration(2+random.IntN(10)) * time.Second)
	}
	s.scale(stock, 0)
	s.scale(shared, 25)
	s.untilRunning(25)
	s.scale(shared, 0)
	s.untilGone(s.name)

	ours := s.claims()
	deleted := int(w.metric(t, w.karve, "karve_nodeclaims_deleted_total"))
	if n := len(alive(ours)); n > 0 || deleted != len(ours) {
		t.Errorf("Karve deleted %d of %d NodeClaims of its pool, and %d are left:\n%s", deleted, len(ours), n, lines(ours))
	}
	others := s.history.claimsThat(func(c *claim) bool { return !c.ours && c.pool != "stock" })
	if len(others) > 0 {
		t.Errorf("Karpenter launched machines for our pods:\n%s", lines(others))
	}
	if len(ours) < 10 {
		t.Errorf("only %d machines came and went in %d steps", len(ours), steps)
	}
	t.Logf("%d steps, %d machines of Karve, %d of Karpenter", steps, len(ours), len(s.history.claimsOf("stock")))
}

func (w *world) restartKarpenter(t *testing.T, on string) {
	t.Helper()
	if err := w.KillComponent(cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
	var switches []string
	for _, gate := range gates() {
		switches = append(switches, fmt.Sprintf("%s=%t", gate, gate == on || on == "all"))
	}
	w.SetFeatureGates(strings.Join(switches, ","))
	if err := w.StartComponent(t.Context(), cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
}

// withOneMore raises the limit to n machines, and creates pods for these machines and half of another. The earlier machines are empty at first, and all
// machines are empty in the end.
func (s *scene) withOneMore(n int) {
	s.t.Helper()
	s.delete(&corev1.Pod{ObjectMeta: objectMetaIn(s.name, controlName(n-1))})
	s.patch(s.nodePool(s.name), fmt.Sprintf(`{"spec":{"limits":{"nvidia.com/gpu":"%d"}}}`, n))
	d := &appsv1.Deployment{ObjectMeta: objectMetaIn(s.name, "inference")}
	s.scale(d, int32(10*n+4))
	s.control(n)
	waiting := func(p corev1.Pod) bool { return p.Labels["app"] != d.Name || p.Spec.NodeName != "" }
	s.until(enough, fmt.Sprintf("%d of %d pods run", 10*n, 10*n+4), func() (bool, string) {
		pods := s.pods()
		left := slices.DeleteFunc(slices.Clone(pods), waiting)
		return len(pods) == 10*n+4+1 && s.running() == 10*n+1 && len(left) == 4, fmt.Sprintf("%d run of %d", s.running(), len(pods))
	})
	for _, pod := range slices.DeleteFunc(s.pods(), waiting) {
		s.untilEvent("Pod", pod.Name, "LimitReached", s.name)
	}
	// With NodeOverlay, Karpenter deletes a claim that it has not launched if it has not reconciled the pool yet. Karve then creates it again.
	all := len(s.claims())
	s.scale(d, 0)
	s.until(enough, "Karpenter has given its own empty machine back", func() (bool, string) {
		claims := s.history.claimsOf(controlName(n - 1))
		return len(claims) == 1 && !claims[0].deleting.IsZero(), lines(claims)
	})
	s.drift()
	s.stays(2*time.Second, "our machines are left alone", func() (bool, string) {
		nodes := s.nodes(s.name)
		disrupted := slices.ContainsFunc(nodes, func(n corev1.Node) bool { return tainted(&n, karpv1.DisruptedTaintKey) })
		return len(nodes) == n && len(s.claims()) == all && len(alive(s.claims())) == n && !disrupted, lines(s.claims())
	})
	foreign := s.history.claimsThat(func(c *claim) bool { return !c.ours && !strings.HasPrefix(c.pool, "control-") })
	if len(foreign) > 0 {
		s.t.Errorf("Karpenter launched machines for our pods:\n%s", lines(foreign))
	}
}

// drift sets the Drifted condition on our claims. Karpenter disrupts machines on which it has set this condition itself.
func (s *scene) drift() {
	s.t.Helper()
	var claims karpv1.NodeClaimList
	if err := s.api.List(s.t.Context(), &claims, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name}); err != nil {
		s.t.Fatal(err)
	}
	for i := range claims.Items {
		claim := claims.Items[i].DeepCopy()
		claim.StatusConditions().SetTrue(karpv1.ConditionTypeDrifted)
		if err := s.api.Status().Patch(s.t.Context(), claim, client.MergeFrom(&claims.Items[i])); err != nil {
			s.t.Fatalf("saying that %s has drifted: %v", claim.Name, err)
		}
	}
}

func controlName(n int) string { return fmt.Sprintf("control-%d", n) }

// control creates a pool of Karpenter whose machines may be removed as soon as they are empty, and a pod that needs one. It waits until the pod runs.
func (s *scene) control(n int) {
	s.t.Helper()
	name := controlName(n)
	s.pool(poolOptions{
		name: name, stock: true, taintKey: "none", consolidateAfter: "0s", requirements: map[string]string{"karpenter.k8s.aws/instance-family": "m5"},
	})
	s.pod(name, selects(karpv1.NodePoolLabelKey, name), func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	})
	waited := s.until(enough, "Karpenter's own pod runs", func() (bool, string) {
		return slices.ContainsFunc(s.pods(), func(p corev1.Pod) bool { return p.Name == name && p.Status.Phase == corev1.PodRunning }), strings.Join(s.events("Pod", name), "\n")
	})
	s.t.Logf("Karpenter's own pod %s ran after %s", name, waited.Round(100*time.Millisecond))
}

// overlay tells Karpenter that the machines of a pool have ten replicas per GPU.
func overlay(pool string) *unstructured.Unstructured {
	in := func(key, value string) any {
		return map[string]any{"key": key, "operator": "In", "values": []any{value}}
	}
	return manifest("karpenter.sh/v1alpha1", "NodeOverlay", pool, map[string]any{
		"requirements": []any{in(karpv1.NodePoolLabelKey, pool), in("karpenter.k8s.aws/instance-gpu-count", "1")},
		"capacity":     map[string]string{v1alpha1.ResourceGPUShared: "10"},
	})
}
