package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

// restartsCost sets consolidation.restartCost: pods move once so much was wasted for each of them.
func restartsCost(usd string) func(*v1alpha1.GPUNodeClassSpec) {
	return func(spec *v1alpha1.GPUNodeClassSpec) { spec.Consolidation.RestartCost = usd }
}

// tally counts the pods of a namespace that run and are not terminating, at each change.
type tally struct {
	mu    sync.Mutex
	runs  map[types.UID]bool
	least int
}

// tally starts counting.
func (s *scene) tally() *tally {
	s.t.Helper()
	c := &tally{runs: map[types.UID]bool{}}
	for _, pod := range s.pods() {
		c.runs[pod.UID] = runs(&pod)
	}
	c.least = c.now()
	note := func(o any, gone bool) {
		if pod, ok := o.(*corev1.Pod); ok && pod.Namespace == s.name {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.runs[pod.UID] = !gone && runs(pod)
			c.least = min(c.least, c.now())
		}
	}
	informer, err := s.seen.GetInformer(s.t.Context(), &corev1.Pod{})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { note(o, false) }, UpdateFunc: func(_, o any) { note(o, false) }, DeleteFunc: func(o any) { note(o, true) },
	}); err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (c *tally) now() (n int) {
	for _, running := range c.runs {
		if running {
			n++
		}
	}
	return n
}

func runs(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase == corev1.PodRunning
}

