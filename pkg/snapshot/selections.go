package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// selector finds pods by namespace and labels.
type selector struct {
	// namespaces are sorted; nil means all.
	namespaces []string
	labels     labels.Selector
}

func (s *selector) key() string {
	if _, selectable := s.labels.Requirements(); !selectable {
		return "nothing"
	}
	if s.namespaces == nil {
		return "*/" + s.labels.String()
	}
	return strings.Join(s.namespaces, ",") + "/" + s.labels.String()
}

func (s *selector) finds(pod *corev1.Pod) bool {
	return (s.namespaces == nil || slices.Contains(s.namespaces, pod.Namespace)) && s.labels.Matches(labels.Set(pod.Labels))
}

// selections are all that rules look for among pods, so that each pod is looked at once for all of them. A selection is a list of selectors
// that must all find the pod, and is named by a key.
type selections struct {
	byKey map[string][]selector
	// keys are those of byKey, sorted; found holds the answers in that order, by what selectors can see of a pod. Both are made by the first
	// question.
	keys   []string
	seen   []string
	found  map[string][]bool
	number map[string]int
}

// add makes a selection known and returns its key. All are added before the first question.
func (s *selections) add(all ...selector) string {
	parts := make([]string, len(all))
	for i := range all {
		parts[i] = all[i].key()
	}
	slices.Sort(parts)
	key := strings.Join(slices.Compact(parts), " & ")
	if s.byKey == nil {
		s.byKey = map[string][]selector{}
	}
	s.byKey[key] = all
	return key
}

func (s *selections) freeze() {
	s.keys, s.found, s.number = sortedKeys(s.byKey), map[string][]bool{}, map[string]int{}
	seen := map[string]bool{}
	for i, key := range s.keys {
		s.number[key] = i
		for _, one := range s.byKey[key] {
			requirements, _ := one.labels.Requirements()
			for _, r := range requirements {
				seen[r.Key()] = true
			}
		}
	}
	s.seen = sortedKeys(seen)
}

// of says for each selection, in the order of their keys, whether it finds the pod.
func (s *selections) of(pod *corev1.Pod) []bool {
	if len(s.byKey) == 0 {
		return nil
	}
	if s.found == nil {
		s.freeze()
	}
	var looks strings.Builder
	looks.WriteString(pod.Namespace)
	for _, key := range s.seen {
		looks.WriteByte(0)
		if value, ok := pod.Labels[key]; ok {
			looks.WriteByte('=')
			looks.WriteString(value)
		}
	}
	found, ok := s.found[looks.String()]
	if !ok {
		found = make([]bool, len(s.keys))
		for i, key := range s.keys {
			found[i] = !slices.ContainsFunc(s.byKey[key], func(one selector) bool { return !one.finds(pod) })
		}
		s.found[looks.String()] = found
	}
	return found
}

// finds says whether a selection is among those that were found.
func (s *selections) finds(found []bool, key string) bool { return found[s.number[key]] }

// namespaces are those that a term of a pod in the namespace own speaks of, sorted; nil stands for all.
func (c *Cluster) namespaces(own string, named []string, selects *metav1.LabelSelector) []string {
	if selects == nil {
		if len(named) == 0 {
			return []string{own}
		}
		return slices.Compact(slices.Sorted(slices.Values(named)))
	}
	if len(selects.MatchLabels) == 0 && len(selects.MatchExpressions) == 0 {
		return nil
	}
	all := slices.Clone(named)
	selector := selectorOf(selects)
	for i := range c.Namespaces {
		if selector.Matches(labels.Set(c.Namespaces[i].Labels)) {
			all = append(all, c.Namespaces[i].Name)
		}
	}
	slices.Sort(all)
	return append([]string{}, slices.Compact(all)...)
}

// selectorOf is the selector as it is matched; one that is missing, or that the API would not have let in, finds nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// narrowed is the selector, asking further for the pod's own values of some labels, and for others than its own of others; labels that the
// pod does not have ask for nothing.
func narrowed(s *metav1.LabelSelector, pod *corev1.Pod, same, other []string) labels.Selector {
	if s == nil {
		return labels.Nothing()
	}
	s = s.DeepCopy()
	add := func(keys []string, operator metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok {
				s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}})
			}
		}
	}
	add(same, metav1.LabelSelectorOpIn)
	add(other, metav1.LabelSelectorOpNotIn)
	return selectorOf(s)
}
