package repair

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var (
	now         = snapshottest.Now
	tolerations = Tolerations{NotReady: 30 * time.Minute, GPUFault: 10 * time.Minute, Replicas: 10 * time.Minute}
)

// machine returns a healthy machine that started a day ago.
func machine(name string, edits ...func(*records.Machine)) records.Machine {
	pool, xlarge := snapshottest.Pool("gpu", "gpu"), snapshottest.TypeNamed("g4dn.xlarge")
	at := now.Add(-24 * time.Hour)
	claim := snapshottest.Claim(name, &pool, xlarge, snapshottest.Initialized(at), func(c *karpv1.NodeClaim) { c.CreationTimestamp = metav1.NewTime(at) })
	node := snapshottest.Node(&claim, xlarge, 10)
	m := records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(claim.Annotations)}
	withCondition(corev1.NodeReady, corev1.ConditionTrue, 24*time.Hour)(&m)
	for _, edit := range edits {
		edit(&m)
	}
	return m
}

// withCondition sets a condition of the Node that has lasted this long. The kubelet's last heartbeat was a second ago.
func withCondition(conditionType corev1.NodeConditionType, status corev1.ConditionStatus, ago time.Duration, reason ...string) func(*records.Machine) {
	return func(m *records.Machine) {
		c := conditionOf(m.Node, conditionType)
		if c == nil {
			m.Node.Status.Conditions = append(m.Node.Status.Conditions, corev1.NodeCondition{Type: conditionType})
			c = conditionOf(m.Node, conditionType)
		}
		c.Status, c.Reason, c.Message = status, strings.Join(reason, ""), "words of its own"
		c.LastTransitionTime, c.LastHeartbeatTime = metav1.NewTime(now.Add(-ago)), metav1.NewTime(now.Add(-time.Second))
	}
}

func notReady(ago time.Duration) func(*records.Machine) {
	return withCondition(corev1.NodeReady, corev1.ConditionUnknown, ago)
}

// short lets the Node expose the given number of replicas. The shortage was first seen this long ago.
func short(replicas int64, ago time.Duration) func(*records.Machine) {
	return func(m *records.Machine) {
		node := snapshottest.Node(m.Claim, m.Type, replicas)
		m.Node.Status.Allocatable = node.Status.Allocatable
		m.Node.Annotations[v1alpha1.ReplicasShortSinceAnnotation] = now.Add(-ago).Format(time.RFC3339)
	}
}

func TestFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		machine records.Machine
		reason  string // "" for none
		left    time.Duration
		force   bool
	}{
		"a healthy machine":                                    {machine("m"), "", 0, false},
		"an unreachable Node":                                  {machine("m", notReady(time.Minute)), "Ready", 29 * time.Minute, true},
		"a Node that reports NotReady":                         {machine("m", withCondition(corev1.NodeReady, corev1.ConditionFalse, 40*time.Minute)), "Ready", -10 * time.Minute, true},
		"a NotReady Node without a transition time":            {machine("m", notReady(0), func(m *records.Machine) { m.Node.Status.Conditions[0].LastTransitionTime = metav1.Time{} }), "Ready", 30 * time.Minute, true},
		"a GPU that needs a reset":                             {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, 4*time.Minute, nodecontract.ReasonReset)), nodecontract.HardwareCondition, 6 * time.Minute, false},
		"a GPU that the driver wants drained":                  {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, 4*time.Minute, nodecontract.ReasonDrain)), nodecontract.HardwareCondition, 6 * time.Minute, false},
		"a lost GPU":                                           {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, 4*time.Minute, nodecontract.ReasonLost)), nodecontract.HardwareCondition, -3 * time.Minute, false},
		"a GPU that needs replacement":                         {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, 30*time.Second, nodecontract.ReasonReplace)), nodecontract.HardwareCondition, 30 * time.Second, false},
		"GPUs with unknown health":                             {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionUnknown, time.Hour)), "", 0, false},
		"healthy GPUs":                                         {machine("m", withCondition(nodecontract.HardwareCondition, corev1.ConditionTrue, time.Hour)), "", 0, false},
		"a network failure":                                    {machine("m", withCondition("NetworkingReady", corev1.ConditionFalse, 10*time.Minute)), "NetworkingReady", 20 * time.Minute, false},
		"disk pressure":                                        {machine("m", withCondition(corev1.NodeDiskPressure, corev1.ConditionTrue, time.Hour)), "", 0, false},
		"replicas missing for a moment":                        {machine("m", short(0, 4*time.Minute)), "", 0, false},
		"replicas missing for long":                            {machine("m", short(9, 6*time.Minute)), ReplicasMissing, 4 * time.Minute, false},
		"replicas that came back":                              {machine("m", short(10, time.Hour)), "", 0, false},
		"replicas replaced by another plugin":                  {machine("m", short(0, time.Hour), withCondition(nodecontract.SharingCondition, corev1.ConditionFalse, time.Hour, "StandingBack")), "", 0, false},
		"replicas missing for an invalid configuration":        {machine("m", short(0, time.Hour), withCondition(nodecontract.SharingCondition, corev1.ConditionFalse, time.Hour, "ConfigurationRefused")), "", 0, false},
		"replicas missing because somebody has cordoned a GPU": {machine("m", short(0, time.Hour), withCondition(nodecontract.CordonCondition, corev1.ConditionTrue, time.Hour)), "", 0, false},
		"replicas missing after a cordon":                      {machine("m", short(0, time.Hour), withCondition(nodecontract.CordonCondition, corev1.ConditionFalse, time.Hour)), ReplicasMissing, -50 * time.Minute, false},
		"replicas missing without GPUs":                        {machine("m", short(0, time.Hour), withCondition(nodecontract.SharingCondition, corev1.ConditionFalse, time.Hour, "NoGPUs")), ReplicasMissing, -50 * time.Minute, false},
		"the shortest toleration wins":                         {machine("m", notReady(time.Minute), withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, time.Minute)), nodecontract.HardwareCondition, 9 * time.Minute, false},
		"a due forceful fault wins":                            {machine("m", notReady(30*time.Minute), withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, time.Hour)), "Ready", 0, true},
		"an uninitialized machine is not unhealthy":            {starting(), "", 0, false},
		"a machine without its Node is not unhealthy":          {machine("m", func(m *records.Machine) { m.Node = nil }), "", 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tolerations.Fault(&c.machine, now)
			if s == nil {
				if c.reason != "" {
					t.Errorf("it is not unhealthy, want %s", c.reason)
				}
				return
			}
			if s.Reason != c.reason || s.Until.Sub(now) != c.left || s.Forceful != c.force {
				t.Errorf("it is unhealthy with %s for another %s, forceful %t; want %q, %s, %t", s.Reason, s.Until.Sub(now), s.Forceful, c.reason, c.left, c.force)
			}
		})
	}
}

