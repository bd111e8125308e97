package plantest

import (
	"fmt"
	"strings"

	"karve.sh/karve/pkg/planner"
)

// Outline describes a snapshot with rules in a few lines, to help find what is wrong with a plan for it.
func Outline(s planner.Snapshot) string {
	var out strings.Builder
	for i, p := range s.Pools {
		fmt.Fprintf(&out, "\npool %d: nodes %d GPUs %d closed %t weight %d %v", i, p.Remaining.Nodes, p.Remaining.GPUs, p.Closed != nil, p.Weight, p.MinValues)
	}
	for i, o := range s.Offerings {
		fmt.Fprintf(&out, "\noffering %d: pool %d at %d in %v has %v GPUs %d unavailable %t", i, o.Pool, o.Price, o.Domains, o.Free, o.Physical.GPUs, o.Unavailable != nil)
	}
	for i, n := range s.Nodes {
		fmt.Fprintf(&out, "\nnode %d: in %v has %v", i, n.Domains, n.Free)
	}
	for i, c := range s.Classes {
		fmt.Fprintf(&out, "\nclass %d: %d pods of %v priority %d offerings %v nodes %v preferences %v", i, len(c.Pods), c.Requests, c.Priority, c.Offerings, c.Nodes, c.Preferences)
	}
	for i, r := range s.Rules {
		fmt.Fprintf(&out, "\nrule %d: %s %d of %v counts %v present %v elsewhere %d maxSkew %d minDomains %d eligible %v",
			i, r.Kind, r.Topology, r.Classes, r.Counted, r.Present, r.Elsewhere, r.MaxSkew, r.MinDomains, r.Eligible)
	}
	return out.String()
}

// PlacedPods returns the pods that a plan places, in its order.
func PlacedPods(p planner.Plan) []string {
	var pods []string
	for _, x := range p.Placements {
		pods = append(pods, x.Pods...)
	}
	for _, x := range p.Launches {
		pods = append(pods, x.Pods...)
	}
	return pods
}

// Zones returns the names of three zones.
func Zones() []string { return []string{"zone-a", "zone-b", "zone-c"} }
