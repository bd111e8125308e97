package nodelabels

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Labels are the labels of a node, as far as they are known.
type Labels struct {
	Known map[string]string
	// Doubts are the labels whose value is not known. It is nil for a node that shows its labels: what it lacks, it does not have.
	Doubts Doubts
}

// Doubts are labels of a node that does not exist yet, by key. Labels that are only known [Later] are in doubt too.
type Doubts map[string]Doubt

// Doubt is a label whose value is not known.
type Doubt struct {
	// Present reports whether the node will have the label, with some value.
	Present bool
	// Min and Max bound its value, which is a number. Both are 0 if there are no bounds.
	Min, Max int64
}

// String describes the values for messages.
func (d Doubt) String() string {
	if d.Max == 0 {
		return ""
	}
	return fmt.Sprintf("from %d to %d", d.Min, d.Max)
}

// Of returns the labels that a node will have because of its GPUs and how they are shared.
func Of(n *Node) Labels {
	l := Labels{map[string]string{}, Doubts{}}
	for i := range Table {
		e := &Table[i]
		if e.valueOn == nil {
			continue
		}
		nodes := []*Node{n}
		if strings.Contains(e.Key, "<profile>") {
			nodes = n.profiles()
		}
		for _, n := range nodes {
			switch v := e.valueOn(n); {
			case v.doubt != nil:
				l.Doubts[e.key(n)] = *v.doubt
			case v != absent:
				l.Known[e.key(n)] = v.is
			}
		}
	}
	return l
}

// About returns the doubt about a label that a node does not have yet. It returns false if the node will not have it.
func (d Doubts) About(key string) (Doubt, bool) {
	if d == nil {
		return Doubt{}, false
	}
	if doubt, ok := d[key]; ok {
		return doubt, true
	}
	e := Find(key)
	return Doubt{}, e != nil && e.Known == Later
}

// Verdict says whether a node meets a demand.
type Verdict int

// Verdicts, from the least to the most certain.
const (
	No Verdict = iota
	Maybe
	Yes
)

// Judge reports whether a node with the labels meets a requirement. Maybe means that it depends on a label in doubt. Without bounds, a label in doubt is
// assumed to have none of the values that a requirement excludes.
func (l Labels) Judge(req *corev1.NodeSelectorRequirement) Verdict {
	has, ok := l.Known[req.Key]
	if !ok {
		if doubt, doubted := l.Doubts.About(req.Key); doubted {
			return doubt.judge(req)
		}
	}
	return yesOrNo(meets(has, ok, req))
}

func yesOrNo(yes bool) Verdict {
	if yes {
		return Yes
	}
	return No
}

// meets matches like the scheduler.
func meets(has string, ok bool, req *corev1.NodeSelectorRequirement) bool {
	switch req.Operator {
	case corev1.NodeSelectorOpIn:
		return ok && slices.Contains(req.Values, has)
	case corev1.NodeSelectorOpNotIn:
		return !ok || !slices.Contains(req.Values, has)
	case corev1.NodeSelectorOpExists:
		return ok
	case corev1.NodeSelectorOpDoesNotExist:
		return !ok
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		n, err := strconv.ParseInt(has, 10, 64)
		bound, valid := boundOf(req)
		return ok && err == nil && valid && (req.Operator == corev1.NodeSelectorOpGt && n > bound || req.Operator == corev1.NodeSelectorOpLt && n < bound)
	}
	return false
}

func boundOf(req *corev1.NodeSelectorRequirement) (int64, bool) {
	if len(req.Values) != 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(req.Values[0], 10, 64)
	return n, err == nil
}

func (d Doubt) judge(req *corev1.NodeSelectorRequirement) Verdict {
	within := func(v string) bool {
		n, err := strconv.ParseInt(v, 10, 64)
		return err == nil && d.Min <= n && n <= d.Max || d.Max == 0
	}
	switch req.Operator {
	case corev1.NodeSelectorOpIn:
		if slices.ContainsFunc(req.Values, within) {
			return Maybe
		}
		return No
	case corev1.NodeSelectorOpNotIn:
		if d.Max > 0 && slices.ContainsFunc(req.Values, within) {
			return Maybe
		}
		return Yes
	case corev1.NodeSelectorOpExists:
		if d.Present {
			return Yes
		}
		return Maybe
	case corev1.NodeSelectorOpDoesNotExist:
		return yesOrNo(!d.Present)
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		return d.compare(req)
	}
	return No
}

func (d Doubt) compare(req *corev1.NodeSelectorRequirement) Verdict {
	bound, ok := boundOf(req)
	greater := req.Operator == corev1.NodeSelectorOpGt
	switch {
	case !ok:
		return No
	case d.Max == 0:
		return Maybe
	case greater && d.Min > bound, !greater && d.Max < bound:
		return Yes
	case greater && d.Max <= bound, !greater && d.Min >= bound:
		return No
	}
	return Maybe
}
