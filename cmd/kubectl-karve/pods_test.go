package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// decodeAll decodes pods one after the other, as those of a list.
func decodeAll(t *testing.T, pods []corev1.Pod) (decoded []*corev1.Pod, ports []int32) {
	t.Helper()
	reader := newPodReader()
	for i := range pods {
		message, err := pods[i].Marshal()
		if err != nil {
			t.Fatal(err)
		}
		pod, port, err := reader.decode(message)
		if err != nil {
			t.Fatal(err)
		}
		clear(message) // The memory of messages is used again.
		decoded, ports = append(decoded, pod), append(ports, port)
	}
	return decoded, ports
}

func TestPodsHaveWhatTheControllerKeepsOfThem(t *testing.T) {
	t.Parallel()
	pods := snapshottest.Large(20).Pods
	ended := &pods[0]
	ended.Status.Phase = corev1.PodSucceeded
	ended.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended.CreationTimestamp}}}}
	volumes := func(secret string) []corev1.Volume {
		return []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
			{Name: secret, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}},
		}
	}
	like := snapshottest.Pod("like", snapshottest.Running("a"), snapshottest.Asking("cpu", "1"))
	like.Spec.Volumes, like.Spec.SchedulerName = volumes("one"), "other"
	other := *like.DeepCopy()
	other.Name, other.Spec.NodeName, other.Spec.Volumes = "other", "b", volumes("two")
	differs := *other.DeepCopy()
	differs.Name, differs.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "differs", "more"
	ported := *like.DeepCopy()
	ported.Name = "ported"
	ported.Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{HostPort: 80}}}}
	ported.Spec.ActiveDeadlineSeconds = new(int64(7))
	unready := *like.DeepCopy()
	unready.Name, unready.Status.Conditions = "unready", []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pods = append(pods, like, other, differs, ported, unready)
	decoded, _ := decodeAll(t, pods)
	for i, pod := range decoded {
		compareTrimmed(t, "pod "+pods[i].Name, pods[i].DeepCopy(), pod.DeepCopy())
	}
	if n := len(pods); &decoded[n-5].Spec.Containers[0] != &decoded[n-4].Spec.Containers[0] {
		t.Error("pods of a workload do not share their spec")
	}
}

func TestPodsThatAreTooLargeAreMarkedAsTheControllerMarksThem(t *testing.T) {
	t.Parallel()
	var pods []corev1.Pod
	for name, edit := range map[string]func(*corev1.Pod, map[string]string){
		"labels": func(p *corev1.Pod, m map[string]string) { p.Labels = m }, "selector": func(p *corev1.Pod, m map[string]string) { p.Spec.NodeSelector = m },
		"both": func(p *corev1.Pod, m map[string]string) { p.Labels, p.Spec.NodeSelector = m, m },
	} {
		for state, place := range map[string]func(*corev1.Pod){"waits": func(*corev1.Pod) {}, "runs": snapshottest.Running("a")} {
			m := map[string]string{}
			for i := range 1000 {
				m[fmt.Sprintf("example.com/%d", i)] = strings.Repeat("v", 60)
			}
			pod := snapshottest.Pod(name+"-"+state, snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"), place)
			edit(&pod, m)
			pods = append(pods, pod)
		}
	}
	decoded, _ := decodeAll(t, pods)
	trim := gather.Trim()
	for i, pod := range decoded {
		if _, err := trim(&pods[i]); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&pods[i], pod); diff != "" || facts.TooLarge(pod) == "" {
			t.Errorf("%s (-controller +command):\n%s", pod.Name, diff)
		}
	}
}

func TestOfPodsThatWaitNothingIsLostThatExplainTells(t *testing.T) {
	t.Parallel()
	pod := snapshottest.Pod("waits", snapshottest.Asking("cpu", "1", v1alpha1.ResourceGPUShared, "1"))
	pod.Spec.SchedulerName, pod.Spec.SchedulingGates = "other", []corev1.PodSchedulingGate{{Name: "quota"}}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("1")}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated", Message: "gated"}}
	pod.Annotations = map[string]string{"team": "a"}
	whole := pod.DeepCopy()
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	whole.Spec.Containers[0].Image, whole.Spec.Containers[0].Env = "image", []corev1.EnvVar{{Name: "A"}}
	decoded, _ := decodeAll(t, []corev1.Pod{*whole})
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Env = "", nil
	if diff := cmp.Diff(&pod, decoded[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheConditionsAndContainersOfPodsThatRunAreNotDecoded(t *testing.T) { //nolint:paralleltest // It counts allocations.
	allocations := func(many int) float64 {
		pod := snapshottest.Pod("runs", snapshottest.Running("a"), snapshottest.Asking("cpu", "1"))
		pod.Status.Conditions = nil
		for range many {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}})
		}
		message, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		reader := newPodReader()
		return testing.AllocsPerRun(10, func() {
			if _, _, err := reader.decode(message); err != nil {
				t.Error(err)
			}
		})
	}
	if without, with := allocations(0), allocations(20); with != without {
		t.Errorf("%v allocations with 20 conditions and containers, %v without", with, without)
	}
}

func TestPodsOfTheSameSpecHaveThePortOfTheirMetrics(t *testing.T) {
	t.Parallel()
	on := func(node string, port int32) corev1.Pod {
		pod := snapshottest.Pod("agent-"+node, snapshottest.Running(node), snapshottest.Asking("cpu", "1"))
		if port > 0 {
			pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "health", ContainerPort: 1}, {Name: "metrics", ContainerPort: port}}
		}
		return pod
	}
	_, ports := decodeAll(t, []corev1.Pod{on("a", 9450), on("b", 0), on("c", 9450), on("d", 7)})
	if diff := cmp.Diff([]int32{9450, 0, 9450, 7}, ports); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnOverviewMissesNoPodBeforeItIsDecoded(t *testing.T) {
	t.Parallel()
	for _, pod := range snapshottest.Large(20).Pods {
		message, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if overview.Concerns(&pod) && !concerns(message) {
			t.Errorf("an overview would not show pod %s", pod.Name)
		}
		less, err := ofPods.from(nil, message)
		if err != nil {
			t.Fatal(err)
		}
		if len(less) > len(message)*3/4 {
			t.Errorf("%d of %d bytes of pod %s are left", len(less), len(message), pod.Name)
		}
	}
}

// BenchmarkPods decodes the pods of 5,000 nodes.
func BenchmarkPods(b *testing.B) {
	var messages [][]byte
	for _, pod := range snapshottest.Large(5000).Pods {
		message, err := pod.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		messages = append(messages, message)
	}
	b.ReportAllocs()
	for b.Loop() {
		reader := newPodReader()
		for _, message := range messages {
			if _, _, err := reader.decode(message); err != nil {
				b.Fatal(err)
			}
		}
	}
}
