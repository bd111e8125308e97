package snapshot

import (
	"slices"
)

// WhatIf is a change to machines, for a view of what would come of it. The zero value changes nothing.
type WhatIf struct {
	// Leaving are the names of NodeClaims that are replaced in addition to those that are marked, Staying of those that are not, whatever their mark.
	Leaving, Staying []string
	// Cordoned are the names of Nodes of these machines that take no more pods.
	Cordoned []string
}

// Assumed is how a machine of such a view differs from its objects.
type Assumed struct {
	Leaving, Staying, Cordoned bool
}

// WhatIf returns the view of the same cluster after a change. The change is to the values: no object is copied or read again.
func (v *View) WhatIf(change WhatIf) View { return v.changed(change, nil) }

// AsIs returns the view, after a change, of what there is at this moment: nothing is launched, and machines that have not started are no room. Of the
// machines that are being replaced only those with the NodeClaims in going have pods that need a place; the others hold theirs still. So it shows whether
// those may go now.
func (v *View) AsIs(change WhatIf, going []string) View {
	if going == nil {
		going = []string{}
	}
	return v.changed(change, going)
}

func (v *View) changed(change WhatIf, going []string) View {
	w := View{Pools: v.Pools, Machines: slices.Clone(v.Machines), canaries: v.canaries, broken: v.broken, cluster: v.cluster}
	for i := range w.Machines {
		m := &w.Machines[i]
		m.Assumed = Assumed{
			Leaving: slices.Contains(change.Leaving, m.Claim.Name), Staying: slices.Contains(change.Staying, m.Claim.Name),
			Cordoned: m.Node != nil && slices.Contains(change.Cordoned, m.Node.Name),
		}
	}
	w.fill(going, nil)
	return w
}
