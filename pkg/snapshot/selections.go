package snapshot

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"karve.sh/karve/pkg/snapshot/facts"
)

// selector matches pods by namespace and labels.
type selector struct {
	// namespaces are sorted. Nil matches all namespaces.
	namespaces []string
	// in is the text of the namespaces.
	in     string
	labels labels.Selector
}

// namespaceSet is a sorted list of namespaces with its text.
type namespaceSet struct {
	names []string
	text  string
}

func namespaceSetOf(names []string) namespaceSet {
	slices.Sort(names)
	names = slices.Compact(names)
	return namespaceSet{names, facts.ShortText(strings.Join(names, ","))}
}

func (s *selector) key() string {
	if _, selectable := s.labels.Requirements(); !selectable {
		return "nothing"
	}
	if s.namespaces == nil {
		return "*/" + s.labels.String()
	}
	return s.in + "/" + s.labels.String()
}

func (s *selector) selects(pod *corev1.Pod) bool {
	if s.namespaces != nil {
		if _, in := slices.BinarySearch(s.namespaces, pod.Namespace); !in {
			return false
		}
	}
	return s.labels.Matches(labels.Set(pod.Labels))
}

// selections holds all selections of pods in rules, so that each pod is matched with all of them at once. A selection is a list of selectors that must all
// match the pod, and is identified by a key.
type selections struct {
	byKey map[string][]selector
	// keys are the sorted keys of byKey, and number has the index of each of them. Both are built at the first lookup.
	keys   []string
	number map[string]int
	// byLabel has selections that require one of several values of a label, by label and value. Of the remaining ones, byNamespace has those that name
	// namespaces, and others has the rest. A pod is matched only with the selections that may match it.
	byLabel     map[string]map[string][]int
	byNamespace map[string][]int
	others      []int
	// selecting caches the namespaces that a namespaceSelector matches, by its text.
	selecting map[string]namespaceSet
}

// add registers a selection and returns its key. All selections must be added before the first lookup.
func (s *selections) add(all ...selector) string {
	parts := make([]string, len(all))
	for i := range all {
		parts[i] = all[i].key()
	}
	slices.Sort(parts)
	key := strings.Join(slices.Compact(parts), " & ")
	key = facts.ShortText(key)
	s.set(key, all)
	return key
}

func (s *selections) set(key string, all []selector) {
	if s.byKey == nil {
		s.byKey = map[string][]selector{}
	}
	s.byKey[key] = all
}

func (s *selections) freeze() {
	s.keys, s.number = slices.Sorted(maps.Keys(s.byKey)), map[string]int{}
	s.byLabel, s.byNamespace = map[string]map[string][]int{}, map[string][]int{}
	for i, key := range s.keys {
		s.number[key] = i
		s.indexSelection(i, s.byKey[key])
	}
}

// indexSelection adds a selection to the index in which candidates looks it up.
func (s *selections) indexSelection(i int, all []selector) {
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

// candidates returns the sorted selections that may match the pod.
func (s *selections) candidates(pod *corev1.Pod) []int {
	all := slices.Concat(s.others, s.byNamespace[pod.Namespace])
	for key, value := range pod.Labels {
		all = append(all, s.byLabel[key][value]...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// matching returns the sorted indices, in keys, of the selections that match the pod.
func (s *selections) matching(pod *corev1.Pod) []int {
	if len(s.byKey) == 0 {
		return nil
	}
	if s.number == nil {
		s.freeze()
	}
	return slices.DeleteFunc(s.candidates(pod), func(i int) bool {
		return slices.ContainsFunc(s.byKey[s.keys[i]], func(one selector) bool { return !one.selects(pod) })
	})
}

// includes reports whether found includes the selection.
func (s *selections) includes(found []int, key string) bool {
	i, known := s.number[key]
	_, ok := slices.BinarySearch(found, i)
	return known && ok
}

// namespacesOf returns the namespaces to which a term applies, for a pod in the namespace own. A set without names means all.
func namespacesOf(c *facts.Cluster, own string, named []string, selects *metav1.LabelSelector, known *selections) namespaceSet {
	if selects == nil {
		if len(named) == 0 {
			return namespaceSet{[]string{own}, own}
		}
		return namespaceSetOf(slices.Clone(named))
	}
	if len(selects.MatchLabels) == 0 && len(selects.MatchExpressions) == 0 {
		return namespaceSet{}
	}
	selector := selectorOf(selects)
	key := selector.String()
	all, ok := known.selecting[key]
	if !ok {
		names := []string{}
		for i := range c.Namespaces {
			if selector.Matches(labels.Set(c.Namespaces[i].Labels)) {
				names = append(names, c.Namespaces[i].Name)
			}
		}
		all = namespaceSetOf(names)
		if known.selecting == nil {
			known.selecting = map[string]namespaceSet{}
		}
		known.selecting[key] = all
	}
	if len(named) == 0 {
		return all
	}
	return namespaceSetOf(slices.Concat(all.names, named))
}

// selectorOf converts a selector. A nil or invalid selector matches nothing.
func selectorOf(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// narrowed returns the selector with further requirements: the pod's own value for the labels in same, and any value but the pod's for those in other.
// Labels that the pod does not have add no requirement. A nil selector matches nothing.
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
