package scheduler

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
)

// Complains reports whether the plan for a scenario has a complaint of the given kind. It returns false for an invalid scenario.
func (f *Filter) Complains(s *Scenario, kind string) bool {
	outcome, err := f.Judge(s)
	return err == nil && slices.ContainsFunc(outcome.Complaints, func(c Complaint) bool { return c.Kind == kind })
}

// Shrink removes from a scenario whatever it can while fails still returns true.
func Shrink(s *Scenario, fails func(*Scenario) bool) *Scenario {
	for {
		smaller := shrinkOnce(s, fails)
		if smaller == nil {
			return s
		}
		s = smaller
	}
}

// shrinkOnce removes what it can in one round. It returns nil if that is nothing.
func shrinkOnce(s *Scenario, fails func(*Scenario) bool) *Scenario {
	var smaller *Scenario
	attempt := func(try *Scenario) {
		if !reflect.DeepEqual(try, s) && fails(try) {
			s, smaller = try, try
		}
	}
	s = s.Clone() // Compare decoded scenarios with decoded scenarios only.
	for _, list := range cuts {
		for i := list.length(s) - 1; i >= 0; i-- {
			if i >= list.length(s) {
				continue // Removing another element removed this one too.
			}
			try := s.Clone()
			list.cut(try, i)
			attempt(try)
		}
	}
	for _, app := range apps(s) {
		for _, path := range paths(firstOf(s, app)) {
			if try := without(s, app, path); try != nil {
				attempt(try)
			}
		}
	}
	return smaller
}

// cuttable is a list whose elements can be removed.
type cuttable struct {
	length func(s *Scenario) int
	cut    func(s *Scenario, i int)
}

func listed[T any](of func(s *Scenario) *[]T) cuttable {
	return cuttable{
		func(s *Scenario) int { return len(*of(s)) },
		func(s *Scenario, i int) { *of(s) = slices.Delete(*of(s), i, i+1) },
	}
}

var cuts = []cuttable{
	// Removing a node also removes what is on it.
	{func(s *Scenario) int { return len(s.Nodes) }, func(s *Scenario, i int) { s.removeNode(s.Nodes[i].Name) }},
	{func(s *Scenario) int { return len(s.NodeClaims) }, func(s *Scenario, i int) { s.removeNode(s.NodeClaims[i].Name) }},
	listed(func(s *Scenario) *[]corev1.Pod { return &s.Pods }),
	listed(func(s *Scenario) *[]karpv1.NodePool { return &s.NodePools }),
	listed(func(s *Scenario) *[]appsv1.DaemonSet { return &s.DaemonSets }),
	listed(func(s *Scenario) *[]catalog.InstanceType { return &s.InstanceTypes }),
	listed(func(s *Scenario) *[]corev1.PersistentVolumeClaim { return &s.PersistentVolumeClaims }),
	listed(func(s *Scenario) *[]corev1.PersistentVolume { return &s.PersistentVolumes }),
	listed(func(s *Scenario) *[]storagev1.StorageClass { return &s.StorageClasses }),
	listed(func(s *Scenario) *[]storagev1.CSINode { return &s.CSINodes }),
	{func(s *Scenario) int { return len(s.Refused) }, func(s *Scenario, _ int) { s.Refused = nil }},
	{func(s *Scenario) int { return min(1, s.Arrival) }, func(s *Scenario, _ int) { s.Arrival = 0 }},
	nested(func(s *Scenario, i int) (*[]catalog.Offering, bool) {
		return at(s.InstanceTypes, i, func(t *catalog.InstanceType) *[]catalog.Offering { return &t.Offerings })
	}),
	nested(func(s *Scenario, i int) (*[]karpv1.NodeSelectorRequirementWithMinValues, bool) {
		return at(s.NodePools, i, func(p *karpv1.NodePool) *[]karpv1.NodeSelectorRequirementWithMinValues {
			return &p.Spec.Template.Spec.Requirements
		})
	}),
	nested(func(s *Scenario, i int) (*[]corev1.Taint, bool) {
		return at(s.NodePools, i, func(p *karpv1.NodePool) *[]corev1.Taint { return &p.Spec.Template.Spec.Taints })
	}),
	{func(s *Scenario) int { return len(s.NodePools) }, func(s *Scenario, i int) { s.NodePools[i].Spec.Limits = nil }},
	{func(s *Scenario) int { return len(s.NodePools) }, func(s *Scenario, i int) { s.NodePools[i].Spec.Weight = nil }},
	{func(s *Scenario) int { return len(s.NodePools) }, func(s *Scenario, i int) { s.NodePools[i].Spec.Template.Labels = nil }},
}

func at[T, E any](list []T, i int, of func(*T) *[]E) (*[]E, bool) {
	if i >= len(list) {
		return nil, false
	}
	return of(&list[i]), true
}

