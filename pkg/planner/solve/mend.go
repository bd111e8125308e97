package solve

import (
	"fmt"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// mended returns a snapshot that [planner.Validate] accepts, in which invalid objects cannot be used, and the classes that are left out because of them. It
// returns an error if the snapshot stays invalid.
func mended(s planner.Snapshot) (planner.Snapshot, map[int]Aside, error) {
	aside := map[int]Aside{}
	err := planner.Validate(s)
	for range 4 { // Mending one violation can reveal another.
		if err == nil {
			return s, aside, nil
		}
		m := mender{Snapshot: s, aside: aside}
		m.clone()
		for _, v := range planner.Violations(err) {
			m.mend(v)
		}
		s = m.Snapshot
		err = planner.Validate(s)
	}
	return s, nil, err
}

type mender struct {
	planner.Snapshot
	aside map[int]Aside
}

// clone copies the lists that mend changes.
func (m *mender) clone() {
	m.Pools, m.Offerings, m.Nodes, m.Rules = slices.Clone(m.Pools), slices.Clone(m.Offerings), slices.Clone(m.Nodes), slices.Clone(m.Rules)
	m.Classes, m.Stocks, m.Groups = slices.Clone(m.Classes), slices.Clone(m.Stocks), slices.Clone(m.Groups)
	for i := range m.Classes {
		m.Classes[i].Preferences = slices.Clone(m.Classes[i].Preferences)
	}
}

func (m *mender) mend(v *planner.Violation) {
	why := planner.Refusal{Reason: planner.ReasonSetAside, Message: fmt.Sprintf("cannot be planned for as it was read (%.200s): this is a bug of Karve's, please report it with the object's manifest", v.Message)}
	for _, i := range v.Rules {
		m.Rules[i] = planner.Rule{Kind: planner.Apart, Topology: planner.PerNode}
	}
	for _, i := range v.Groups {
		for _, c := range m.Groups[i].Classes {
			if c >= 0 && c < len(m.Classes) {
				m.setAside(c, why)
			}
		}
		m.Groups[i] = planner.Group{Name: fmt.Sprintf("%s (%d)", m.Groups[i].Name, i), Min: 1}
	}
	for _, i := range v.Pools {
		m.Pools[i] = planner.Pool{Name: fmt.Sprintf("%s (%d)", m.Pools[i].Name, i), Closed: &why}
	}
	if len(v.Stocks) > 0 {
		for i, x := range m.Stocks {
			m.Stocks[i] = planner.Stock{Name: fmt.Sprintf("%06d", i), Left: min(max(0, x.Left), planner.MaxAmount)}
		}
	}
	for _, i := range v.Offerings {
		m.Offerings[i] = planner.Offering{InstanceType: m.Offerings[i].InstanceType, Price: 1, Physical: planner.Physical{Nodes: 1}, Unavailable: &why}
		m.forEachPlaces(func(offerings, _ *[]int) { *offerings = excluding(*offerings, i) })
	}
	for _, i := range v.Nodes {
		m.Nodes[i] = planner.Node{Name: fmt.Sprintf("%s (%d)", m.Nodes[i].Name, i)}
		m.forEachPlaces(func(_, nodes *[]int) { *nodes = excluding(*nodes, i) })
	}
	for _, i := range v.Classes {
		if i < 0 || i >= len(m.Classes) {
			continue
		}
		m.setAside(i, why)
	}
}

// setAside replaces a class by one for which nothing is planned.
func (m *mender) setAside(class int, why planner.Refusal) {
	m.Classes[class] = planner.Class{Pods: m.podsOf(class), Requests: planner.Resources{Pods: 1}, Blocked: &why, Priority: m.Classes[class].Priority}
	m.aside[class] = Aside{Class: class, Invalid: true, Refusal: why}
}

// forEachPlaces calls change for the places of each class and of each preference.
func (m *mender) forEachPlaces(change func(offerings, nodes *[]int)) {
	for i := range m.Classes {
		change(&m.Classes[i].Offerings, &m.Classes[i].Nodes)
		for w := range m.Classes[i].Preferences {
			change(&m.Classes[i].Preferences[w].Offerings, &m.Classes[i].Preferences[w].Nodes)
		}
	}
}

// excluding returns the indices without i.
func excluding(indices []int, i int) []int {
	return slices.DeleteFunc(slices.Clone(indices), func(x int) bool { return x == i })
}

// podsOf returns the pods of a class, sorted, except those that are also in other classes.
func (m *mender) podsOf(class int) []string {
	others := map[string]bool{}
	for i := range m.Classes {
		if i != class {
			for _, pod := range m.Classes[i].Pods {
				others[pod] = true
			}
		}
	}
	pods := slices.DeleteFunc(slices.Clone(m.Classes[class].Pods), func(pod string) bool { return others[pod] })
	slices.Sort(pods)
	return slices.Compact(pods)
}

// Aside is a class that is left out of a plan.
type Aside struct {
	// Class is an index into Snapshot.Classes.
	Class int
	// Invalid reports that the class is invalid in the snapshot, and Late that planning with it did not end in time. If both are false, no plan was found
	// that includes the class and keeps the rules.
	Invalid, Late bool
	Refusal       planner.Refusal
}
