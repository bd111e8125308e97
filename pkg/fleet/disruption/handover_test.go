package disruption

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption/reason"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// leaver returns a machine that is about to be removed and runs pods with the names.
func leaver(name string, pods ...string) records.Machine {
	m := machine(name, replacingFor(time.Minute), withTaint, tainting(settle))
	for _, pod := range pods {
		p := snapshottest.Pod(pod, snapshottest.Running(name), snapshottest.OwnedBy("apps/v1", "ReplicaSet", "of-"+pod))
		m.Pods = append(m.Pods, &p)
	}
	return m
}

// steeredFrom taints a machine so that the scheduler prefers other nodes.
func steeredFrom(m *records.Machine) { SetSurplusTaint(m.Node, true) }

// planned sets the Node to which each pod moves and the replicas that it requests.
func planned(s *pass, placements map[string]string, replicas map[string]int64) {
	s.fakeWhatIf().placements_ = func([]string) map[string]placement {
		all := map[string]placement{}
		for pod, node := range placements {
			all["default/"+pod] = placement{node, planner.Resources{Replicas: max(1, replicas[pod])}}
		}
		return all
	}
}

func TestHandoverMovesPodsToOneNodeAfterAnother(t *testing.T) {
	t.Parallel()
	two := map[string]string{"small": "b", "big": "c"}
	// The pods of a move to b and c. The scheduler avoids b.
	given := func(change func(*pass)) *pass {
		s := allDrifted(leaver("a", "small", "big"), machine("b", busy, steeredFrom), machine("c", busy))
		planned(s, two, map[string]int64{"big": 4})
		for _, name := range []string{"b", "c"} {
			s.named(name).Candidate = nil
		}
		if change != nil {
			change(s)
		}
		return s
	}
	blocking := func(pods ...string) func(*pass) {
		return func(s *pass) {
			s.fakePods().blocker = func(asked []*corev1.Pod) string {
				for _, pod := range asked {
					for _, name := range pods {
						if pod.Name == name {
							return name + " may not be evicted"
						}
					}
				}
				return ""
			}
		}
	}
	before := func(d time.Duration, owners ...types.UID) func(*pass) {
		return func(s *pass) {
			h := handed{at: now.Add(-d), claims: map[string]bool{"a": true}, owners: map[types.UID]bool{}}
			for _, o := range owners {
				h.owners[o] = true
			}
			s.handed["gpu"] = h
		}
	}
	waits := func(owner string) func(*pass) {
		return func(s *pass) { s.waiting = []*corev1.Pod{waitingPod(owner)} }
	}
	ofBig := waitingPod("of-big").OwnerReferences[0].UID
	for name, c := range map[string]struct {
		change func(*pass)
		want   string
	}{
		"the largest pods go first":                               {nil, "HandOver a big"},
		"new pods must be steered away from the other node first": {func(s *pass) { *s.machines[1].Machine = machine("b", busy) }, ""},
		"new pods must not be steered away from the target":       {func(s *pass) { *s.machines[2].Machine = machine("c", busy, steeredFrom) }, ""},
		"the drain follows once the first group is bound":         {with(before(soon), only("small")), "Remove a"},
		"replacement pods may not exist yet":                      {before(soon - time.Millisecond), ""},
		"waits while the replacement pods are pending":            {with(before(5*time.Second, ofBig), waits("of-big")), ""},
		"other pending pods do not delay":                         {with(before(5*time.Second, ofBig), waits("another")), "HandOver a big"},
		"pods pending for too long do not delay":                  {with(before(rebindWithin, ofBig), waits("of-big")), "HandOver a big"},
		"the drain moves pods with one target":                    {func(s *pass) { planned(s, map[string]string{"small": "c", "big": "c"}, nil) }, "Remove a"},
		"a pod that cannot be evicted keeps the machine":          {blocking("big"), "Hold a"},
		"evictable pods continue after others have moved":         {with(blocking("big"), before(time.Minute), to("b")), "HandOver a small"},
		"evictable pods with one target continue too":             {with(blocking("big"), before(time.Minute), func(s *pass) { planned(s, map[string]string{"small": "c", "big": "c"}, nil) }), "HandOver a small"},
		"waits for pods that cannot be evicted":                   {with(blocking("big", "small"), before(evictionPatience-time.Second)), ""},
		"gives up on pods that cannot be evicted after a while":   {with(blocking("big", "small"), before(evictionPatience)), "Hold a"},
		"evictable pods go first if the pool bounds the drain":    {with(blocking("big"), forceful, to("b")), "HandOver a small"},
		"the bounded drain follows":                               {with(blocking("big", "small"), forceful), "Remove a"},
		"an unhealthy machine drains at once":                     {func(s *pass) { s.named("a").Candidate = &reason.Candidate{Reason: reason.Unhealthy, Urgent: true} }, "Remove a"},
		"a machine without a place for its pods waits":            {with(before(time.Minute), nowhereNow), "Hold a"},
		"consolidation without a place for pods stops":            {with(before(time.Minute), nowhereNow, onlyCheaper), "Stop a"},
		"consolidation waits if no pod was moved yet":             {with(nowhereNow, onlyCheaper), "Hold a"},
		"pods without replicas and DaemonSet pods are not handed over": {func(s *pass) {
			*s.machines[0].Machine = leaver("a")
			withDaemon(s.machines[0].Machine)
		}, "Remove a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			actions, again := decide(given(c.change))
			var got []string
			for _, a := range actions {
				got = append(got, fmt.Sprintf("%s %s", a.Step, a.Machine.Claim.Name))
				for _, pod := range a.Pods {
					got = append(got, pod.Name)
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if (c.want == "" || strings.HasPrefix(c.want, "HandOver")) && again > soon {
				t.Errorf("it looks again after %s", again)
			}
		})
	}
}

func waitingPod(owner string) *corev1.Pod {
	pod := snapshottest.Pod("again", snapshottest.OwnedBy("apps/v1", "ReplicaSet", owner))
	pod.OwnerReferences[0].UID = types.UID(owner)
	return &pod
}

// only leaves one pod on the machine.
func only(pod string) func(*pass) {
	return func(s *pass) {
		*s.machines[0].Machine = leaver("a", pod)
		to("b")(s)
	}
}

// to steers pods to one Node and away from the other.
func to(node string) func(*pass) {
	return func(s *pass) {
		for i, name := range []string{"b", "c"} {
			*s.machines[i+1].Machine = machine(name, busy)
			if name != node {
				steeredFrom(s.machines[i+1].Machine)
			}
		}
	}
}

func nowhereNow(s *pass) { s.fakeWhatIf().place_ = nowhere }

func onlyCheaper(s *pass) {
	s.named("a").Candidate = reason.Cheaper(1, 1)
	s.machines[0].Claim.Annotations[v1alpha1.ReplacingAnnotation] = string(karpv1.DisruptionReasonUnderutilized)
	s.pools["gpu"].Budgets[karpv1.DisruptionReasonUnderutilized] = 10
	steeredFrom(s.machines[0].Machine)
}

// spreads returns the node that the default scheduler prefers: one without a PreferNoSchedule taint, and among those the one with the lowest share of CPU
// requested.
func (s *simulation) spreads(nodes []string) string {
	rank := func(name string) float64 {
		node, asked := s.node(name), int64(0)
		for i := range s.cluster.Pods {
			if pod := &s.cluster.Pods[i]; pod.Spec.NodeName == name {
				asked += pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			}
		}
		share := float64(asked) / float64(node.Status.Allocatable.Cpu().MilliValue())
		if HasSurplusTaint(&records.Machine{Node: node}) {
			share += 3 // Taints have three times the weight.
		}
		return share
	}
	return slices.MinFunc(nodes, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
}

// Two pods that each need most of a machine move to the one that holds both, and ten small pods fill another one. The default scheduler alone would put most of
// the small pods where the large ones are planned.
func TestTightLayoutIsReachedWithSpreadingScheduler(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, 0, 1, true, true)
	s.prefers = s.spreads
	s.on("g4dn.12xlarge", 0)
	for i := range 12 {
		s.again(snapshottest.Pod("", snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web"), func(p *corev1.Pod) {
			cpu := "300m"
			if i >= 10 {
				cpu = "3600m"
			}
			snapshottest.Asking("cpu", cpu, "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")(p)
		}))
		snapshottest.Running(s.cluster.Nodes[0].Name)(&s.cluster.Pods[i])
	}
	s.cluster.Now = s.cluster.Now.Add(time.Hour)
	launched := s.made
	if !s.settles() {
		t.Fatalf("the simulation does not settle:\n%s", s)
	}
	const xlargeAnd2xlarge = 526_000 + 752_000
	if s.price() != xlargeAnd2xlarge || s.made > launched+12 {
		t.Errorf("the machines cost %s, and %d pods were made again:\n%s", usd(s.price()), s.made-launched, s)
	}
}