// nested makes the elements of inner lists cuttable, with one index across all inner lists.
func nested[E any](of func(s *Scenario, i int) (*[]E, bool)) cuttable {
	return cuttable{
		func(s *Scenario) int {
			n := 0
			for i := 0; ; i++ {
				list, ok := of(s, i)
				if !ok {
					return n
				}
				n += len(*list)
			}
		},
		func(s *Scenario, n int) {
			for i := 0; ; i++ {
				list, _ := of(s, i)
				if n < len(*list) {
					*list = slices.Delete(*list, n, n+1)
					return
				}
				n -= len(*list)
			}
		},
	}
}

func (s *Scenario) removeNode(name string) {
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n corev1.Node) bool { return n.Name == name })
	s.NodeClaims = slices.DeleteFunc(s.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == name })
	s.CSINodes = slices.DeleteFunc(s.CSINodes, func(n storagev1.CSINode) bool { return n.Name == name })
	s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == name })
}

// apps returns the names of the workloads.
func apps(s *Scenario) []string {
	names := map[string]bool{}
	for i := range s.Pods {
		if app := s.Pods[i].Labels["app"]; app != "" {
			names[app] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func firstOf(s *Scenario, app string) *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Labels["app"] == app {
			return &s.Pods[i]
		}
	}
	return nil
}

// optional are fields of a pod's spec that can be removed, or whose entries can be.
var optional = map[string]bool{
	"affinity": true, "nodeAffinity": true, "podAffinity": true, "podAntiAffinity": true, "nodeSelector": true, "tolerations": true,
	"requiredDuringSchedulingIgnoredDuringExecution": true, "preferredDuringSchedulingIgnoredDuringExecution": true,
	"topologySpreadConstraints": true, "minDomains": true, "nodeAffinityPolicy": true, "nodeTaintsPolicy": true, "matchLabelKeys": true,
	"mismatchLabelKeys": true, "namespaces": true, "namespaceSelector": true, "overhead": true, "initContainers": true, "containers": true,
	"volumes": true, "priority": true, "ports": true, "resources": true, "requests": true, "hostIP": true, "nodeSelectorTerms": true,
	"matchExpressions": true, "matchFields": true, "matchLabels": true,
}

// paths returns the paths of what can be removed from a pod's spec, the larger parts first.
func paths(pod *corev1.Pod) [][]string {
	if pod == nil {
		return nil
	}
	var found [][]string
	var walk func(tree any, path []string, within bool)
	walk = func(tree any, path []string, within bool) {
		entry := func(key string, value any, may bool) {
			deeper := append(slices.Clone(path), key)
			if may {
				found = append(found, deeper)
			}
			walk(value, deeper, optional[key])
		}
		switch t := tree.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(t)) {
				entry(key, t[key], optional[key] || within)
			}
		case []any:
			for i, value := range slices.Backward(t) {
				entry(strconv.Itoa(i), value, within)
			}
		}
	}
	walk(treeOf(pod.Spec), nil, false)
	slices.SortStableFunc(found, func(a, b []string) int { return len(a) - len(b) })
	return found
}

// without returns the scenario without the field at the path in the specs of an app's pods, or nil if none of them has it.
func without(s *Scenario, app string, path []string) *Scenario {
	try := s.Clone()
	changed := false
	for i := range try.Pods {
		pod := &try.Pods[i]
		if pod.Labels["app"] != app {
			continue
		}
		tree, ok := removed(treeOf(pod.Spec), path)
		if !ok {
			continue
		}
		data, err := json.Marshal(tree)
		var spec corev1.PodSpec
		if err != nil || json.Unmarshal(data, &spec) != nil {
			return nil
		}
		pod.Spec, changed = spec, true
	}
	if !changed {
		return nil
	}
	return try
}

func treeOf(spec corev1.PodSpec) any {
	data, err := json.Marshal(spec)
	if err != nil {
		panic(err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		panic(err)
	}
	return tree
}

// removed returns the tree without the value at the path, and whether there was one.
func removed(tree any, path []string) (any, bool) {
	switch t := tree.(type) {
	case map[string]any:
		value, ok := t[path[0]]
		if !ok {
			return nil, false
		}
		if len(path) == 1 {
			delete(t, path[0])
			return t, true
		}
		t[path[0]], ok = removed(value, path[1:])
		return t, ok
	case []any:
		i, err := strconv.Atoi(path[0])
		if err != nil || i >= len(t) {
			return nil, false
		}
		if len(path) == 1 {
			return slices.Delete(t, i, i+1), true
		}
		var ok bool
		t[i], ok = removed(t[i], path[1:])
		return t, ok
	}
	return nil, false
}
