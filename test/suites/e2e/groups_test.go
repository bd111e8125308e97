package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestGroupsStartWhole has its own cluster, because the scheduler knows PodGroups only with a feature gate. In its subtests, ten pods fill a g4dn.xlarge.
func TestGroupsStartWhole(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	groupWorld(t).groupsStartWhole(t)
}

// TestGroupLargerThanTheLaunchWindow has its own cluster, because all pools share the launch window. A job of 400 pods needs 40 machines, of which ten may be launched at first.
func TestGroupLargerThanTheLaunchWindow(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := groupWorld(t)
	s := w.groupScene(t, "window", 0)
	s.job("train", 400)
	most := 0
	s.until(4*time.Minute, "the job runs", func() (bool, string) {
		var claims karpv1.NodeClaimList
		s.list(&claims)
		launched := 0
		for i := range claims.Items {
			if claims.Items[i].StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue() {
				launched++
			}
		}
		waiting := len(claims.Items) - launched
		most = max(most, waiting)
		if waiting > 10+2*launched {
			t.Errorf("%d NodeClaims wait for their launch, and %d are launched", waiting, launched)
		}
		running := s.runningOf("train")
		return running == 400, fmt.Sprintf("%d run, %d NodeClaims", running, len(claims.Items))
	})
	t.Logf("At most %d NodeClaims waited for their launch", most)
	s.wantTogether("train")
	if n := len(s.claims()); n != 40 {
		t.Errorf("%d machines for a job that fills forty:\n%s", n, lines(s.claims()))
	}
}

// TestControllerIsKilledWhileAGroupStarts has its own cluster because it kills the controller.
func TestControllerIsKilledWhileAGroupStarts(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	killedWhileAGroupStarts(t, groupWorld(t))
}

// groupWorld starts a cluster for one test, whose scheduler knows Kubernetes' own PodGroups.
func groupWorld(t *testing.T) *world {
	t.Helper()
	w := ownWorld(t, cluster.Config{KubernetesGates: "GenericWorkload=true", APIs: "scheduling.k8s.io/v1beta1=true", OnExit: func(cluster.Component, error) {}}, karve.Options{Alone: true})
	w.groups = groupAPI{
		object: func(name string, n int) *unstructured.Unstructured {
			return manifest("scheduling.k8s.io/v1beta1", "PodGroup", name, map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": n}}})
		},
		join: func(pod *corev1.Pod, group string) {
			pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new(group)}
		},
		beside: func(*corev1.PodSpec) {},
	}
	return w
}

// groupAPI is how pods are made members of groups.
type groupAPI struct {
	// object returns a PodGroup that needs n pods at once.
	object func(name string, n int) *unstructured.Unstructured
	join   func(pod *corev1.Pod, group string)
	// beside changes a pod of no group, so that the scheduler of groups schedules it.
	beside func(*corev1.PodSpec)
}

// groupsStartWhole runs what holds for each scheduler with groups.
func (w *world) groupsStartWhole(t *testing.T) {
	for name, f := range map[string]func(*testing.T, *world){
		"a job larger than the limit launches nothing": jobLargerThanTheLimit,
		"two jobs run one after the other":             jobsTakeTurns,
		"a refusal halfway":                            refusedHalfway,
		"members that do not exist yet":                incompleteGroup,
		"single pods do not take the room of a group":  roomOfAGroup,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f(t, w) })
	}
}

func killedWhileAGroupStarts(t *testing.T, w *world) {
	s := w.groupScene(t, "restart", 0)
	s.job("train", 30)
	s.until(enough, "a machine is launched", func() (bool, string) { return len(s.claims()) > 0, "" })
	for range 2 {
		if err := w.KillComponent(karve.Component); err != nil {
			t.Fatal(err)
		}
		if err := w.StartComponent(t.Context(), karve.Component); err != nil {
			t.Fatal(err)
		}
	}
	s.untilRunning(30)
	s.wantTogether("train")
	if n := len(s.claims()); n != 3 {
		t.Errorf("%d machines for a job that fills three:\n%s", n, lines(s.claims()))
	}
}

// groupScene returns a scene with a pool of g4dn.xlarge that may have so many machines, or any number if it is 0.
func (w *world) groupScene(t *testing.T, name string, machines int, requirements ...string) *scene {
	t.Helper()
	s := w.scene(t, "group-"+name)
	s.class(v1alpha1.IdleNever)
	o := poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: or(strings.Join(requirements, ","), cheapest)}}
	if machines > 0 {
		o.limits = map[string]string{"nvidia.com/gpu": fmt.Sprint(machines)}
	}
	s.pool(o)
	return s
}

// job creates a PodGroup that needs n pods at once, and the pods.
func (s *scene) job(name string, n int) {
	s.t.Helper()
	s.podGroup(name, n)
	s.members(name, 0, n)
}

func (s *scene) podGroup(name string, n int) {
	s.t.Helper()
	group := s.groups.object(name, n)
	group.SetNamespace(s.name)
	s.create(group)
}

