package breaker

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

const (
	timeout = 10 * time.Minute
	retry   = 10 * time.Minute
)

// machine returns a machine of the given age that registered immediately and exposes the given number of its ten replicas. It keeps its startup taint until it
// exposes all of them.
func machine(name string, age time.Duration, replicas int64) snapshot.Machine {
	pool := snapshottest.Pool("gpu", "gpu", snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	at := now.Add(-age)
	stage := snapshottest.Registered(at)
	if replicas >= 10 {
		stage = snapshottest.Initialized(at)
	}
	claim := snapshottest.Claim(name, &pool, xlarge, stage, func(c *karpv1.NodeClaim) { c.CreationTimestamp = metav1.NewTime(at.Truncate(time.Second)) })
	node := snapshottest.Node(&claim, xlarge, replicas)
	return snapshot.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: snapshot.PromiseOf(claim.Annotations)}
}

// uninitialized returns a machine that registered this long ago and exposes its replicas, but has another startup taint that delays its initialization.
func uninitialized(age time.Duration) snapshot.Machine {
	m := machine("uninitialized", age, 9)
	for name := range m.Node.Status.Allocatable {
		if name == v1alpha1.ResourceGPUShared {
			m.Node.Status.Allocatable[name] = *resource.NewQuantity(10, resource.DecimalSI)
		}
	}
	m.Node.Spec.Taints = []corev1.Taint{{Key: "ebs.csi.aws.com/agent-not-ready", Effect: corev1.TaintEffectNoExecute}}
	return m
}

func been(s metav1.ConditionStatus, ago time.Duration) *status.Condition {
	return &status.Condition{Type: v1alpha1.ConditionReplicasHealthy, Status: s, Reason: "Before", Message: "before", LastTransitionTime: metav1.NewTime(now.Add(-ago))}
}

