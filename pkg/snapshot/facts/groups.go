package facts

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// Schedulers for batch jobs start the pods of a group together or not at all. Each has its own way to say which pods these are, and most have an object that says how
// many are needed. See docs/groups.md.

// GroupAPI is an API that makes groups of pods.
type GroupAPI string

// The APIs. All but the last two have PodGroup objects.
const (
	KubernetesGroups GroupAPI = "scheduling.k8s.io"
	PluginGroups     GroupAPI = "scheduling.x-k8s.io"
	VolcanoGroups    GroupAPI = "scheduling.volcano.sh"
	KAIGroups        GroupAPI = "scheduling.run.ai"
	KueueGroups      GroupAPI = "kueue.x-k8s.io"
	KarveGroups      GroupAPI = v1alpha1.Group
)

// PodGroupAPIs returns the APIs with PodGroup objects.
func PodGroupAPIs() []GroupAPI {
	return []GroupAPI{KubernetesGroups, PluginGroups, VolcanoGroups, KAIGroups}
}

// PodGroupKind returns the kind of the API's objects.
func (a GroupAPI) PodGroupKind() schema.GroupKind {
	return schema.GroupKind{Group: string(a), Kind: "PodGroup"}
}

// HasObjects reports whether a group of the API is an object.
func (a GroupAPI) HasObjects() bool { return a != KueueGroups && a != KarveGroups }

// The labels and annotations of pods that name their groups. Users, job controllers and the other schedulers write them.
const (
	PluginGroupLabel            = "scheduling.x-k8s.io/pod-group"
	VolcanoGroupAnnotation      = "scheduling.k8s.io/group-name"
	VolcanoOtherGroupAnnotation = "scheduling.volcano.sh/group-name"
	KAIGroupAnnotation          = "pod-group-name"
	KueueGroupLabel             = "kueue.x-k8s.io/pod-group-name"
	KueueTotalAnnotation        = "kueue.x-k8s.io/pod-group-total-count"
	// KueueFastAnnotation and KueueServingAnnotation mean that a group of Kueue starts pod by pod.
	KueueFastAnnotation    = "kueue.x-k8s.io/pod-group-fast-admission"
	KueueServingAnnotation = "kueue.x-k8s.io/pod-group-serving"
)

// GroupKey identifies a group.
type GroupKey struct {
	API             GroupAPI
	Namespace, Name string
}

// Compare orders groups by their namespaces, names and APIs.
func (k GroupKey) Compare(o GroupKey) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name), strings.Compare(string(k.API), string(o.API)))
}

// String returns a text that no other group has.
func (k GroupKey) String() string { return string(k.API) + "/" + k.Namespace + "/" + k.Name }

// Title returns the group as people know it. It may be that of a group of another API as well.
func (k GroupKey) Title() string {
	kind := "PodGroup"
	switch k.API { //nolint:exhaustive // All others have PodGroups.
	case KueueGroups:
		kind = "Kueue pod group"
	case KarveGroups:
		kind = "group"
	}
	return kind + " " + k.Namespace + "/" + k.Name
}

// Membership is what a pod says about its group.
type Membership struct {
	Group GroupKey
	// Min is how many pods are needed at once. It is 0 if the group's object says so.
	Min int64
	// By is the field, label or annotation that names the group.
	By string
}

// MaxMembers is the largest number of pods that a group may need at once.
const MaxMembers = math.MaxInt32

// MembershipOf returns the group that a pod names. The zero value means that it names none. The error says why what it names does not count, and what to do.
func MembershipOf(pod *corev1.Pod) (Membership, error) {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return membershipIn(pod, KubernetesGroups, *g.PodGroupName, "spec.schedulingGroup")
	}
	if name := pod.Labels[PluginGroupLabel]; name != "" {
		return membershipIn(pod, PluginGroups, name, "label "+PluginGroupLabel)
	}
	if len(pod.Annotations) == 0 {
		return Membership{}, nil // Those below need an annotation.
	}
	for _, key := range []string{VolcanoGroupAnnotation, VolcanoOtherGroupAnnotation} {
		if name := pod.Annotations[key]; name != "" {
			return membershipIn(pod, VolcanoGroups, name, "annotation "+key)
		}
	}
	if name := pod.Annotations[KAIGroupAnnotation]; name != "" {
		return membershipIn(pod, KAIGroups, name, "annotation "+KAIGroupAnnotation)
	}
	if name := pod.Labels[KueueGroupLabel]; name != "" && pod.Annotations[KueueFastAnnotation] != "true" && pod.Annotations[KueueServingAnnotation] != "true" {
		return membershipWithMin(pod, KueueGroups, name, "label "+KueueGroupLabel, KueueTotalAnnotation)
	}
	name, named := pod.Annotations[v1alpha1.GroupAnnotation]
	if _, counted := pod.Annotations[v1alpha1.GroupMinMembersAnnotation]; counted && !named {
		return Membership{}, fmt.Errorf("annotation %s is ignored without %s, which names the group: add it", v1alpha1.GroupMinMembersAnnotation, v1alpha1.GroupAnnotation)
	}
	if !named {
		return Membership{}, nil
	}
	return membershipWithMin(pod, KarveGroups, name, "annotation "+v1alpha1.GroupAnnotation, v1alpha1.GroupMinMembersAnnotation)
}

