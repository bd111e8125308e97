package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// terms returns affinity terms for the scene's pods with the label app.
func terms(key, app string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

// claiming adds a volume of a PersistentVolumeClaim to a pod.
func claiming(name string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Volumes = []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}}
	}
}

// TestPodsWithSchedulingRulesRun has a pod with each scheduling rule. The real scheduler binds them.
func TestPodsWithSchedulingRulesRun(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	const zone, host = corev1.LabelTopologyZone, corev1.LabelHostname
	s := w.scene(t, "rules")
	s.class(v1alpha1.IdleNever)
	s.volume("data", "us-east-1b")

	s.deploy("spread", 4, func(spec *corev1.PodSpec) {
		spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: zone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "spread"}},
		}}
	})
	s.deploy("apart", 3, func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(host, "apart")}}
	})
	s.deploy("port", 2, func(spec *corev1.PodSpec) {
		spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	})
	s.pod("near", func(spec *corev1.PodSpec) {
		spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(host, "apart")}}
	})
	s.pod("reads", claiming("data"))
	const pods = 4 + 3 + 2 + 1 + 1
	s.untilWaiting(pods)
	s.pool(poolOptions{}) // Created only now, so that all pods are planned for together.
	s.untilRunning(pods)

	zones := map[string]int{}
	nodes := map[string]*corev1.Node{}
	for _, n := range s.nodes(s.name) {
		nodes[n.Name] = &n
	}
	on := map[string]map[string]int{}
	for _, pod := range s.pods() {
		app := pod.Labels["app"]
		if on[app] == nil {
			on[app] = map[string]int{}
		}
		on[app][pod.Spec.NodeName]++
		if app == "spread" {
			zones[nodes[pod.Spec.NodeName].Labels[zone]]++
		}
		if is := nodes[pod.Spec.NodeName].Labels[zone]; app == "reads" && is != "us-east-1b" {
			t.Errorf("the pod runs in %s, its volume is in us-east-1b", is)
		}
	}
	if len(zones) != 4 || len(on["apart"]) != 3 || len(on["port"]) != 2 {
		t.Errorf("spread by zone %v; pods by node %v", zones, on)
	}
	// There are more zones than pods to spread, and the machines of these pods have room for all others.
	if n := len(s.claims()); n != 4 {
		t.Errorf("%d machines, want 4:\n%s", n, lines(s.claims()))
	}
}

// TestStatedDeviceMemoryLimitsPodsPerGPU has pods that fit a GPU ten times by replicas but only once by memory.
func TestStatedDeviceMemoryLimitsPodsPerGPU(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "memory")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	for i := range 2 {
		s.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.name, Name: fmt.Sprint("model-", i), Annotations: map[string]string{v1alpha1.GPUMemoryAnnotation: "8Gi"},
		}, Spec: s.podSpec()})
	}
	s.untilRunning(2)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 2*526_000)
}

// untilWaiting waits until the scheduler has reported n pods unschedulable.
func (s *scene) untilWaiting(n int) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("%d pods wait", n), func() (bool, string) {
		waiting := 0
		for _, pod := range s.pods() {
			if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }) {
				waiting++
			}
		}
		return waiting == n, fmt.Sprint(waiting)
	})
}

// volume creates a PersistentVolumeClaim with the binding mode WaitForFirstConsumer, and a volume in the zone that the scheduler then binds it to.
func (s *scene) volume(name, zone string) {
	s.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	unique := s.name + "-" + name
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: unique}, Provisioner: "example.com/by-hand", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: corev1.LabelTopologyZone, Values: []string{zone}}}}},
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: unique}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: unique, Capacity: size, AccessModes: modes,
		PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nowhere.example.com", Path: "/"}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}},
	}}
	for _, o := range []client.Object{class, pv} {
		s.create(o)
		s.t.Cleanup(func() {
			if err := s.api.Delete(context.WithoutCancel(s.t.Context()), o); err != nil {
				s.t.Error(err)
			}
		})
	}
	s.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &unique, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
	}})
}

// TestClaimMeetsMinValues has a pool whose minValues require two instance types per claim. Karpenter launches one of them.
func TestClaimMeetsMinValues(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "choice")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{minValues: map[string]int64{corev1.LabelInstanceTypeStable: 2}})
	s.deploy("inference", 10)
	s.untilRunning(10)
	var list karpv1.NodeClaimList
	s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name})
	for _, claim := range list.Items {
		for _, req := range claim.Spec.Requirements {
			if req.Key == corev1.LabelInstanceTypeStable && (len(req.Values) != 2 || req.Values[0] != cheapest || req.MinValues == nil || *req.MinValues != 2) {
				t.Errorf("the claim asks for %+v", req)
			}
		}
	}
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)
}