func starting() records.Machine {
	pool, xlarge := snapshottest.Pool("gpu", "gpu"), snapshottest.TypeNamed("g4dn.xlarge")
	claim := snapshottest.Claim("m", &pool, xlarge, snapshottest.Registered(now.Add(-time.Hour)))
	node := snapshottest.Node(&claim, xlarge, 0)
	m := records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(claim.Annotations)}
	notReady(time.Hour)(&m)
	return m
}

// fleet returns n machines. The edits apply to the first ones, one each.
func fleet(n int, edits ...func(*records.Machine)) (*facts.Cluster, []records.Machine) {
	machines := make([]records.Machine, n)
	for i := range machines {
		machines[i] = machine(fmt.Sprintf("m-%02d", i))
		if i < len(edits) {
			edits[i](&machines[i])
		}
	}
	return clusterOf(machines), machines
}

func clusterOf(machines []records.Machine) *facts.Cluster {
	c := snapshottest.Empty()
	for i := range machines {
		c.Nodes = append(c.Nodes, *machines[i].Node)
	}
	return c
}

func TestAtMostFifthOfPoolIsRepaired(t *testing.T) {
	t.Parallel()
	unhealthy := notReady(time.Hour)
	borneStill := withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, time.Minute)
	for name, c := range map[string]struct {
		machines int
		edits    []func(*records.Machine)
		due      int
	}{
		"a single machine is repaired":                              {1, list(unhealthy), 1},
		"one of five is repaired":                                   {5, list(unhealthy), 1},
		"two of five are not repaired":                              {5, list(unhealthy, unhealthy), 0},
		"two of six are repaired because a fifth is rounded up":     {6, list(unhealthy, unhealthy), 2},
		"a tolerated machine counts":                                {5, list(unhealthy, borneStill), 0},
		"a tolerated machine is not repaired below the limit":       {6, list(unhealthy, borneStill), 1},
		"a recovered machine that is being replaced counts":         {5, list(unhealthy, replacing), 0},
		"a machine replaced for another reason does not count":      {5, list(unhealthy, drifting), 1},
		"a deleted machine that becomes unreachable does not count": {5, list(unhealthy, silentAs(deleting, drifting)), 1},
		"a machine deleted because it was unhealthy counts":         {5, list(unhealthy, silentAs(deleting, replacing)), 0},
		"an overdue deleted machine counts":                         {5, list(unhealthy, func(m *records.Machine) { unhealthy(m); deleting(m) }), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, machines := fleet(c.machines, c.edits...)
			// All other nodes are healthy, so that the cluster itself is not at fault.
			for i := range 20 {
				cluster.Nodes = append(cluster.Nodes, *machine(fmt.Sprintf("other-%d", i)).Node)
			}
			d := Diagnose(cluster, machines, tolerations)
			due := 0
			for _, unhealthy := range d.Cases {
				if replaced(unhealthy) {
					due++
				}
			}
			if due != c.due {
				t.Errorf("%d are replaced, want %d: %+v", due, c.due, d)
			}
			if closed := d.Pools["gpu"].Closed; (closed == TooManyUnhealthy) != (c.due == 0) {
				t.Errorf("the pool is closed by %q", closed)
			}
		})
	}
}

