package provisioning

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/records"
)

// saveNothing reports for each launch whether it waits because it would save nothing. Machines that are replaced only to save cost have pods that need other machines. If the
// launch that was to be cheaper was refused, the plan has the next best one for them, which may cost as much as the machines that they run on. The launches for such pods
// are made only if together they cost less than these machines. Otherwise, the disruption controller ends the replacement.
func saveNothing(view *snapshot.View, launches []planner.Launch) []bool {
	on := map[string]*records.Machine{} // by the name of the Node
	for i := range view.Machines {
		if m := &view.Machines[i]; m.Node != nil && patient(m.Claim) && !m.Lost() {
			on[m.Node.Name] = m
		}
	}
	waits := make([]bool, len(launches))
	var costs, saves int64
	seen, some := map[*records.Machine]bool{}, false
	for i, l := range launches {
		waits[i] = allRun(view, l.Pods, on)
		if !waits[i] {
			continue
		}
		some = true
		costs += int64(view.Snapshot.Offerings[l.Offering].Price)
		for _, name := range l.Pods {
			if m := on[view.Pods[name].Spec.NodeName]; !seen[m] {
				seen[m] = true
				saves += m.MicroUSDPerHour()
			}
		}
	}
	if some && costs < saves {
		clear(waits)
	}
	return waits
}

func allRun(view *snapshot.View, pods []string, on map[string]*records.Machine) bool {
	for _, name := range pods {
		if pod := view.Pods[name]; pod == nil || on[pod.Spec.NodeName] == nil {
			return false
		}
	}
	return len(on) > 0
}

// patient reports whether the pods of a leaving machine can wait for the batch. They can if it is replaced only to save cost, because they keep
// running.
func patient(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok {
		return false
	}
	m := &records.Machine{Claim: claim}
	return m.Replacing() == string(karpv1.DisruptionReasonUnderutilized) && !m.Deleting()
}
