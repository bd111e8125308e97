package snapshot

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
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
	// keys are those of byKey, sorted, number is where each is among them, and found holds the answers, by what selectors can see of a pod. All are made by the
	// first question.
	keys   []string
	seen   []string
	found  map[string][]int
	number map[string]int
	// byLabel are the selections that ask for a value of a label among some, by label and value, byNamespace the others that name namespaces, and others
	// the rest: a pod is matched with those alone that may find it.
	byLabel     map[string]map[string][]int
	byNamespace map[string][]int
	others      []int
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
	s.keys, s.found, s.number = sortedKeys(s.byKey), map[string][]int{}, map[string]int{}
	s.byLabel, s.byNamespace = map[string]map[string][]int{}, map[string][]int{}
	seen := map[string]bool{}
	for i, key := range s.keys {
		s.number[key] = i
		for _, one := range s.byKey[key] {
			requirements, _ := one.labels.Requirements()
			for _, r := range requirements {
				seen[r.Key()] = true
			}
		}
		s.file(i, s.byKey[key])
	}
	s.seen = sortedKeys(seen)
}

// file puts a selection where pods that it may find look for it.
func (s *selections) file(i int, all []selector) {
	for _, one := range all {
		requirements, _ := one.labels.Requirements()
		for _, r := range requirements {
			if op := r.Operator(); op == selection.In || op == selection.Equals || op == selection.DoubleEquals {
				if s.byLabel[r.Key()] == nil {
					s.byLabel[r.Key()] = map[string][]int{}
				}
				for value := range r.Values() {
					s.byLabel[r.Key()][value] = append(s.byLabel[r.Key()][value], i)
				}
				return
			}
		}
	}
	if len(all) == 0 || all[0].namespaces == nil {
		s.others = append(s.others, i)
		return
	}
	for _, namespace := range all[0].namespaces {
		s.byNamespace[namespace] = append(s.byNamespace[namespace], i)
	}
}

// candidates are the selections that may find the pod, sorted.
func (s *selections) candidates(pod *corev1.Pod) []int {
	all := slices.Concat(s.others, s.byNamespace[pod.Namespace])
	for key, value := range pod.Labels {
		all = append(all, s.byLabel[key][value]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// of returns the selections that find the pod, as their places among the keys, sorted.
func (s *selections) of(pod *corev1.Pod) []int {
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
		found = slices.DeleteFunc(s.candidates(pod), func(i int) bool {
			return slices.ContainsFunc(s.byKey[s.keys[i]], func(one selector) bool { return !one.finds(pod) })
		})
		s.found[looks.String()] = found
	}
	return found
}

// finds says whether a selection is among those that were found.
func (s *selections) finds(found []int, key string) bool {
	i, known := s.number[key]
	_, ok := slices.BinarySearch(found, i)
	return known && ok
}

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