// readyAgain sets running pods ready again, as a kubelet does once its Node is reachable again. Nodes become unreachable on a computer with few CPUs, and kwok
// sets pods ready only once.
func (s *scene) readyAgain() {
	for _, pod := range s.pods() {
		unready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue
		})
		if !runs(&pod) || !unready {
			continue
		}
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`))
		if err := s.api.Status().Patch(s.t.Context(), &pod, patch); client.IgnoreNotFound(err) != nil {
			s.t.Fatal(err)
		}
	}
}

// TestFleetShrinksAsPodsLeave removes half of the pods of every machine. The machines are removed in steps within the disruption budget, and the price
// only falls. There are never fewer running pods than their PodDisruptionBudget requires.
func TestFleetShrinksAsPodsLeave(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	const pods, kept = 200, 92
	s := w.scene(t, "cheaper")
	s.class("20s", restartsCost("0.001"))
	s.pool(poolOptions{budget: "4", requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	d := s.deploy("inference", pods)
	s.until(3*enough, "all pods run", func() (bool, string) { return s.running() == pods, fmt.Sprint(s.running()) })
	s.wantClaims(s.claims(), pods/10, "on-demand", pods/10*526_000)
	seen := map[string]int{}
	for _, pod := range s.pods() {
		if seen[pod.Spec.NodeName]++; seen[pod.Spec.NodeName] <= 5 {
			s.patch(&pod, fmt.Sprintf(`{"metadata":{"annotations":{%q:"-1000"}}}`, corev1.PodDeletionCost)) // The Deployment removes these pods first.
		}
	}
	s.scale(d, pods/2)
	s.until(enough, "half of the pods are gone", func() (bool, string) { return len(s.pods()) == pods/2, fmt.Sprint(len(s.pods())) })
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "inference"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt32(kept)), Selector: d.Spec.Selector,
	}}
	s.create(budget)
	began, running := time.Now(), s.tally()
	price, prices := total(alive(s.claims())), []int64{}
	s.until(3*enough, "half of the machines are gone, and all pods run", func() (bool, string) {
		s.readyAgain()
		now := total(alive(s.claims()))
		if now != price {
			prices = append(prices, now)
		}
		if now > price {
			t.Fatalf("the machines cost more than before: %d after %d\n%s", now, price, s.dump())
		}
		price = now
		there := slices.DeleteFunc(s.claims(), func(c claim) bool { return !c.gone.IsZero() })
		return len(there) == pods/2/10 && s.running() == pods/2 && len(s.pods()) == pods/2, fmt.Sprintf("%d machines, %d of %d pods run", len(there), s.running(), len(s.pods()))
	})
	came, longest, _ := w.history.waits(s.name, began)
	t.Logf("%d machines went in %s, %d at once; %d pods moved, and waited %s at most; %d ran at the least; the price was %v", pods/2/10,
		time.Since(began).Round(time.Second), most(s.claims()), came, longest, running.least, prices)
	if running.least < kept {
		t.Errorf("only %d pods ran at some point, their PodDisruptionBudget requires %d", running.least, kept)
	}
	if n := most(s.claims()); n > 4 {
		t.Errorf("%d machines went at once, with a budget of 4:\n%s", n, lines(s.claims()))
	}
	if n := len(s.claims()); n != pods/10 {
		t.Errorf("%d machines were launched in all, want the %d of the beginning:\n%s", n, pods/10, lines(s.claims()))
	}
	s.stays(settings.Settle+20*time.Second, "what is left stays", func() (bool, string) { return len(alive(s.claims())) == pods/2/10, lines(s.claims()) })
	s.until(enough, "no taint of Karve's is left", func() (bool, string) {
		for _, node := range s.nodes(s.name) {
			if tainted(&node, v1alpha1.SurplusTaintKey) || tainted(&node, v1alpha1.DisruptingTaintKey) {
				return false, fmt.Sprintf("%s has %v", node.Name, node.Spec.Taints)
			}
		}
		return true, ""
	})
	replaced := w.metric(t, w.karve, "karve_nodes_replacements_total", `nodepool="cheaper"`, `reason="Underutilized"`, `result="Done"`)
	idle := max(0, w.metric(t, w.karve, "karve_nodeclaims_deleted_total", `nodepool="cheaper"`, `reason="Idle"`))
	if replaced+idle != pods/2/10 || replaced < idle {
		t.Errorf("%v machines were counted as replaced and %v as idle, want %d, most of them replaced", replaced, idle, pods/2/10)
	}
}

// TestOversizedMachineIsReplacedBySmallerOne checks that a smaller machine comes once what the large one has cost too much pays for the restarts, and that it is ready
// before a pod is evicted.
func TestOversizedMachineIsReplacedBySmallerOne(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "smaller")
	s.class("20s", restartsCost("0.001"))
	s.pool(poolOptions{budget: "1"})
	large := s.deploy("large", 1, asking("5"))
	s.untilRunning(1)
	s.deploy("inference", 4)
	s.untilRunning(5)
	first := s.claims()
	if len(first) != 1 || first[0].instanceType != "g4dn.2xlarge" {
		t.Fatalf("want one g4dn.2xlarge:\n%s", lines(first))
	}
	began := time.Now()
	s.scale(large, 0)
	s.untilRunning(4)
	running := s.tally()
	s.until(enough, "the GPUNodeClass says what is wasted", func() (bool, string) {
		class := &v1alpha1.GPUNodeClass{}
		if err := s.api.Get(t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
			t.Fatal(err)
		}
		waste := class.Status.Waste
		return waste != nil && len(waste.Steps) == 1 && waste.Steps[0].Pods == 4 && waste.Steps[0].RestartUSD == "0.004" && waste.Steps[0].USDPerHour == "0.226", fmt.Sprintf("%+v", waste)
	})
	s.until(2*enough, "the large machine is gone, and all pods run", func() (bool, string) {
		s.readyAgain()
		return !s.claims()[0].gone.IsZero() && s.running() == 4 && len(s.pods()) == 4, lines(s.claims())
	})
	all := s.claims()
	if left := alive(all); len(all) != 2 || len(left) != 1 || left[0].instanceType != cheapest {
		t.Fatalf("want one %s in the end, and no other that was launched:\n%s", cheapest, lines(all))
	}
	came, longest, homeless := w.history.waits(s.name, began)
	t.Logf("%d pods moved in %s, and waited %s at most; %d ran at the least", came, time.Since(began).Round(time.Second), longest, running.least)
	saving := (752_000 - 526_000) / time.Hour.Seconds() // micro-dollars a second
	if launched, paid := all[1].first.Sub(began), time.Duration(4*1000/saving)*time.Second; launched < paid {
		t.Errorf("the smaller machine is launched after %s, before the large one has cost the restarts of 4 pods too much, which takes %s", launched, paid)
	}
	if homeless > 0 {
		t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
	}
}

// asking sets the CPU request of a pod.
func asking(cpu string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
}

// TestTightPlanIsKept has two pods that each need most of a machine and ten small ones, for two machines that they fill. The default scheduler
// would look at the small pods first, because they are older, spread them, and so take the room that the plan has for the large ones.
func TestTightPlanIsKept(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "filled")
	s.class(v1alpha1.IdleNever)
	began := time.Now()
	const light, heavy = 10, 2
	s.deploy("light", light, asking("350m"))
	s.deploy("heavy", heavy, asking("3700m"))
	s.untilWaiting(light + heavy) // Without a NodePool, so that one plan is made for all of them.
	s.pool(poolOptions{})
	s.untilRunning(light + heavy)
	if all := s.claims(); len(all) != 2 || total(all) != 526_000+752_000 {
		t.Errorf("want a g4dn.xlarge and a g4dn.2xlarge, and no other that was launched:\n%s", lines(all))
	}
	came, longest, _ := w.history.waits(s.name, began)
	t.Logf("%d pods waited %s at most", came, longest)
}

// TestTightLayoutIsReached moves two pods that each need most of a machine and ten small ones from one machine to two, which they fill. The
// default scheduler spreads pods, and would put the small ones where the plan has the large ones.
func TestTightLayoutIsReached(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "tight")
	s.class("20s", restartsCost("0.001"))
	s.pool(poolOptions{budget: "1"})
	const light, heavy = 10, 2
	huge := s.deploy("huge", 1, asks(v1alpha1.ResourceGPUShared, "11"))
	s.untilRunning(1)
	s.deploy("light", light, asking("350m"))
	s.deploy("heavy", heavy, asking("3700m"))
	s.untilRunning(1 + light + heavy)
	if first := s.claims(); len(first) != 1 || first[0].instanceType != "g4dn.12xlarge" {
		t.Fatalf("want one g4dn.12xlarge:\n%s", lines(first))
	}
	s.scale(huge, 0)
	s.untilRunning(light + heavy)
	began := time.Now()
	s.until(2*enough, "the large machine is gone, and all pods run", func() (bool, string) {
		s.readyAgain()
		return !s.claims()[0].gone.IsZero() && s.running() == light+heavy && len(s.pods()) == light+heavy, lines(s.claims())
	})
	came, longest, homeless := w.history.waits(s.name, began)
	t.Logf("%d pods moved in %s, and waited %s at most", came, time.Since(began).Round(time.Second), longest)
	if all := s.claims(); len(all) != 3 || total(alive(all)) != 526_000+752_000 {
		t.Errorf("want a g4dn.xlarge and a g4dn.2xlarge in the end, and no other that was launched:\n%s", lines(all))
	}
	if came != light+heavy || homeless > 0 {
		t.Errorf("%d pods moved, want each once; %d had to wait for a machine, up to %s", came, homeless, longest)
	}
}