func TestBreaker(t *testing.T) {
	t.Parallel()
	working := func(age time.Duration) snapshot.Machine { return machine("works", age, 10) }
	broken := func(age time.Duration) snapshot.Machine { return machine("broken", age, 0) }
	starting := func(age time.Duration) snapshot.Machine { return machine("starts", age, 0) }
	late := func(age, started time.Duration) snapshot.Machine {
		m := working(age)
		for i := range m.Claim.Status.Conditions {
			if condition := &m.Claim.Status.Conditions[i]; condition.Type == karpv1.ConditionTypeInitialized {
				condition.LastTransitionTime = metav1.NewTime(now.Add(-started))
			}
		}
		return m
	}
	for name, c := range map[string]struct {
		before   *status.Condition
		machines []snapshot.Machine
		want     metav1.ConditionStatus
		reason   string
	}{
		"a pool without machines is healthy":                             {nil, nil, "True", ReasonReplicasHealthy},
		"machines that work keep it so":                                  {been("True", time.Hour), list(working(time.Hour)), "True", ReasonReplicasHealthy},
		"a machine that starts is no reason to worry":                    {been("True", time.Hour), list(starting(timeout - time.Second)), "True", ReasonReplicasHealthy},
		"a broken machine opens the breaker":                             {been("True", time.Hour), list(working(time.Hour), broken(timeout)), "False", ReasonReplicasMissing},
		"also in a pool that was never looked at":                        {nil, list(broken(time.Hour)), "False", ReasonReplicasMissing},
		"an open breaker stays open":                                     {been("False", retry-time.Second), list(broken(time.Hour)), "False", "Before"},
		"also when the broken machine is gone":                           {been("False", retry-time.Second), nil, "False", "Before"},
		"a machine that worked before does not close it":                 {been("False", time.Minute), list(working(time.Hour)), "False", "Before"},
		"so does one that was only slow":                                 {been("False", time.Minute), list(late(time.Hour, time.Second)), "True", ReasonReplicasHealthy},
		"also when one was to be tried meanwhile":                        {been("Unknown", time.Minute), list(late(time.Hour, time.Second)), "True", ReasonReplicasHealthy},
		"but not one that had started before":                            {been("Unknown", time.Minute), list(late(time.Hour, 2*time.Minute)), "Unknown", "Before"},
		"after a while one machine may be tried":                         {been("False", retry), nil, "Unknown", ReasonProbing},
		"also while the broken one is still there":                       {been("False", retry), list(broken(time.Hour)), "Unknown", ReasonProbing},
		"the machine that is tried is waited for":                        {been("Unknown", 5*time.Minute), list(starting(5*time.Minute - time.Second)), "Unknown", "Before"},
		"its replicas close the breaker":                                 {been("Unknown", 5*time.Minute), list(working(5*time.Minute - time.Second)), "True", ReasonReplicasHealthy},
		"even when its claim was created in the second of the change":    {been("Unknown", 5*time.Minute-300*time.Millisecond), list(working(5 * time.Minute)), "True", ReasonReplicasHealthy},
		"its breaking opens it again":                                    {been("Unknown", timeout+time.Minute), list(broken(timeout + time.Second)), "False", ReasonReplicasMissing},
		"also when its claim was created in the second of the change":    {been("Unknown", timeout-300*time.Millisecond), list(broken(timeout)), "False", ReasonReplicasMissing},
		"also when the API server's clock is behind ours":                {been("Unknown", timeout-5*time.Second), list(broken(timeout - 0)), "False", ReasonReplicasMissing},
		"one that broke before the trial is no news":                     {been("Unknown", time.Minute), list(broken(timeout + time.Hour)), "Unknown", "Before"},
		"a trial that breaks while an old one still works opens it":      {been("Unknown", timeout), list(working(time.Hour), broken(timeout-0)), "False", ReasonReplicasMissing},
		"what a clock wrote that was ahead is tried at once":             {been("False", -time.Hour), list(broken(time.Hour)), "Unknown", ReasonProbing},
		"or closed, when nothing is broken":                              {been("Unknown", -time.Hour), list(working(time.Minute)), "True", ReasonReplicasHealthy},
		"or opened, when something is":                                   {been("Unknown", -time.Hour), list(broken(timeout)), "False", ReasonReplicasMissing},
		"a little ahead is as good as now":                               {been("False", -time.Minute), list(broken(time.Hour)), "False", "Before"},
		"one that broke before it was closed leaves it closed":           {been("True", time.Minute), list(broken(timeout + time.Hour)), "True", ReasonReplicasHealthy},
		"one that breaks after it opens it":                              {been("True", time.Minute), list(broken(timeout + 30*time.Second)), "False", ReasonReplicasMissing},
		"a trial that nobody asks for ends":                              {been("Unknown", lifecycle.ProbeRetries*retry), list(broken(24 * time.Hour)), "True", ReasonReplicasHealthy},
		"but not while a machine is on its way":                          {been("Unknown", lifecycle.ProbeRetries*retry), list(starting(time.Minute)), "Unknown", "Before"},
		"a trial whose replicas came and that does not start is open":    {been("Unknown", time.Minute), list(uninitialized(30 * time.Second)), "Unknown", "Before"},
		"and opens it again when it breaks":                              {been("Unknown", timeout+time.Minute), list(uninitialized(timeout)), "False", ReasonReplicasMissing},
		"a machine that mends while the breaker is open closes it early": {been("False", time.Minute), list(working(30 * time.Second)), "True", ReasonReplicasHealthy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Next(c.before, c.machines, now, timeout, retry)
			if got.Status != c.want || got.Reason != c.reason || got.Type != v1alpha1.ConditionReplicasHealthy {
				t.Errorf("got %s %s %s: %s; want %s, %s", got.Type, got.Status, got.Reason, got.Message, c.want, c.reason)
			}
		})
	}
}

func TestOpenBreakerReportsBrokenMachinesAndRetryTime(t *testing.T) {
	t.Parallel()
	got := Next(nil, list(machine("gpu-1", time.Hour, 3), machine("gpu-2", time.Hour, 10)), now, timeout, retry)
	for _, part := range []string{"gpu-1 (3 of 10 nvidia.com/gpu.shared)", "device plugin", "2026-03-01T12:10:00Z"} {
		if !strings.Contains(got.Message, part) {
			t.Errorf("the message lacks %q: %s", part, got.Message)
		}
	}
	if strings.Contains(got.Message, "gpu-2") {
		t.Errorf("the message blames a machine that works: %s", got.Message)
	}
}

func list(machines ...snapshot.Machine) []snapshot.Machine { return machines }

func TestBreakerMessageFitsConditionForLargeFleet(t *testing.T) {
	t.Parallel()
	var machines []snapshot.Machine
	for range 1000 {
		machines = append(machines, machine("gpu-shared-0123456789ab", time.Hour, 0))
	}
	got := Next(nil, machines, now, timeout, retry)
	if got.Status != metav1.ConditionFalse || len(got.Message) > 2000 || !strings.Contains(got.Message, " and 990 more; see that they join the cluster") {
		t.Errorf("%s, with a message of %d characters: %.900s", got.Status, len(got.Message), got.Message)
	}
}
