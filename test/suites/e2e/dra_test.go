package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// draMode reports whether GPUNodeClasses of the tests have backend DRA unless they say otherwise. Tests of what only device plugins can do are skipped then.
var draMode = os.Getenv("KARVE_BACKEND") == string(v1alpha1.BackendDRA)

// servesDRA reports whether the API server has ResourceClaims in v1, as from Kubernetes 1.34 on.
var servesDRA = sync.OnceValue(func() bool {
	folder := os.Getenv(builder.Given)
	if folder == "" {
		return true
	}
	minor, err := builder.KubernetesMinor(context.Background(), filepath.Join(folder, "kube-apiserver"))
	return err != nil || minor >= "1.34" // The folder may have no API server.
})

// inMode sets the backend in DRA mode. It skips a test whose GPUNodeClass cannot have backend DRA.
func (s *scene) inMode(sharing *v1alpha1.Sharing) {
	s.t.Helper()
	switch {
	case !draMode || sharing.Backend != "":
	case sharing.Strategy != v1alpha1.StrategyTimeSlicing:
		s.t.Skipf("Strategy %s needs backend DevicePlugin", sharing.Strategy)
	case sharing.Resource() != v1alpha1.ResourceGPUShared:
		s.t.Skipf("Replicas with the name %s need backend DevicePlugin", sharing.Resource())
	case sharing.MaxReplicas != nil:
		s.t.Skip("A range of replicas needs backend DevicePlugin")
	default:
		sharing.Backend = v1alpha1.BackendDRA
	}
}

func byDRA(c *v1alpha1.GPUNodeClassSpec) { c.Sharing.Backend = v1alpha1.BackendDRA }

// backends returns how many of the scene's nodes have each backend, and fails the test if a node has replicas by the other one too.
func (s *scene) backends() map[string]int {
	s.t.Helper()
	count := map[string]int{}
	for _, n := range s.nodes(s.name) {
		backend := or(n.Annotations[nodecontract.BackendAnnotation], string(v1alpha1.BackendDevicePlugin))
		count[backend]++
		if q := n.Status.Allocatable[v1alpha1.ResourceGPUShared]; backend == nodecontract.BackendDRA && !q.IsZero() {
			s.t.Errorf("node %s with backend DRA has %s allocatable replicas of a device plugin", n.Name, &q)
		}
	}
	return count
}

// allocated returns how many pods of the scene have a GPU by a ResourceClaim on their own node.
func (s *scene) allocated() int {
	s.t.Helper()
	var claims resourcev1.ResourceClaimList
	if err := s.api.List(s.t.Context(), &claims); err != nil {
		s.t.Fatal(err)
	}
	n := 0
	for _, pod := range s.pods() {
		if pod.Status.ExtendedResourceClaimStatus == nil {
			continue
		}
		for i := range claims.Items {
			c := &claims.Items[i]
			if c.Namespace == s.name && c.Name == pod.Status.ExtendedResourceClaimStatus.ResourceClaimName && c.Status.Allocation != nil &&
				!slices.ContainsFunc(c.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
					return r.Driver != nodecontract.DRADriver || r.Pool != pod.Spec.NodeName
				}) {
				n++
			}
		}
	}
	return n
}

// TestEightyPodsShareEightMachinesByDRA has the pods of the examples, unchanged. Only the GPUNodeClass has another backend.
func TestEightyPodsShareEightMachinesByDRA(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "dra")
	s.class("5s", byDRA)
	s.pool(poolOptions{})
	d := s.deploy("inference", 80)
	s.untilRunning(80)
	s.wantClaims(s.claims(), 8, karpv1.CapacityTypeOnDemand, 4_208_000)
	s.wantStatus(8, 80, 80, "4.208")
	if got := s.backends(); got[nodecontract.BackendDRA] != 8 {
		t.Errorf("the nodes have the backends %v", got)
	}
	if n := s.allocated(); n != 80 {
		t.Errorf("%d of 80 pods have a GPU of their node by a ResourceClaim", n)
	}
	s.scale(d, 0)
	s.untilGone(s.name)
	if n := len(s.claims()); n != 8 {
		t.Errorf("%d claims were made for 80 pods:\n%s", n, lines(s.claims()))
	}
	s.until(enough, "the ResourceSlices are gone", func() (bool, string) {
		var list resourcev1.ResourceSliceList
		if err := s.api.List(t.Context(), &list); err != nil {
			return false, err.Error()
		}
		nodes := map[string]bool{}
		for _, n := range s.allNodes() {
			nodes[n.Name] = true
		}
		stale := slices.DeleteFunc(list.Items, func(r resourcev1.ResourceSlice) bool { return nodes[*r.Spec.NodeName] })
		return len(stale) == 0, fmt.Sprintf("%d are of nodes that are gone", len(stale))
	})
}

// allNodes returns the nodes of the cluster.
func (s *scene) allNodes() []corev1.Node {
	var list corev1.NodeList
	s.list(&list)
	return list.Items
}

