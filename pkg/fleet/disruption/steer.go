package disruption

import "karve.sh/karve/pkg/fleet/disruption/reason"

// toSteer returns the machines that should get or lose the surplus taint, which steers new pods to other machines. While pods move, the taint is on all
// machines with room that the plan has not chosen for them. Otherwise the scheduler would spread the pods, and the saving would be lost. While pods are handed
// over in groups, only the target of the current group counts as chosen. targets has these by pool.
func (f *fleet) toSteer(targets map[string]string) []*reason.Machine {
	moving := map[string]bool{}
	for _, m := range f.machines {
		if m.Replacing() != "" && (m.Deleting() || Disrupting(m.Machine)) {
			moving[m.Pool()] = true
		}
	}
	var machines []*reason.Machine
	for _, m := range f.machines {
		if m.Node == nil || m.Deleting() {
			continue
		}
		target, handing := targets[m.Pool()]
		if HasSurplusTaint(m.Machine) != away(m, moving[m.Pool()], handing, target) {
			machines = append(machines, m)
		}
	}
	return machines
}

// away reports whether pods should be steered away from a machine. moving reports whether pods of its pool move, and handing whether they are handed over to
// the Node target.
func away(m *reason.Machine, moving, handing bool, target string) bool {
	chosen := handing && m.Node.Name == target
	room := m.Started() && m.Replacing() == "" && m.Exposed() > m.ReplicasInUse() && (handing || !m.Wanted)
	return reason.MarkedUnderutilized(m.Machine) || !chosen && (m.Surplus || moving && room)
}
