package provisioning

import (
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