// TestPoolMovesFromDevicePluginToDRAWithinBudget changes the backend of a GPUNodeClass whose nodes are full.
func TestPoolMovesFromDevicePluginToDRAWithinBudget(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "to-dra")
	s.class(v1alpha1.IdleNever, func(c *v1alpha1.GPUNodeClassSpec) { c.Sharing.Backend = v1alpha1.BackendDevicePlugin })
	s.pool(poolOptions{budget: "1"})
	s.deploy("inference", 20)
	s.untilRunning(20)
	old := map[string]bool{}
	for _, n := range s.nodes(s.name) {
		old[n.Name] = true
	}
	if n := s.allocated(); n != 0 || len(old) != 2 {
		t.Fatalf("%d pods have ResourceClaims on %d nodes with device plugins", n, len(old))
	}
	s.patch(&v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}}, `{"spec":{"sharing":{"backend":"DRA"}}}`)
	s.until(enough, "all nodes have backend DRA", func() (bool, string) {
		for _, n := range s.nodes(s.name) {
			if backend := n.Annotations[nodecontract.BackendAnnotation]; old[n.Name] && backend != "" {
				t.Fatalf("node %s was converted to backend %s", n.Name, backend)
			}
		}
		now := s.backends()
		return now[nodecontract.BackendDRA] == 2 && len(now) == 1, fmt.Sprint(now)
	})
	s.untilRunning(20)
	if n := s.allocated(); n != 20 {
		t.Errorf("%d of 20 pods have a GPU of their node by a ResourceClaim", n)
	}
	// A pod that is bought twice needs a fifth claim.
	if n := len(s.claims()); n != 4 {
		t.Errorf("%d claims were made, want two and their replacements:\n%s", n, lines(s.claims()))
	}
	if n := most(s.claims()); n > 1 {
		t.Errorf("%d machines went at once, with a budget of 1:\n%s", n, lines(s.claims()))
	}
	s.wantStatus(2, 20, 20, "1.052")
	s.wantMetric("karve_nodes_replacements_total", 2, `reason="SharingDrifted"`, `result="Done"`)
}

// TestKarpenterThatPlansForClaimsLeavesThemToKarve runs beside a Karpenter that does not ignore ResourceClaims.
func TestKarpenterThatPlansForClaimsLeavesThemToKarve(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	w.scene(t, "once").karveAloneServesDRAPods()
}

// karveAloneServesDRAPods has pods with ResourceClaims and pods that request replicas, more of them than the limit of Karve's pool allows. A pool of Karpenter with
// GPUs admits them too. Karpenter launches a machine there for a pod that requests a whole GPU, and none for the others.
func (s *scene) karveAloneServesDRAPods() {
	s.t.Helper()
	stock, labels := s.name+"-stock", map[string]string{team: s.name}
	here := selects(team, s.name) // No other pool of Karpenter admits the pods.
	s.pool(poolOptions{name: stock, stock: true, labels: labels})
	s.class(v1alpha1.IdleNever, byDRA)
	s.pool(poolOptions{labels: labels, limits: map[string]string{"nvidia.com/gpu": "2"}})
	template := manifest("resource.k8s.io/v1", "ResourceClaimTemplate", "gpu", map[string]any{"spec": map[string]any{"devices": map[string]any{"requests": []any{
		map[string]any{"name": "gpu", "exactly": map[string]any{
			"deviceClassName": nodecontract.DRADriver, "capacity": map[string]any{"requests": map[string]string{"memory": "1Gi"}},
		}},
	}}}})
	template.SetNamespace(s.name)
	s.create(template)
	// Both kinds of pods use one replica each, so that it does not matter which of them the scheduler binds where.
	s.deploy("claims", 12, here, claimsByTemplate("gpu"))
	s.deploy("replicas", 12, here)
	s.until(enough, "20 pods run", func() (bool, string) { return s.running() == 20, fmt.Sprint(s.running()) })
	pending := slices.DeleteFunc(s.pods(), func(p corev1.Pod) bool { return p.Spec.NodeName != "" })
	for i := range pending {
		s.untilEvent("Pod", pending[i].Name, "LimitReached", s.name)
	}
	// Karpenter plans for all pending pods together.
	s.pod("whole", asks(v1alpha1.ResourceGPU, "1"), here)
	s.until(enough, "the pod with a whole GPU runs", func() (bool, string) { return s.running() == 21, strings.Join(s.events("Pod", "whole"), "\n") })
	s.stays(5*time.Second, "nothing is launched twice", func() (bool, string) {
		ours, theirs := s.claims(), s.history.claimsOf(stock)
		return len(ours) == 2 && len(theirs) == 1 && s.running() == 21, lines(append(ours, theirs...))
	})
	// The machine of Karpenter would be waste for the other tests.
	s.delete(&karpv1.NodePool{ObjectMeta: objectMeta(stock)})
}

// claimsByTemplate makes a pod use a GPU by a ResourceClaimTemplate instead of requesting replicas.
func claimsByTemplate(name string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
		spec.Containers[0].Resources.Limits, spec.Containers[0].Resources.Claims = nil, []corev1.ResourceClaim{{Name: "gpu"}}
	}
}