func replacing(m *records.Machine) { m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = Unhealthy }

func drifting(m *records.Machine) {
	m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = "NodePoolDrifted"
}

func deleting(m *records.Machine) { m.Claim.DeletionTimestamp = &metav1.Time{Time: now} }

// silentAs makes the Node of a machine not ready for a second, and applies further changes.
func silentAs(changes ...func(*records.Machine)) func(*records.Machine) {
	return func(m *records.Machine) {
		notReady(time.Second)(m)
		for _, change := range changes {
			change(m)
		}
	}
}

func list(edits ...func(*records.Machine)) []func(*records.Machine) { return edits }

func TestMessageNamesUnhealthyMachinesAndRemedy(t *testing.T) {
	t.Parallel()
	cluster, machines := fleet(5, notReady(time.Hour), withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, time.Hour))
	d := Diagnose(cluster, machines, tolerations)
	for _, part := range []string{"2 of 5", "more than 1", "m-00 (Ready), m-01 (AcceleratedHardwareReady)", "delete the NodeClaims"} {
		if message := d.Pools["gpu"].Message; !strings.Contains(message, part) {
			t.Errorf("the pool's message lacks %q: %s", part, message)
		}
	}
	if kept := d.Cases["m-00"].Kept; kept != d.Pools["gpu"].Message {
		t.Errorf("the machine is kept because %q", kept)
	}
}

// TestZoneOutageRepairsNoMachine uses pools with one machine each, for which a limit by share of a pool has no effect.
func TestZoneOutageRepairsNoMachine(t *testing.T) {
	t.Parallel()
	pools := func(machines []records.Machine) {
		for i := range machines {
			machines[i].Claim.Labels[karpv1.NodePoolLabelKey] = fmt.Sprintf("pool-%d", i)
		}
	}
	zone := func(name string) func(*records.Machine) {
		return func(m *records.Machine) { m.Node.Labels[corev1.LabelTopologyZone] = name }
	}
	both := func(a, b func(*records.Machine)) func(*records.Machine) {
		return func(m *records.Machine) { a(m); b(m) }
	}
	out, broken := both(zone("b"), notReady(time.Hour)), both(zone("b"), withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, time.Hour))
	for name, c := range map[string]struct {
		edits []func(*records.Machine)
		want  []bool
	}{
		"three of three in a zone is a zone outage":      {list(out, out, out), []bool{false, false, false}},
		"two of two in a zone is no outage":              {list(out, out), []bool{true, true}},
		"three of six in a zone is no outage":            {list(out, out, out, zone("b"), zone("b"), zone("b")), []bool{true, true, true}},
		"a broken GPU is repaired despite a zone outage": {list(out, out, out, broken), []bool{false, false, false, true}},
		"a machine in another zone is repaired":          {list(out, out, out, notReady(time.Hour)), []bool{false, false, false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, machines := fleet(12, c.edits...)
			pools(machines)
			d := Diagnose(cluster, machines, tolerations)
			for i, want := range c.want {
				got := d.Cases[machines[i].Claim.Name]
				if replaced(got) != want {
					t.Errorf("machine %d is replaced: %t, want %t: %+v", i, replaced(got), want, got)
				}
				if !want && (d.Pools[machines[i].Pool()].Closed != ZoneUnhealthy || !strings.Contains(got.Kept, "zone b")) {
					t.Errorf("machine %d is kept because %q, its pool closed by %q", i, got.Kept, d.Pools[machines[i].Pool()].Closed)
				}
			}
		})
	}
	t.Run("all zones unreachable is a cluster outage", func(t *testing.T) {
		t.Parallel()
		cluster, machines := fleet(4, out, notReady(time.Hour), both(zone("c"), notReady(time.Hour)))
		pools(machines)
		for name, got := range Diagnose(cluster, machines, tolerations).Cases {
			if replaced(got) || !strings.Contains(got.Kept, "the cluster") {
				t.Errorf("%s: %+v", name, got)
			}
		}
	})
}

