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
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

var now = snapshottest.Now

const timeout = 10 * time.Minute

// machine returns a machine of the given age that registered immediately and exposes the given number of its ten replicas. It keeps its startup taint until it
// exposes all of them.
func machine(name string, age time.Duration, replicas int64) records.Machine {
	pool := snapshottest.Pool("gpu", "gpu", snapshottest.Tainted(v1alpha1.ResourceGPUShared))
	xlarge := snapshottest.TypeNamed("g4dn.xlarge")
	at := now.Add(-age)
	stage := snapshottest.Registered(at)
	if replicas >= 10 {
		stage = snapshottest.Initialized(at)
	}
	claim := snapshottest.Claim(name, &pool, xlarge, stage, func(c *karpv1.NodeClaim) { c.CreationTimestamp = metav1.NewTime(at.Truncate(time.Second)) })
	node := snapshottest.Node(&claim, xlarge, replicas)
	return records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(claim.Annotations)}
}

// uninitialized returns a machine that registered this long ago and exposes its replicas, but has another startup taint that delays its initialization.
func uninitialized(age time.Duration) records.Machine {
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
	working := func(age time.Duration) records.Machine { return machine("works", age, 10) }
	broken := func(age time.Duration) records.Machine { return machine("broken", age, 0) }
	starting := func(age time.Duration) records.Machine { return machine("starts", age, 0) }
	late := func(age, started time.Duration) records.Machine {
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
		machines []records.Machine
		want     metav1.ConditionStatus
		reason   string
	}{
		"a pool without machines is healthy":                                   {nil, nil, "True", ReasonReplicasHealthy},
		"working machines keep the breaker closed":                             {been("True", time.Hour), list(working(time.Hour)), "True", ReasonReplicasHealthy},
		"a starting machine keeps the breaker closed":                          {been("True", time.Hour), list(starting(timeout - time.Second)), "True", ReasonReplicasHealthy},
		"a broken machine opens the breaker":                                   {been("True", time.Hour), list(working(time.Hour), broken(timeout)), "False", ReasonReplicasMissing},
		"a broken machine opens the breaker of a new pool":                     {nil, list(broken(time.Hour)), "False", ReasonReplicasMissing},
		"an open breaker stays open":                                           {been("False", timeout-time.Second), list(broken(time.Hour)), "False", "Before"},
		"an open breaker stays open after the broken machine is gone":          {been("False", timeout-time.Second), nil, "False", "Before"},
		"a machine that worked before does not close the breaker":              {been("False", time.Minute), list(working(time.Hour)), "False", "Before"},
		"a slow machine closes the breaker":                                    {been("False", time.Minute), list(late(time.Hour, time.Second)), "True", ReasonReplicasHealthy},
		"a slow machine closes a half-open breaker":                            {been("Unknown", time.Minute), list(late(time.Hour, time.Second)), "True", ReasonReplicasHealthy},
		"a machine that had started before does not close a half-open breaker": {been("Unknown", time.Minute), list(late(time.Hour, 2*time.Minute)), "Unknown", "Before"},
		"an open breaker becomes half-open after a while":                      {been("False", timeout), nil, "Unknown", ReasonProbing},
		"an open breaker becomes half-open despite the broken machine":         {been("False", timeout), list(broken(time.Hour)), "Unknown", ReasonProbing},
		"a half-open breaker waits for the probe":                              {been("Unknown", 5*time.Minute), list(starting(5*time.Minute - time.Second)), "Unknown", "Before"},
		"a successful probe closes the breaker":                                {been("Unknown", 5*time.Minute), list(working(5*time.Minute - time.Second)), "True", ReasonReplicasHealthy},
		"a successful probe created in the same second closes the breaker":     {been("Unknown", 5*time.Minute-300*time.Millisecond), list(working(5 * time.Minute)), "True", ReasonReplicasHealthy},
		"a failed probe opens the breaker":                                     {been("Unknown", timeout+time.Minute), list(broken(timeout + time.Second)), "False", ReasonReplicasMissing},
		"a failed probe created in the same second opens the breaker":          {been("Unknown", timeout-300*time.Millisecond), list(broken(timeout)), "False", ReasonReplicasMissing},
		"a failed probe opens the breaker despite clock skew":                  {been("Unknown", timeout-5*time.Second), list(broken(timeout - 0)), "False", ReasonReplicasMissing},
		"a machine that broke before the probe does not count":                 {been("Unknown", time.Minute), list(broken(timeout + time.Hour)), "Unknown", "Before"},
		"a failed probe opens the breaker despite older working machines":      {been("Unknown", timeout), list(working(time.Hour), broken(timeout-0)), "False", ReasonReplicasMissing},
		"an open breaker with a future timestamp becomes half-open":            {been("False", -time.Hour), list(broken(time.Hour)), "Unknown", ReasonProbing},
		"a half-open breaker with a future timestamp closes":                   {been("Unknown", -time.Hour), list(working(time.Minute)), "True", ReasonReplicasHealthy},
		"a half-open breaker with a future timestamp opens":                    {been("Unknown", -time.Hour), list(broken(timeout)), "False", ReasonReplicasMissing},
		"a timestamp slightly in the future counts as now":                     {been("False", -time.Minute), list(broken(time.Hour)), "False", "Before"},
		"a machine that broke before the breaker closed does not open it":      {been("True", time.Minute), list(broken(timeout + time.Hour)), "True", ReasonReplicasHealthy},
		"a machine that breaks after the breaker closed opens it":              {been("True", time.Minute), list(broken(timeout + 30*time.Second)), "False", ReasonReplicasMissing},
		"an unused probe ends":                                                 {been("Unknown", lifecycle.ProbeRetries*timeout), list(broken(24 * time.Hour)), "True", ReasonReplicasHealthy},
		"a probe does not end while a machine starts":                          {been("Unknown", lifecycle.ProbeRetries*timeout), list(starting(time.Minute)), "Unknown", "Before"},
		"a probe that is not initialized keeps the breaker half-open":          {been("Unknown", time.Minute), list(uninitialized(30 * time.Second)), "Unknown", "Before"},
		"a probe that is never initialized opens the breaker":                  {been("Unknown", timeout+time.Minute), list(uninitialized(timeout)), "False", ReasonReplicasMissing},
		"a machine that recovers closes an open breaker":                       {been("False", time.Minute), list(working(30 * time.Second)), "True", ReasonReplicasHealthy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Next(c.before, c.machines, now, timeout)
			if got.Status != c.want || got.Reason != c.reason || got.Type != v1alpha1.ConditionReplicasHealthy {
				t.Errorf("got %s %s %s: %s; want %s, %s", got.Type, got.Status, got.Reason, got.Message, c.want, c.reason)
			}
		})
	}
}

