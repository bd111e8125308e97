package repair

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
)

func TestDiagnosisHoldsForAnyFaults(t *testing.T) {
	t.Parallel()
	rapid.Check(t, laws)
}

func FuzzDiagnose(f *testing.F) { f.Fuzz(rapid.MakeFuzz(laws)) }

// laws checks for any fleet that no healthy or protected machine is replaced, that no machine is replaced before its toleration ends, and that no more are
// replaced at once than permitted.
func laws(t *rapid.T) {
	machines := make([]records.Machine, rapid.IntRange(0, 30).Draw(t, "machines"))
	for i := range machines {
		machines[i] = machine(fmt.Sprintf("m-%02d", i), anyFault(t))
		machines[i].Claim.Labels[karpv1.NodePoolLabelKey] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "pool")
		machines[i].Node.Labels[corev1.LabelTopologyZone] = rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")
	}
	cluster := clusterOf(machines)
	cluster.Now = now.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "minutes")) * time.Minute)
	d := Diagnose(cluster, machines, tolerations)
	going, due, all := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range machines {
		m := &machines[i]
		all[m.Pool()]++
		unhealthy, ok := d.Cases[m.Claim.Name]
		if !ok {
			if m.Replacing() == Unhealthy {
				going[m.Pool()]++
			}
			continue
		}
		if !replaced(unhealthy) {
			continue
		}
		going[m.Pool()]++
		due[m.Pool()]++
		if cluster.Now.Before(unhealthy.Until) {
			t.Fatalf("%s is replaced before its toleration ends: %+v", m.Claim.Name, unhealthy)
		}
		if m.Node.Annotations[DoNotRepair] == "true" || m.Node.Annotations["ails"] == "" {
			t.Fatalf("%s is replaced with annotations %v: %+v", m.Claim.Name, m.Node.Annotations, unhealthy)
		}
	}
	for pool := range due {
		if n := going[pool]; n > (all[pool]+4)/5 {
			t.Fatalf("%d of %d machines of pool %s are replaced at once: %+v", n, all[pool], pool, d.Pools[pool])
		}
	}
	slices.Reverse(machines)
	if again := Diagnose(cluster, machines, tolerations); !reflect.DeepEqual(again.Cases, d.Cases) {
		t.Fatalf("the diagnosis depends on the order: %+v and %+v", d.Cases, again.Cases)
	}
}

// anyFault draws any fault of a machine, or none.
func anyFault(t *rapid.T) func(*records.Machine) {
	return func(m *records.Machine) {
		ago := time.Duration(rapid.IntRange(-10, 60).Draw(t, "ago")) * time.Minute
		fail := func(with func(*records.Machine)) {
			with(m)
			m.Node.Annotations["ails"] = "true"
		}
		switch rapid.IntRange(0, 11).Draw(t, "ails") {
		case 0:
			fail(notReady(ago))
		case 1:
			fail(withCondition(corev1.NodeReady, corev1.ConditionFalse, ago))
		case 2:
			fail(withCondition(nodecontract.HardwareCondition, corev1.ConditionFalse, ago, rapid.SampledFrom([]string{nodecontract.ReasonLost, nodecontract.ReasonReset}).Draw(t, "reason")))
		case 3:
			fail(short(rapid.Int64Range(0, 9).Draw(t, "replicas"), ago))
		case 4:
			fail(notReady(ago))
			m.Node.Annotations[DoNotRepair] = "true"
		case 5:
			replacing(m)
		case 6:
			drifting(m)
		}
	}
}
