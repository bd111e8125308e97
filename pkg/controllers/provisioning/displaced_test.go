package provisioning

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// places is a cluster with a machine, and the seats of its pods.
type places struct {
	seats   seats
	state   func(time.Time) func(*karpv1.NodeClaim)
	at      time.Time // of the state of the machine
	lost    bool      // The machine is gone.
	pods    []corev1.Pod
	leaving []corev1.Pod // on a machine that is being replaced
}

func (p *places) view() *snapshot.View {
	c := Shared()
	xlarge := TypeNamed("g4dn.xlarge")
	add := func(name string, edits ...func(*karpv1.NodeClaim)) {
		claim := Claim(name, &c.NodePools[0], xlarge, edits...)
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, xlarge, 9))
	}
	if !p.lost {
		add("one", p.state(p.at))
	}
	if len(p.leaving) > 0 {
		add("leaving", Initialized(Now.Add(-time.Hour)), func(claim *karpv1.NodeClaim) {
			claim.Annotations[v1alpha1.ReplacingAnnotation] = "Drifted"
		})
	}
	c.Pods = append(append(c.Pods, p.pods...), p.leaving...)
	view := snapshot.Build(c)
	return &view
}

// round asks about a plan with pods on the machine, and with launches for others. It notes which of the launches are made.
func (p *places) round(now time.Time, on []string, made []int, launches ...[]string) displaced {
	view := p.view()
	plan := planner.Plan{}
	if len(on) > 0 && !p.lost {
		plan.Placements = []planner.Placement{{Node: 0, Pods: on}}
	}
	for _, pods := range launches {
		plan.Launches = append(plan.Launches, planner.Launch{Pods: pods})
	}
	d := p.seats.of(view, plan, now)
	p.seats.note(view, plan, d, made)
	return d
}

const (
	podA, podB, podC, podLarge = "default/a", "default/b", "default/c", "default/large"
)

// waitingPods returns three equal pods and a larger one.
func waitingPods() []corev1.Pod {
	return []corev1.Pod{Pod("a"), Pod("b"), Pod("c"), Pod("large", Asking("cpu", "2", v1alpha1.ResourceGPUShared, "1"))}
}

func TestLaunchWaitsWhilePlacesMayBecomeFree(t *testing.T) {
	t.Parallel()
	all := []string{podA, podB, podC, podLarge}
	for name, c := range map[string]struct {
		change func(*places)
		// on and launch are the pods of the second plan, after all had a place in the first one. after is the time between both.
		on, launch []string
		after      time.Duration
		waits      bool
	}{
		"a displaced pod":                            {nil, []string{podA, podB, podC}, []string{podLarge}, time.Second, true},
		"all of them":                                {nil, nil, all, time.Second, true},
		"with a new pod of the same class":           {func(p *places) { p.pods = append(p.pods, Pod("d")) }, []string{podA, podB, podC, podLarge}, []string{"default/d"}, time.Second, false},
		"with another new pod in it":                 {func(p *places) { p.pods = append(p.pods, Pod("d")) }, all, []string{podLarge, "default/d"}, time.Second, false},
		"a new pod took the seat of an equal one":    {func(p *places) { p.pods = append(p.pods, Pod("0")) }, []string{"default/0", podA, podB, podLarge}, []string{podC}, time.Second, false},
		"the machine has just started":               {func(p *places) { p.state, p.at = Initialized, Now.Add(5*time.Second) }, []string{podA}, []string{podLarge}, 12 * time.Second, true},
		"the machine has started a while ago":        {func(p *places) { p.state, p.at = Initialized, Now.Add(5*time.Second) }, []string{podA}, []string{podLarge}, 14 * time.Second, false},
		"the machine is gone":                        {func(p *places) { p.lost = true }, nil, []string{podLarge}, time.Second, false},
		"the machine is broken":                      {func(p *places) { p.at = Now.Add(-time.Hour) }, nil, []string{podLarge}, time.Second, false},
		"headroom":                                   {nil, all, []string{"headroom"}, time.Second, false},
		"a pod that runs on a machine that is going": {func(p *places) { p.leaving = []corev1.Pod{Pod("x", Running("leaving"))} }, all, []string{"default/x"}, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &places{state: Registered, at: Now, pods: waitingPods()}
			p.round(Now, all, nil)
			if c.change != nil {
				c.change(p)
			}
			d := p.round(Now.Add(c.after), c.on, nil, c.launch)
			if d.waits[0] != c.waits || (d.next > 0) != c.waits {
				t.Errorf("it waits: %t for %s, want %t", d.waits[0], d.next, c.waits)
			}
		})
	}
}

func TestLaunchForDisplacedPodIsMadeWhenItsTimeIsOver(t *testing.T) {
	t.Parallel()
	p := &places{state: Registered, at: Now, pods: waitingPods()}
	if d := p.round(Now, []string{podA, podB}, []int{0}, []string{podC, podLarge}); d.waits[0] {
		t.Fatal("a launch for new pods waits")
	}
	p.round(Now.Add(time.Second), []string{podA, podB, podC, podLarge}, nil)
	lost := Now.Add(2 * time.Second)
	if d := p.round(lost, []string{podA, podB, podLarge}, nil, []string{podC}); !d.waits[0] || d.next != displacedFor {
		t.Fatalf("it waits: %t, for %s", d.waits[0], d.next)
	}
	// The plan exchanges equal pods, and displaces another one. Neither lets the first one wait longer.
	if d := p.round(lost.Add(5*time.Second), []string{podB, podC}, nil, []string{podA}, []string{podLarge}); !d.waits[0] || !d.waits[1] || d.next != displacedFor-5*time.Second {
		t.Fatalf("it waits: %v, for %s", d.waits, d.next)
	}
	d := p.round(lost.Add(displacedFor), []string{podB, podC}, []int{0}, []string{podA}, []string{podLarge})
	if d.waits[0] || !d.since[0].Equal(lost) || !d.waits[1] || d.next != 5*time.Second {
		t.Fatalf("they wait: %v since %v, for %s", d.waits, d.since, d.next)
	}
	// The pod that had another machine launched for it has a place again, and may lose that too.
	if d := p.round(lost.Add(displacedFor+time.Second), []string{podB, podC}, nil, []string{podA, podLarge}); !d.waits[0] || d.next != 4*time.Second {
		t.Fatalf("it waits: %v, for %s", d.waits, d.next)
	}
}

func TestLaunchThatIsHeldBackStaysOneForNewPods(t *testing.T) {
	t.Parallel()
	p := &places{state: Registered, at: Now, pods: waitingPods()}
	for second := range 20 {
		if d := p.round(Now.Add(time.Duration(second)*time.Second), []string{podA}, nil, []string{podB}, []string{podC, podLarge}); d.waits[0] || d.waits[1] {
			t.Fatalf("after %d s they wait: %v", second, d.waits)
		}
	}
	// One launch is made. Plans may exchange its pod for an equal one, and the other launches stay new.
	p.round(Now.Add(20*time.Second), []string{podA}, []int{0}, []string{podB}, []string{podC, podLarge})
	if d := p.round(Now.Add(21*time.Second), []string{podA, podC}, nil, []string{podB, podLarge}); d.waits[0] {
		t.Error("the launch that was held back waits")
	}
}