func TestOpenBreakerReportsBrokenMachinesAndRetryTime(t *testing.T) {
	t.Parallel()
	got := Next(nil, list(machine("gpu-1", time.Hour, 3), machine("gpu-2", time.Hour, 10)), now, timeout)
	for _, part := range []string{"gpu-1 (3 of 10 nvidia.com/gpu.shared)", "device plugin", "2026-03-01T12:10:00Z"} {
		if !strings.Contains(got.Message, part) {
			t.Errorf("the message lacks %q: %s", part, got.Message)
		}
	}
	if strings.Contains(got.Message, "gpu-2") {
		t.Errorf("the message blames a machine that works: %s", got.Message)
	}
}

func list(machines ...records.Machine) []records.Machine { return machines }

func TestBreakerMessageFitsConditionForLargeFleet(t *testing.T) {
	t.Parallel()
	var machines []records.Machine
	for range 1000 {
		machines = append(machines, machine("gpu-shared-0123456789ab", time.Hour, 0))
	}
	got := Next(nil, machines, now, timeout)
	if got.Status != metav1.ConditionFalse || len(got.Message) > 2000 || !strings.Contains(got.Message, " and 990 more; see that they join the cluster") {
		t.Errorf("%s, with a message of %d characters: %.900s", got.Status, len(got.Message), got.Message)
	}
}
