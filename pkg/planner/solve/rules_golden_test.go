package solve_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"karve.sh/karve/pkg/planner"
)

// addRules adds the rules and choices of a scenario to its snapshot. The only topology is the zone. A rule counts the classes that it constrains and those in
// counts; with the word others, it counts only the latter. A choice is of instance types.
func addRules(t *testing.T, s *planner.Snapshot, pods, lines []line) {
	t.Helper()
	var zones []string
	for _, o := range s.Offerings {
		zones = append(zones, o.Zone)
	}
	at := map[string]string{}
	for _, l := range lines {
		if zone, ok := l.options["zone"]; ok {
			zones = append(zones, zone)
			at[l.words[1]] = zone
		}
	}
	slices.Sort(zones)
	zones = slices.Compact(zones)
	s.Topologies = []planner.Topology{{Key: "topology.kubernetes.io/zone", Domains: zones}}
	for i := range s.Offerings {
		s.Offerings[i].Domains = []int{slices.Index(zones, s.Offerings[i].Zone)}
	}
	for i := range s.Nodes {
		s.Nodes[i].Domains = []int{slices.Index(zones, at[s.Nodes[i].Name])}
	}
	for c, l := range pods {
		s.Classes[c].Priority = int32(l.number(t, "priority", 0))
		if zone, ok := l.options["prefers"]; ok {
			w := planner.Preference{Rule: -1}
			for _, i := range s.Classes[c].Offerings {
				if s.Offerings[i].Zone == zone {
					w.Offerings = append(w.Offerings, i)
				}
			}
			for _, v := range s.Classes[c].Nodes {
				if at[s.Nodes[v].Name] == zone {
					w.Nodes = append(w.Nodes, v)
				}
			}
			s.Classes[c].Preferences = append(s.Classes[c].Preferences, w)
		}
	}
	for _, l := range lines {
		switch l.words[0] {
		case "choice":
			p := &s.Pools[slices.IndexFunc(s.Pools, func(p planner.Pool) bool { return p.Name == l.words[1] })]
			n, err := strconv.Atoi(l.words[3])
			if err != nil {
				t.Fatal(err)
			}
			m := planner.MinValues{Key: "node.kubernetes.io/instance-type", Min: n}
			for _, o := range s.Offerings {
				m.Values = append(m.Values, o.InstanceType)
			}
			p.MinValues = append(p.MinValues, m)
		case "rule":
			s.Rules = append(s.Rules, ruleOf(t, s, pods, l))
		}
	}
}

func ruleOf(t *testing.T, s *planner.Snapshot, pods []line, l line) planner.Rule {
	t.Helper()
	r := planner.Rule{Classes: named(pods, l.words[2]), Counted: named(pods, l.words[2]+","+l.options["counts"]), MaxSkew: l.number(t, "skew", 1), MinDomains: l.number(t, "min", 0)}
	if slices.Contains(l.words, "others") {
		r.Counted = named(pods, l.options["counts"])
	}
	key := "topology.kubernetes.io/zone"
	names := s.Topologies[0].Domains
	if l.options["by"] == "node" {
		key, r.Topology = "kubernetes.io/hostname", planner.PerNode
		names = nil
		for _, n := range s.Nodes {
			names = append(names, n.Name)
		}
	}
	switch l.words[1] {
	case "spread":
		r.Kind, r.Name = planner.Spread, "topologySpreadConstraints on "+key
	case "together":
		r.Kind, r.Name, r.MaxSkew = planner.Together, "podAffinity on "+key, 0
	case "apart":
		r.Kind, r.Name, r.MaxSkew = planner.Apart, "podAntiAffinity on "+key, 0
	}
	for _, text := range strings.FieldsFunc(l.options["there"], func(r rune) bool { return r == ',' }) {
		name, count, _ := strings.Cut(text, ":")
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for len(r.Present) < len(names) {
			r.Present = append(r.Present, 0)
		}
		r.Present[slices.Index(names, name)] = n
	}
	if slices.Contains(l.words, "wish") {
		for _, c := range r.Classes {
			s.Classes[c].Preferences = append(s.Classes[c].Preferences, planner.Preference{Rule: len(s.Rules)})
		}
	}
	return r
}

// alternativesOf returns the alternatives of a launch as text.
func alternativesOf(s planner.Snapshot, l planner.Launch) string {
	var out strings.Builder
	for _, i := range l.Alternatives {
		out.WriteString(" or " + s.Offerings[i].InstanceType)
	}
	return out.String()
}
