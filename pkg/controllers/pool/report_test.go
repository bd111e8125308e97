package pool

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/pkg/watchdog"
)

var now = snapshottest.Now

func TestHoldSumsHardwareOfMachines(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	twelve, xlarge := snapshottest.TypeNamed("g4dn.12xlarge"), snapshottest.TypeNamed("g4dn.xlarge")
	running := snapshottest.Claim("gpu-1", &c.NodePools[0], twelve, snapshottest.Initialized(now))
	onItsWay := snapshottest.Claim("gpu-2", &c.NodePools[0], xlarge)
	onItsWay.Annotations[v1alpha1.ListPriceAnnotation] = "600000"
	c.NodeClaims = append(c.NodeClaims, running, onItsWay)
	c.Nodes = append(c.Nodes, snapshottest.Node(&running, twelve, 40))
	c.Pods = append(c.Pods, snapshottest.Pods("web", 7, snapshottest.Running("gpu-1"))...)
	c.Pods = append(c.Pods, snapshottest.Pod("two", snapshottest.Asking(v1alpha1.ResourceGPUShared, "2"), snapshottest.Running("gpu-1")))

	got := hold(records.Machines(c), nil, now)
	want := holding{
		Physical: planner.Physical{MilliCPU: 52_000, MemoryBytes: 208 << 30, GPUs: 5, Replicas: 50, Nodes: 2},
		inUse:    9, microUSDPerHour: 3_912_000 + 526_000, listMicroUSDPerHour: 3_912_000 + 600_000,
	}
	if got != want {
		t.Errorf("hold = %+v, want %+v", got, want)
	}
	if got := hold(nil, nil, now); got != (holding{}) {
		t.Errorf("no machines hold %+v", got)
	}
}

func TestMachineCountsHaveStateAndAgeOfOldest(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	xlarge, pool := snapshottest.TypeNamed("g4dn.xlarge"), &c.NodePools[0]
	made := func(name string, ago time.Duration, edits ...func(*karpv1.NodeClaim)) karpv1.NodeClaim {
		claim := snapshottest.Claim(name, pool, xlarge, edits...)
		claim.CreationTimestamp = metav1.NewTime(now.Add(-ago))
		return claim
	}
	running := made("d", time.Hour, snapshottest.Initialized(now.Add(-time.Hour)))
	c.NodeClaims = []karpv1.NodeClaim{
		made("a", time.Minute), made("b", 2*time.Minute), made("c", 3*time.Minute, snapshottest.Launched(now.Add(-time.Minute))), running,
		made("e", 20*time.Minute, snapshottest.Launched(now.Add(-20*time.Minute))),
	}
	c.Nodes = append(c.Nodes, snapshottest.Node(&running, xlarge, 10))
	want := map[string]metrics.Claims{
		"Requested": {Count: 2, Oldest: 2 * time.Minute}, "Launched": {Count: 1, Oldest: 3 * time.Minute}, "Started": {Count: 1, Oldest: time.Hour},
		"Broken": {Count: 1, Oldest: 20 * time.Minute},
	}
	if diff := cmp.Diff(want, byState(records.Machines(c), now, 10*time.Minute)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLaunchingConditionReportsRefusedOfferings(t *testing.T) {
	t.Parallel()
	cluster := snapshottest.Shared()
	pool := snapshot.Pools(cluster)[0]
	refused := func(instanceType, zone string, notBefore time.Time) v1alpha1.RefusedOffering {
		return v1alpha1.RefusedOffering{
			InstanceType: instanceType, Zone: zone, CapacityType: "on-demand", Failures: 1, NotBefore: metav1.NewTime(notBefore), Message: "no capacity",
		}
	}
	later := now.Add(time.Minute)
	for name, c := range map[string]struct {
		refused []v1alpha1.RefusedOffering
		want    metav1.ConditionStatus
		says    []string
	}{
		"nothing is refused":             {nil, "True", nil},
		"the backoff is over":            {[]v1alpha1.RefusedOffering{refused("g4dn.xlarge", "us-east-1a", now)}, "True", nil},
		"a type that is not the pool's":  {[]v1alpha1.RefusedOffering{refused("p5.48xlarge", "us-east-1a", later)}, "True", nil},
		"a refused offering of the pool": {[]v1alpha1.RefusedOffering{refused("g4dn.xlarge", "us-east-1a", later)}, "False", []string{"g4dn.xlarge in zone us-east-1a", "12:01:00Z", "no capacity"}},
		"everything": {[]v1alpha1.RefusedOffering{{
			InstanceType: "*", Zone: "*", CapacityType: "*", Reason: "Unauthorized", Failures: 1, NotBefore: metav1.NewTime(later), Message: "no rights",
		}}, "False", []string{"all launches until 2026-03-01T12:01:00Z (Unauthorized)", "no rights"}},
		"a whole type": {[]v1alpha1.RefusedOffering{refused("g4dn.xlarge", "*", later)}, "False", []string{"g4dn.xlarge in zone us-east-1a, us-east-1b (on-demand)"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := *cluster
			cluster.Refused = map[string][]v1alpha1.RefusedOffering{pool.Class.Name: c.refused}
			got := launching(refusedOf(&cluster, &pool))
			if got.Status != c.want || got.Type != v1alpha1.ConditionLaunchHealthy {
				t.Errorf("launching = %s %s, want %s", got.Type, got.Status, c.want)
			}
			for _, part := range c.says {
				if !strings.Contains(got.Message, part) {
					t.Errorf("the message lacks %q: %s", part, got.Message)
				}
			}
		})
	}
}

func TestLaunchingMessageDoesNotDependOnOrderOfRefusals(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	pool := snapshot.Pools(c)[0]
	later := metav1.NewTime(now.Add(time.Minute))
	a := v1alpha1.RefusedOffering{InstanceType: "g4dn.xlarge", Zone: "*", CapacityType: "*", Failures: 1, NotBefore: later}
	b := v1alpha1.RefusedOffering{InstanceType: "g4dn.2xlarge", Zone: "*", CapacityType: "*", Failures: 1, NotBefore: later}
	conditionFor := func(refused ...v1alpha1.RefusedOffering) status.Condition {
		c.Refused[pool.Class.Name] = refused
		return launching(refusedOf(c, &pool))
	}
	if one, other := conditionFor(a, b), conditionFor(b, a); one != other {
		t.Errorf("%v and %v", one, other)
	}
}

func TestReportClass(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		idleAfter       string
		state           facts.NodeClassState
		accepted, ready metav1.ConditionStatus
		reason          string
	}{
		"valid":                               {"5m", facts.NodeClassState{Ready: true}, "True", "True", "Ready"},
		"the cloud's class is not ready":      {"5m", facts.NodeClassState{Reason: "NodeClassNotFound", Message: "create it"}, "True", "False", "NodeClassNotFound"},
		"an invalid duration":                 {"soon", facts.NodeClassState{Ready: true}, "False", "False", "NotAccepted"},
		"both, and the spec takes precedence": {"soon", facts.NodeClassState{Reason: "NodeClassNotFound"}, "False", "False", "NotAccepted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			class := snapshottest.Class("gpu", 10)
			class.Generation = 3
			class.Spec.Consolidation.IdleAfter = c.idleAfter
			reportClass(&class, c.state, facts.DRA{}, holding{Physical: planner.Physical{Nodes: 1, GPUs: 4, Replicas: 40}, inUse: 7, microUSDPerHour: 3_912_000}, nil, nil)
			conditions := map[string]metav1.Condition{}
			for _, condition := range class.Status.Conditions {
				conditions[condition.Type] = condition
				if condition.ObservedGeneration != 3 {
					t.Errorf("%s was observed at generation %d, want 3", condition.Type, condition.ObservedGeneration)
				}
			}
			if got := conditions[v1alpha1.ConditionAccepted].Status; got != c.accepted {
				t.Errorf("Accepted is %s, want %s", got, c.accepted)
			}
			if got := conditions[v1alpha1.ConditionReady]; got.Status != c.ready || got.Reason != c.reason {
				t.Errorf("Ready is %s %s, want %s %s", got.Status, got.Reason, c.ready, c.reason)
			}
			if s := class.Status; s.Nodes != 1 || s.GPUs != 4 || s.Replicas != 40 || s.ReplicasInUse != 7 || s.ObservedGeneration != 3 || s.USDPerHour != "3.912" {
				t.Errorf("status is %+v", s)
			}
		})
	}
}

