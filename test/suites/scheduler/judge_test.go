package scheduler_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/scheduler"
)

const otherDriver = "other.example.com"

// plain returns a scenario with a node outside any NodePool that has room for two pods, and a pool for two more pods that need a whole machine each.
func plain() *scheduler.Scenario {
	c := snapshottest.Shared()
	s := &scheduler.Scenario{
		InstanceTypes: c.InstanceTypes()[3:], GPUNodeClasses: c.GPUNodeClasses, NodePools: c.NodePools,
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "default"}}},
		Pods:       slices.Concat(snapshottest.Pods("small", 2), snapshottest.Pods("large", 2, snapshottest.Asking("cpu", "2", v1alpha1.ResourceGPUShared, "6"))),
	}
	s.Nodes = []corev1.Node{{
		ObjectMeta: metav1.ObjectMeta{Name: "there", Labels: map[string]string{corev1.LabelHostname: "there", corev1.LabelTopologyZone: snapshottest.Zones[0]}},
		Status:     corev1.NodeStatus{Allocatable: snapshottest.Amounts("cpu", "4", "memory", "8Gi", "pods", "10", v1alpha1.ResourceGPUShared, "3")},
	}}
	return s
}

func planned(t *testing.T, f *scheduler.Filter, s *scheduler.Scenario) (snapshot.View, planner.Plan) {
	t.Helper()
	outcome, err := f.Judge(s)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Complaints) > 0 {
		t.Fatalf("the plan is not right to begin with: %v", outcome.Complaints)
	}
	return outcome.View, outcome.Plan
}

// TestJudgeFindsPlansThatSchedulerRejects changes the pods after planning.
func TestJudgeFindsPlansThatSchedulerRejects(t *testing.T) {
	f := start(t)
	everything := &metav1.LabelSelector{}
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod, s *scheduler.Scenario)
		want   string
	}{
		"another zone": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "nowhere"}
		}, "stuck NodeAffinity"},
		"no toleration": {func(pod *corev1.Pod, _ *scheduler.Scenario) { pod.Spec.Tolerations = nil }, "stuck TaintToleration"},
		"a host port conflict": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 8080, ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
		}, "stuck NodePorts"},
		"too much": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("3")
		}, "stuck NodeResourcesFit"},
		"spread over nodes": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Labels = map[string]string{"app": "spread"}
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, MinDomains: new(int32(9)),
				LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
		}, "stuck PodTopologySpread"},
		"apart": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: everything}},
			}}
		}, "stuck InterPodAffinity"},
		"affinity to no pod": {func(pod *corev1.Pod, _ *scheduler.Scenario) {
			pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "nobody"}},
			}}}}
		}, "stuck InterPodAffinity"},
		"a missing PersistentVolumeClaim": {func(pod *corev1.Pod, _ *scheduler.Scenario) { claiming(pod, "missing") }, "stuck VolumeRestrictions"},
		"a volume in another zone": {func(pod *corev1.Pod, s *scheduler.Scenario) {
			claiming(pod, "elsewhere")
			disk(s, "elsewhere", "nowhere")
		}, "stuck VolumeBinding"},
		"more volumes than can be attached": {func(pod *corev1.Pod, s *scheduler.Scenario) {
			claiming(pod, "of-"+pod.Name)
			disk(s, "of-"+pod.Name, snapshottest.Zones[0], snapshottest.Zones[1])
			s.CSINodes = []storagev1.CSINode{{ObjectMeta: metav1.ObjectMeta{Name: "there"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
				Name: otherDriver, NodeID: "there", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(1))},
			}}}}}
		}, "stuck NodeVolumeLimits"},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			view, plan := planned(t, f, s)
			for _, pod := range view.Pods {
				c.change(pod, s)
			}
			outcome, err := f.JudgePlan(s, view, plan)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(outcome.Complaints, func(got scheduler.Complaint) bool { return got.Kind == c.want }) {
				t.Errorf("the complaints are %v, want %s", outcome.Complaints, c.want)
			}
		})
	}
}

func TestJudgeFindsPodsThatSchedulerCouldPlace(t *testing.T) {
	f := start(t)
	for name, room := range map[string]func(s *scheduler.Scenario){
		"on an existing node": func(s *scheduler.Scenario) { s.NodePools = nil },
		"on a machine that could be launched": func(s *scheduler.Scenario) {
			s.Nodes = nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			room(s)
			s.Pods = snapshottest.Pods("impossible", 1, snapshottest.Selecting(corev1.LabelTopologyZone, "nowhere"))
			view, plan := planned(t, f, s)
			if len(plan.Unplaced) != 1 {
				t.Fatalf("the plan is %v", plan)
			}
			view.Pods["default/impossible-000"].Spec.NodeSelector = nil
			outcome, err := f.JudgePlan(s, view, plan)
			if err != nil {
				t.Fatal(err)
			}
			if len(outcome.Complaints) == 0 || outcome.Complaints[0].Kind != "taken "+string(planner.ReasonNoPool) {
				t.Errorf("the complaints are %v", outcome.Complaints)
			}
		})
	}
}

func claiming(pod *corev1.Pod, claim string) {
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
}

// disk adds a PersistentVolumeClaim that is bound to a volume in the zones.
func disk(s *scheduler.Scenario, name string, zones ...string) {
	bound := map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	s.PersistentVolumeClaims = append(s.PersistentVolumeClaims, corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "claim", Annotations: bound},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "disk-" + name, StorageClassName: new("")},
		Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	})
	s.PersistentVolumes = append(s.PersistentVolumes, corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "disk-" + name},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "default", Name: name, UID: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: otherDriver, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: zones}},
			}}}},
		},
	})
}
