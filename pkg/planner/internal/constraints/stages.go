package constraints

import (
	"cmp"
	"math"
	"slices"

	"karve.sh/karve/pkg/planner"
)

// stage is a number of preferences that a pod has given up, and the machines that it may then use.
type stage struct {
	given            int
	offerings, nodes []int
}

// stages returns the stages of a class, in the order in which its pods go through them: for each number of preferences given up, the pools by their weights, those
// with lower weights in addition to those with higher ones. There are no stages in which no machine could hold a pod, except that the last stage has all
// machines.
func (pr *problem) stages(class int) []stage {
	c := pr.Classes[class]
	offerings, nodes := pr.labeled(class)
	var out []stage
	for given := 0; given <= len(c.Preferences); given++ {
		all, on := pr.granting(class, given)
		weights := pr.weights(all, c)
		if len(weights) == 0 && slices.ContainsFunc(on, func(v int) bool { return TimesOnNode(pr.Snapshot, c, pr.Nodes[v]) > 0 }) {
			weights = []int32{math.MinInt32}
		}
		for _, weight := range weights {
			from := slices.DeleteFunc(slices.Clone(all), func(i int) bool {
				return pr.Pools[pr.Offerings[i].Pool].Weight < weight
			})
			out = append(out, stage{given, from, on})
		}
	}
	last := stage{len(c.Preferences), offerings, nodes}
	if n := len(out); n > 0 && out[n-1].given == len(c.Preferences) {
		out[n-1] = last
	} else {
		out = append(out, last)
	}
	return out
}

// granting returns the offerings and nodes of a class that satisfy all preferences except the first given ones.
func (pr *problem) granting(class, given int) (offerings, nodes []int) {
	offerings, nodes = pr.labeled(class)
	for _, w := range pr.Classes[class].Preferences[min(given, len(pr.Classes[class].Preferences)):] {
		if w.Rule < 0 {
			offerings, nodes = common(offerings, w.Offerings), common(nodes, w.Nodes)
		}
	}
	return offerings, nodes
}

// weights returns the weights of the pools that could launch a machine for a pod, the highest first.
func (pr *problem) weights(offerings []int, c planner.Class) []int32 {
	var out []int32
	for _, i := range offerings {
		if pr.usable[i] && offeredTimes(pr.Snapshot, c, i) > 0 {
			if w := pr.Pools[pr.Offerings[i].Pool].Weight; !slices.Contains(out, w) {
				out = append(out, w)
			}
		}
	}
	slices.SortFunc(out, func(x, y int32) int { return cmp.Compare(y, x) })
	return out
}

// common returns the intersection of two sorted lists of indices.
func common(xs, ys []int) []int {
	var out []int
	for _, x := range xs {
		if _, ok := slices.BinarySearch(ys, x); ok {
			out = append(out, x)
		}
	}
	return out
}
