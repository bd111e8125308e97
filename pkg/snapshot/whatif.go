package snapshot

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot/records"
)

// WhatIf is a hypothetical change to machines. The zero value changes nothing.
type WhatIf struct {
	// Leaving has the names of NodeClaims to replace in addition to those that are marked. Staying has the names of those that are not replaced, even if
	// they are marked.
	Leaving, Staying []string
	// Refilled reports whether the machines in Leaving leave before others are launched, which can then take the slots of their reservations.
	Refilled bool
	// Cordoned has the names of Nodes of Karve's machines that accept no more pods.
	Cordoned []string
}

// WhatIf returns the view of the same cluster after a change. It changes only the view: it does not copy or read objects.
func (v *View) WhatIf(change WhatIf) View { return v.withChange(change, nil) }

// AsIs returns the view of what exists now, after a change. Nothing is launched, and machines that have not started have no room. Of the machines that
// are being replaced, only those in going need places for their pods. The pods of the others stay. So the view shows whether the machines in going can
// be removed now.
func (v *View) AsIs(change WhatIf, going []string) View {
	if going == nil {
		going = []string{}
	}
	return v.withChange(change, going)
}

// Moving returns the view in which the planner may also place some of the running pods, and the class of each of them. Pods that Karve does not serve have none.
func (v *View) Moving(pods []*corev1.Pod) (View, map[*corev1.Pod]int) {
	w := View{Pools: v.Pools, Machines: v.Machines, canaries: v.canaries, broken: v.broken, cluster: v.cluster}
	settled := moving{}
	for _, pod := range pods {
		settled[pod] = true
	}
	classes := w.fill(nil, settled)
	return w, classes
}

func (v *View) withChange(change WhatIf, going []string) View {
	w := View{Pools: v.Pools, Machines: slices.Clone(v.Machines), canaries: v.canaries, broken: v.broken, cluster: v.cluster}
	for i := range w.Machines {
		m := &w.Machines[i]
		leaves := slices.Contains(change.Leaving, m.Claim.Name)
		m.Assumed = records.Assumed{
			Leaving: leaves, Refilled: leaves && change.Refilled, Staying: slices.Contains(change.Staying, m.Claim.Name),
			Cordoned: m.Node != nil && slices.Contains(change.Cordoned, m.Node.Name),
		}
	}
	w.fill(going, nil)
	return w
}