// membershipIn returns the membership in a group with a name that a user wrote.
func membershipIn(pod *corev1.Pod, api GroupAPI, name, by string) (Membership, error) {
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return Membership{}, fmt.Errorf("%s: %.64q is no name of a group (lower case letters, digits, '-' and '.', at most %d characters); the pod is planned alone", by, name, validation.DNS1123SubdomainMaxLength)
	}
	return Membership{Group: GroupKey{api, pod.Namespace, name}, By: by}, nil
}

// membershipWithMin returns the membership in a group of which the pod says how many pods are needed.
func membershipWithMin(pod *corev1.Pod, api GroupAPI, name, by, minimum string) (Membership, error) {
	m, err := membershipIn(pod, api, name, by)
	if err != nil {
		return Membership{}, err
	}
	text, ok := pod.Annotations[minimum]
	if !ok {
		return Membership{}, fmt.Errorf("%s is ignored without annotation %s, which says how many pods the group needs at once: add it; the pod is planned alone", by, minimum)
	}
	if m.Min, err = parseMembers(text); err != nil {
		return Membership{}, fmt.Errorf("annotation %s: %w; the pod is planned alone", minimum, err)
	}
	return m, nil
}

func parseMembers(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 1 || n > MaxMembers {
		return 0, fmt.Errorf("%.32q is no number of pods: write one from 1 to %d", text, MaxMembers)
	}
	return n, nil
}

// PodGroup is what decisions read of a PodGroup.
type PodGroup struct {
	Key GroupKey
	// Version is the version of the API in which it was read.
	Version string
	UID     types.UID
	// Min is how many pods are needed at once. It is 0 if each of them is of use alone.
	Min int64
	// Topology is the node label of which all pods must have the same value, or "".
	Topology string
	// Whole reports whether the pods are only disrupted together.
	Whole bool
	// Unschedulable reports whether the scheduler says that it found no room for enough of the pods.
	Unschedulable bool
	Created       time.Time
}

// Reference returns a reference to the object, for events.
func (g PodGroup) Reference() *corev1.ObjectReference {
	kind := g.Key.API.PodGroupKind().WithVersion(g.Version)
	return &corev1.ObjectReference{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Namespace: g.Key.Namespace, Name: g.Key.Name, UID: g.UID}
}

// PodGroups are the PodGroups of a cluster.
type PodGroups struct {
	// Served has the APIs that the API server serves. Labels and annotations of others mean nothing.
	Served map[GroupAPI]bool
	All    map[GroupKey]PodGroup
}

// trimmedField has what decisions read of a PodGroup in a cache. No object of the API server has a field with this name.
const trimmedField = "karve.sh/podGroup"

// PodGroupOf reads a PodGroup. Fields of wrong types count as missing.
func PodGroupOf(u *unstructured.Unstructured) PodGroup {
	api := GroupAPI(u.GroupVersionKind().Group)
	g := PodGroup{Key: GroupKey{api, u.GetNamespace(), u.GetName()}, Version: u.GroupVersionKind().Version, UID: u.GetUID(), Created: u.GetCreationTimestamp().Time}
	if kept, ok := u.Object[trimmedField].(map[string]any); ok {
		g.Min, g.Topology = memberCount(kept["min"]), stringOf(kept["topology"])
		g.Whole, g.Unschedulable = kept["whole"] == true, kept["unschedulable"] == true
		return g
	}
	spec := fieldsAt(u.Object, "spec")
	switch api {
	case KubernetesGroups:
		g.Min = memberCount(fieldsAt(spec, "schedulingPolicy", "gang")["minCount"])
		if all, ok := fieldsAt(spec, "schedulingConstraints")["topology"].([]any); ok && len(all) > 0 {
			first, _ := all[0].(map[string]any)
			g.Topology = stringOf(first["key"])
		}
		mode := spec["disruptionMode"]
		_, all := fieldsAt(spec, "disruptionMode")["all"]
		g.Whole = mode == "PodGroup" || all
	case VolcanoGroups:
		sum := int64(0)
		for _, n := range fieldsAt(spec, "minTaskMember") {
			sum = min(sum+memberCount(n), MaxMembers)
		}
		g.Min = max(memberCount(spec["minMember"]), sum)
	case KAIGroups:
		g.Min, g.Topology = max(memberCount(spec["minMember"]), membersOfSubGroups(spec)), stringOf(fieldsAt(spec, "topologyConstraint")["requiredTopologyLevel"])
	default:
		g.Min = memberCount(spec["minMember"])
	}
	if len(validation.IsQualifiedName(g.Topology)) > 0 { // It is no label.
		g.Topology = ""
	}
	g.Unschedulable = saysUnschedulable(api, fieldsAt(u.Object, "status")["conditions"])
	return g
}