func TestDeletedMachinesAreNoZoneOutage(t *testing.T) {
	t.Parallel()
	going := silentAs(deleting)
	cluster, machines := fleet(4, going, going, going)
	if health := Diagnose(cluster, machines, tolerations).Pools["gpu"]; health.Closed != "" {
		t.Errorf("three of four machines of a zone are given back, and the pool is closed by %s: %s", health.Closed, health.Message)
	}
}

func TestClockJumpMakesNoMachineUnhealthy(t *testing.T) {
	t.Parallel()
	cluster, machines := fleet(10, notReady(time.Minute))
	cluster.Now = now.Add(24 * time.Hour)
	if got := Diagnose(cluster, machines, tolerations).Cases["m-00"]; replaced(got) || got.Wait != 14*time.Minute+time.Second {
		t.Errorf("a day ahead: %+v, want it tolerated for another %s", got, 14*time.Minute+time.Second)
	}
	cluster.Now = now.Add(-24 * time.Hour)
	if got := Diagnose(cluster, machines, tolerations).Cases["m-00"]; replaced(got) {
		t.Errorf("a day behind: %+v", got)
	}
	cluster.Now = now.Add(29 * time.Minute)
	withCondition(corev1.NodeReady, corev1.ConditionTrue, 0)(&machines[1])
	machines[1].Node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(cluster.Now)
	cluster.Nodes[1] = *machines[1].Node
	if got := Diagnose(cluster, machines, tolerations).Cases["m-00"]; !replaced(got) {
		t.Errorf("while another kubelet sends heartbeats: %+v, want the machine due", got)
	}
}

func TestAnnotationKeepsUnhealthyMachine(t *testing.T) {
	t.Parallel()
	for name, keep := range map[string]func(*records.Machine){
		"by the Node":  func(m *records.Machine) { m.Node.Annotations[DoNotRepair] = "true" },
		"by the claim": func(m *records.Machine) { m.Claim.Annotations[DoNotRepair] = "true" },
	} {
		cluster, machines := fleet(10, func(m *records.Machine) { notReady(time.Hour)(m); keep(m) })
		if got := Diagnose(cluster, machines, tolerations).Cases["m-00"]; replaced(got) || !strings.Contains(got.Kept, DoNotRepair) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestReplacementsInRowWaitLongerEachTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		repairs string
		age     time.Duration
		due     bool
	}{
		{"", time.Minute, true},
		{"nonsense", time.Minute, true},
		{"-1", time.Minute, true},
		{"1", 29 * time.Minute, false},
		{"1", 30 * time.Minute, true},
		{"3", 119 * time.Minute, false},
		{"3", 2 * time.Hour, true},
		{"1000", 11 * time.Hour, false},
		{"1000", 12 * time.Hour, true},
	} {
		cluster, machines := fleet(10, func(m *records.Machine) {
			notReady(time.Hour)(m)
			m.Claim.CreationTimestamp = metav1.NewTime(now.Add(-c.age))
			m.Claim.Annotations[v1alpha1.RepairsAnnotation] = c.repairs
		})
		if got := Diagnose(cluster, machines, tolerations).Cases["m-00"]; replaced(got) != c.due || !c.due && !strings.Contains(got.Kept, v1alpha1.RepairsAnnotation) {
			t.Errorf("%q at the age of %s: %+v, want due %t", c.repairs, c.age, got, c.due)
		}
	}
}

func TestReplacementsInRowAreCounted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replacing, repairs string
		lived              time.Duration
		want               int
	}{
		"a machine replaced for another reason":      {"NodePoolDrifted", "2", time.Minute, 0},
		"a machine that stays":                       {"", "2", time.Minute, 0},
		"the first repair":                           {Unhealthy, "", 20 * time.Minute, 1},
		"another repair soon after":                  {Unhealthy, "1", time.Hour, 2},
		"another repair after a long healthy period": {Unhealthy, "1", 61 * time.Minute, 1},
	} {
		m := machine("m", func(m *records.Machine) {
			m.Claim.Annotations[v1alpha1.ReplacingAnnotation] = c.replacing
			m.Claim.Annotations[v1alpha1.RepairsAnnotation] = c.repairs
			m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = m.Claim.CreationTimestamp.Add(c.lived).Format(time.RFC3339)
		})
		if got := RepairsOfNext(&m); got != c.want {
			t.Errorf("%s: RepairsOfNext is %d, want %d", name, got, c.want)
		}
	}
}

// replaced reports whether the machine is to be replaced now.
func replaced(c Case) bool { return c.Wait <= 0 && c.Kept == "" }
