package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	realclock "k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/metrics"
	localaws "karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// sample are types that together have every kind of GPU in the test.
var sample = []string{"g4dn.xlarge", "g4dn.12xlarge", "g5.2xlarge", "g6.4xlarge", "g6e.xlarge"}

// TestCatalogAllocatableMatchesLaunchedMachines compares the allocatable resources that Karpenter's AWS provider reports for the machines that it launches with those
// of Karve's catalog for the same types and node class.
func TestCatalogAllocatableMatchesLaunchedMachines(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	// Pools with every instance type make each plan slow for all tests that share the cluster.
	w := ownWorld(t, cluster.Config{}, karve.Options{})
	for name, change := range map[string]func(map[string]any){
		"catalog-default": func(map[string]any) {},
		"catalog-kubelet": func(spec map[string]any) {
			spec["kubelet"] = map[string]any{
				"maxPods": int64(40), "kubeReserved": map[string]string{"cpu": "200m", "memory": "1Gi", "ephemeral-storage": "3Gi"},
				"systemReserved": map[string]string{"memory": "256Mi"}, "evictionHard": map[string]string{"memory.available": "5%", "nodefs.available": "12%"},
			}
			spec["instanceStorePolicy"] = "RAID0"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.scene(t, name, change)
			s.class(v1alpha1.IdleNever)
			s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": ""}})
			for _, instanceType := range sample {
				s.pod(instanceType, selects(corev1.LabelInstanceTypeStable, instanceType))
			}
			var claims []karpv1.NodeClaim
			s.until(enough, "each type is launched", func() (bool, string) {
				var list karpv1.NodeClaimList
				s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: name})
				claims = list.Items
				for i := range claims {
					if len(claims[i].Status.Allocatable) == 0 {
						return false, "one has not been launched"
					}
				}
				return len(claims) == len(sample), fmt.Sprintf("%d claims", len(claims))
			})
			listing := s.listing()
			for _, claim := range claims {
				status := claim.Status
				want := catalog.InstanceType{Name: claim.Labels[corev1.LabelInstanceTypeStable], Capacity: amountsOf(status.Capacity), Allocatable: amountsOf(status.Allocatable)}
				want.GPU.Count = status.Capacity.Name(v1alpha1.ResourceGPU, "").Value()
				i := slices.IndexFunc(listing.InstanceTypes, func(it catalog.InstanceType) bool { return it.Name == want.Name })
				if i < 0 {
					t.Errorf("the catalog has no %s", want.Name)
					continue
				}
				it := listing.InstanceTypes[i]
				got := catalog.InstanceType{Name: it.Name, Capacity: it.Capacity, Allocatable: it.Allocatable, GPU: catalog.GPU{Count: it.GPU.Count}}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-Karpenter's +ours)\n%s", diff)
				}
				for key, value := range it.Labels {
					if claim.Labels[key] != value {
						t.Errorf("%s: label %s=%q, and Karpenter's %q", it.Name, key, value, claim.Labels[key])
					}
				}
			}
		})
	}
}

// listing returns the current listing of Karve's catalog for the scene's node class.
func (s *scene) listing() catalog.Listing {
	s.t.Helper()
	class := &unstructured.Unstructured{}
	class.SetAPIVersion(cloud + "/v1")
	class.SetKind(cloudKind)
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
		s.t.Fatal(err)
	}
	machines := instancetype.New(instancetype.Config{
		Options: instancetype.Options{VMMemoryOverheadPercent: 0.075}, Metrics: metrics.New(prometheus.NewRegistry()), Clock: realclock.RealClock{},
		Load: func(context.Context) (*api.Clients, error) { return api.New(localaws.ClientConfig(s.AWS().URL)), nil },
	})
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	go func() { _ = machines.Start(ctx) }()
	listing := machines.InstanceTypes(ctx, class)
	if listing.Reason != "" {
		s.t.Fatalf("%s: %s", listing.Reason, listing.Message)
	}
	return listing
}

func amountsOf(list corev1.ResourceList) catalog.Resources {
	return catalog.Resources{
		MilliCPU: list.Cpu().MilliValue(), MemoryBytes: list.Memory().Value(), EphemeralBytes: list.StorageEphemeral().Value(), Pods: list.Pods().Value(),
	}
}

// TestMachineWithLessMemoryThanPromisedIsNotLaunchedAgain creates a pod that fits the catalog's g6e.xlarge but not the g6e.xlarge that is launched. If Karve did not
// learn from this machine, each plan would launch another one, forever. The local AWS refuses no g6e.xlarge to other tests.
func TestMachineWithLessMemoryThanPromisedIsNotLaunchedAgain(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := sharedWorld(t)
	w.Machines().SetLack("g6e.xlarge", resource.MustParse("4Gi"))
	s := w.scene(t, "lesson")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "g6e"}})
	s.pod("large", func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("26Gi")
	})
	s.untilRunning(1)
	var bought []string
	for _, claim := range s.claims() {
		bought = append(bought, claim.instanceType)
	}
	if diff := cmp.Diff([]string{"g6e.xlarge", "g6e.2xlarge"}, bought); diff != "" {
		t.Errorf("bought (-want +got)\n%s", diff)
	}
}