// membersOfSubGroups returns how many pods the sub-groups of KAI's PodGroup need together: each its minMember, or as many of its own sub-groups as minSubGroup says, or all. Of these, the smallest count.
func membersOfSubGroups(spec map[string]any) int64 {
	all, _ := spec["subGroups"].([]any)
	children := map[string][]map[string]any{}
	for _, s := range all {
		if s, ok := s.(map[string]any); ok {
			children[stringOf(s["parent"])] = append(children[stringOf(s["parent"])], s)
		}
	}
	var need func(name string, of map[string]any) int64
	need = func(name string, of map[string]any) int64 {
		subs := children[name]
		delete(children, name) // A name that two sub-groups have, or a circle, counts once.
		needs := make([]int64, len(subs))
		for i, s := range subs {
			if child := stringOf(s["name"]); child != "" {
				needs[i] = need(child, s)
			}
		}
		slices.Sort(needs)
		if k := memberCount(of["minSubGroup"]); k > 0 && k < int64(len(needs)) {
			needs = needs[:k]
		}
		sum := int64(0)
		for _, n := range needs {
			sum = min(sum+n, MaxMembers)
		}
		return max(sum, memberCount(of["minMember"]))
	}
	return need("", spec)
}

// saysUnschedulable reports whether the conditions of a PodGroup say that there is no room for it.
func saysUnschedulable(api GroupAPI, conditions any) bool {
	all, _ := conditions.([]any)
	for _, c := range all {
		c, _ := c.(map[string]any)
		switch kind, status := c["type"], c["status"]; {
		case api == KubernetesGroups && (kind == "PodGroupInitiallyScheduled" || kind == "PodGroupScheduled"):
			// The scheduler of Kubernetes 1.37 ends with an error: see karpenter.IsProvisionable.
			return status == string(corev1.ConditionFalse) && (c["reason"] == corev1.PodReasonUnschedulable || c["reason"] == corev1.PodReasonSchedulerError)
		case api == VolcanoGroups && kind == "Unschedulable" && status == string(corev1.ConditionTrue):
			return true
		}
	}
	return false
}

// TrimPodGroup removes what PodGroupOf does not read of a PodGroup.
func TrimPodGroup(u *unstructured.Unstructured) {
	g := PodGroupOf(u)
	kept := &unstructured.Unstructured{Object: map[string]any{trimmedField: map[string]any{
		"min": g.Min, "topology": strings.Clone(g.Topology), "whole": g.Whole, "unschedulable": g.Unschedulable,
	}}}
	kept.SetGroupVersionKind(u.GroupVersionKind())
	kept.SetNamespace(u.GetNamespace())
	kept.SetName(u.GetName())
	kept.SetUID(u.GetUID())
	kept.SetResourceVersion(u.GetResourceVersion())
	kept.SetGeneration(u.GetGeneration())
	kept.SetCreationTimestamp(u.GetCreationTimestamp())
	kept.SetDeletionTimestamp(u.GetDeletionTimestamp())
	u.Object = kept.Object
}

// fieldsAt returns the object at a path of fields, or nil if there is none.
func fieldsAt(object map[string]any, path ...string) map[string]any {
	for _, field := range path {
		object, _ = object[field].(map[string]any)
	}
	return object
}

// memberCount returns a number of pods from 0 to MaxMembers. Whatever is no such number is 0.
func memberCount(value any) int64 {
	switch n := value.(type) {
	case int64:
		return max(0, min(n, MaxMembers))
	case float64:
		if n >= 0 && n <= MaxMembers {
			return int64(n)
		}
	}
	return 0
}

func stringOf(value any) string {
	s, _ := value.(string)
	return s
}

// NewPodGroups returns the PodGroups of the APIs that are served.
func NewPodGroups(served []GroupAPI, all []PodGroup) PodGroups {
	groups := PodGroups{Served: map[GroupAPI]bool{}, All: make(map[GroupKey]PodGroup, len(all))}
	for _, api := range served {
		groups.Served[api] = true
	}
	for i := range all {
		groups.All[all[i].Key] = all[i]
	}
	return groups
}

func isGrouped(pod *corev1.Pod) bool {
	m, err := MembershipOf(pod)
	return err == nil && m.Group.Name != ""
}

// IsGated reports whether a pod has a scheduling gate, so that no scheduler may bind it yet.
func IsGated(pod *corev1.Pod) bool {
	if len(pod.Spec.SchedulingGates) > 0 {
		return true
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonSchedulingGated
		}
	}
	return false
}