func TestClassWithDRAIsReadyOnlyWithItsDeviceClass(t *testing.T) {
	t.Parallel()
	class := snapshottest.Class("gpu", 10)
	class.Spec.Sharing.Backend = v1alpha1.BackendDRA
	reportClass(&class, facts.NodeClassState{Ready: true}, facts.DRA{Known: true, Enabled: true}, holding{}, nil, nil)
	ready := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionFalse || ready.Reason != "DeviceClassNotFound" || !strings.Contains(ready.Message, "node.dra.enabled=true") {
		t.Errorf("Ready is %+v", ready)
	}
}

func TestCatalogFreshConditionReportsStaleCatalog(t *testing.T) {
	t.Parallel()
	class := snapshottest.Class("gpu", 10)
	for _, state := range []facts.NodeClassState{
		{Ready: true}, {Ready: true, CatalogReason: "AccessDenied", CatalogMessage: "the spot prices could not be read"}, {Ready: true},
	} {
		reportClass(&class, state, facts.DRA{}, holding{}, nil, nil)
		fresh, ready := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionCatalogFresh), meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionReady)
		if want := state.CatalogReason == ""; (fresh.Status == metav1.ConditionTrue) != want || !want && (fresh.Reason != "AccessDenied" || fresh.Message != state.CatalogMessage) {
			t.Errorf("%+v: %+v", state, fresh)
		}
		if ready.Status != metav1.ConditionTrue {
			t.Errorf("%+v: what is only old keeps the class from being Ready: %+v", state, ready)
		}
	}
}

func TestAPlanThatTookLongerIsTold(t *testing.T) {
	t.Parallel()
	extended := &planning.Extended{Took: 1800 * time.Millisecond, Usual: 200 * time.Millisecond, Shapes: 300}
	if c := planningHealthy(nil, extended); !c.IsTrue() || c.Message != extended.String() {
		t.Errorf("the condition is %s: %s", c.Status, c.Message)
	}
	if c := planningHealthy(nil, nil); !c.IsTrue() || c.Message != "" {
		t.Errorf("without such a plan, the condition is %s: %s", c.Status, c.Message)
	}
	if c := planningHealthy([]watchdog.Entry{{}}, extended); !c.IsFalse() || strings.Contains(c.Message, "instead of") {
		t.Errorf("with objects that are set aside, the condition is %s: %s", c.Status, c.Message)
	}
}