// members creates the pods of a PodGroup with the numbers from one to below another, with changes.
func (s *scene) members(name string, from, to int, change ...func(*corev1.PodSpec)) {
	s.t.Helper()
	for i := from; i < to; i++ {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{"job": name}},
			Spec:       s.podSpec(change...),
		}
		s.groups.join(pod, name)
		s.create(pod)
	}
}

// runningOf returns how many pods of a job run.
func (s *scene) runningOf(job string) (n int) {
	for _, pod := range s.pods() {
		if pod.Labels["job"] == job && runs(&pod) {
			n++
		}
	}
	return n
}

// wantTogether fails if the pods of a job were bound with more time between them than one pass of the scheduler takes.
func (s *scene) wantTogether(job string) {
	s.t.Helper()
	var first, last time.Time
	for name, at := range s.history.bound(s.name) {
		if !strings.HasPrefix(name, s.name+"/"+job+"-") {
			continue
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	if apart := last.Sub(first); first.IsZero() || apart > 10*time.Second {
		s.t.Errorf("the pods of job %s were bound within %s", job, apart)
	}
}

func (s *scene) deleteJob(name string) {
	s.t.Helper()
	if err := s.api.DeleteAllOf(s.t.Context(), &corev1.Pod{}, client.InNamespace(s.name), client.MatchingLabels{"job": name}, client.GracePeriodSeconds(0)); err != nil {
		s.t.Fatal(err)
	}
}

func jobLargerThanTheLimit(t *testing.T, w *world) {
	s := w.groupScene(t, "large", 2)
	s.job("train", 30)
	s.untilEvent("Pod", "train-0", "GroupDoesNotFit", "PodGroup "+s.name+"/train needs a place for 30 pods at once, and there is room for 20", "spec.limits")
	s.untilEvent("PodGroup", "train", "GroupDoesNotFit", "and there is room for 20")
	s.stays(15*time.Second, "no machine is launched", func() (bool, string) { return len(s.claims()) == 0, lines(s.claims()) })
}

func jobsTakeTurns(t *testing.T, w *world) {
	s := w.groupScene(t, "turns", 2)
	s.job("first", 20)
	s.until(enough, "a machine is launched", func() (bool, string) { return len(s.claims()) > 0, "" })
	s.job("second", 15)
	s.until(enough, "the first job runs", func() (bool, string) { return s.runningOf("first") == 20, fmt.Sprint(s.runningOf("first")) })
	s.wantTogether("first")
	s.untilEvent("Pod", "second-0", "GroupDoesNotFit", "needs a place for 15 pods at once, and there is room for 0")
	if n := s.runningOf("second"); n > 0 {
		t.Errorf("%d pods of the second job run beside the first", n)
	}
	s.deleteJob("first")
	s.until(enough, "the second job runs", func() (bool, string) { return s.runningOf("second") == 15, fmt.Sprint(s.runningOf("second")) })
	s.wantTogether("second")
	if n := len(s.claims()); n != 2 {
		t.Errorf("%d machines, want two:\n%s", n, lines(s.claims()))
	}
}

// refusedHalfway lets the cloud refuse a type of which the plan has one machine.
func refusedHalfway(t *testing.T, w *world) {
	s := w.groupScene(t, "refused", 0, cheapest, "g4dn.2xlarge")
	w.AWS().Refuse(aws.Refusal{Type: "g4dn.2xlarge"})
	t.Cleanup(func() { w.AWS().Allow(aws.Refusal{Type: "g4dn.2xlarge"}) })
	s.podGroup("train", 13)
	s.members("train", 0, 10)
	s.members("train", 10, 13, asks(corev1.ResourceCPU, "2"))
	s.until(enough, "the job runs", func() (bool, string) { return s.runningOf("train") == 13, fmt.Sprint(s.runningOf("train")) })
	s.wantTogether("train")
	if n, there := len(s.instances()), alive(s.claims()); n != len(there) {
		t.Errorf("%d machines for %d NodeClaims:\n%s", n, len(there), lines(s.claims()))
	}
}

func incompleteGroup(t *testing.T, w *world) {
	s := w.groupScene(t, "incomplete", 0)
	s.podGroup("train", 12)
	s.members("train", 0, 8)
	s.stays(10*time.Second, "no machine is launched", func() (bool, string) { return len(s.claims()) == 0, lines(s.claims()) })
	s.members("train", 8, 12)
	s.untilRunning(12)
	s.wantTogether("train")
}

// roomOfAGroup creates single pods while the machines of a job start. They find no room before the job has its own.
func roomOfAGroup(t *testing.T, w *world) {
	s := w.groupScene(t, "room", 2)
	s.job("train", 15)
	s.until(enough, "the machines of the job are launched", func() (bool, string) { return len(s.claims()) == 2, lines(s.claims()) })
	for i := range 12 {
		s.pod(fmt.Sprintf("single-%d", i), s.groups.beside)
	}
	s.until(enough, "the job runs", func() (bool, string) { return s.runningOf("train") == 15, fmt.Sprint(s.runningOf("train")) })
	s.wantTogether("train")
	s.until(enough, "single pods have the room that is left", func() (bool, string) { return s.running() == 20, fmt.Sprint(s.running()) })
}
