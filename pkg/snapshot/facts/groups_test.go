package facts_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

func podWith(labels, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "worker-0", Labels: labels, Annotations: annotations}}
}

func TestGroupThatAPodNames(t *testing.T) {
	t.Parallel()
	scheduling := podWith(map[string]string{facts.PluginGroupLabel: "other"}, nil)
	scheduling.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("train")}
	for name, c := range map[string]struct {
		pod   *corev1.Pod
		group string // "" is none.
		min   int64
		err   string // "" is none.
	}{
		"nothing":                     {pod: podWith(nil, map[string]string{"a": "b"})},
		"schedulingGroup comes first": {pod: scheduling, group: "scheduling.k8s.io/ml/train"},
		"the label of a plugin":       {pod: podWith(map[string]string{facts.PluginGroupLabel: "train"}, nil), group: "scheduling.x-k8s.io/ml/train"},
		"Volcano":                     {pod: podWith(nil, map[string]string{facts.VolcanoGroupAnnotation: "train"}), group: "scheduling.volcano.sh/ml/train"},
		"Volcano's other annotation":  {pod: podWith(nil, map[string]string{facts.VolcanoOtherGroupAnnotation: "train"}), group: "scheduling.volcano.sh/ml/train"},
		"KAI":                         {pod: podWith(nil, map[string]string{facts.KAIGroupAnnotation: "pg-train-1"}), group: "scheduling.run.ai/ml/pg-train-1"},
		"Kueue":                       {pod: podWith(map[string]string{facts.KueueGroupLabel: "train"}, map[string]string{facts.KueueTotalAnnotation: "4"}), group: "kueue.x-k8s.io/ml/train", min: 4},
		"Kueue, pod by pod":           {pod: podWith(map[string]string{facts.KueueGroupLabel: "train"}, map[string]string{facts.KueueTotalAnnotation: "4", facts.KueueFastAnnotation: "true"})},
		"Kueue, serving":              {pod: podWith(map[string]string{facts.KueueGroupLabel: "train"}, map[string]string{facts.KueueTotalAnnotation: "4", facts.KueueServingAnnotation: "true"})},
		"Kueue without a total":       {pod: podWith(map[string]string{facts.KueueGroupLabel: "train"}, map[string]string{"a": "b"}), err: facts.KueueTotalAnnotation},
		"own annotations":             {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: " 8 "}), group: "karve.sh/ml/train", min: 8},
		"without a minimum":           {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "train"}), err: "says how many pods"},
		"without a name":              {pod: podWith(nil, map[string]string{v1alpha1.GroupMinMembersAnnotation: "8"}), err: "names the group"},
		"an empty name":               {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "", v1alpha1.GroupMinMembersAnnotation: "8"}), err: "no name of a group"},
		"a name of two lines":         {pod: podWith(nil, map[string]string{facts.VolcanoGroupAnnotation: "a\nb"}), err: "no name of a group"},
		"a name that was cut":         {pod: podWith(nil, map[string]string{facts.KAIGroupAnnotation: "train... (more than 253 bytes)"}), err: "no name of a group"},
		"zero":                        {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: "0"}), err: "no number of pods"},
		"half a pod":                  {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: "0.5"}), err: "no number of pods"},
		"too many":                    {pod: podWith(nil, map[string]string{v1alpha1.GroupAnnotation: "train", v1alpha1.GroupMinMembersAnnotation: "2147483648"}), err: "no number of pods"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := facts.MembershipOf(c.pod)
			group := ""
			if m.Group.Name != "" {
				group = m.Group.String()
			}
			if group != c.group || m.Min != c.min {
				t.Errorf("it is %q with %d", group, m.Min)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func podGroup(api facts.GroupAPI, version string, content map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": string(api) + "/" + version, "kind": "PodGroup",
		"metadata": map[string]any{"namespace": "ml", "name": "train", "uid": "1", "creationTimestamp": "2026-01-02T03:04:05Z", "labels": map[string]any{"a": "b"}},
	}}
	maps.Copy(u.Object, content)
	return u
}

func TestPodGroupsOfEachAPIAreReadAndStayEqualWhenTrimmed(t *testing.T) {
	t.Parallel()
	type object = map[string]any
	gang := object{"gang": object{"minCount": int64(8)}}
	condition := func(kind, status, reason string) object {
		return object{"conditions": []any{object{"type": "Other", "status": "True"}, object{"type": kind, "status": status, "reason": reason}}}
	}
	for name, c := range map[string]struct {
		api     facts.GroupAPI
		version string
		content object
		want    facts.PodGroup
	}{
		"gang":  {facts.KubernetesGroups, "v1beta1", object{"spec": object{"schedulingPolicy": gang}}, facts.PodGroup{Min: 8}},
		"basic": {facts.KubernetesGroups, "v1beta1", object{"spec": object{"schedulingPolicy": object{"basic": object{}}}}, facts.PodGroup{}},
		"with a zone": {facts.KubernetesGroups, "v1alpha3", object{"spec": object{
			"schedulingPolicy": gang, "schedulingConstraints": object{"topology": []any{object{"key": "topology.kubernetes.io/zone"}}}, "disruptionMode": object{"all": object{}},
		}}, facts.PodGroup{Min: 8, Topology: "topology.kubernetes.io/zone", Whole: true}},
		"disruption mode of v1alpha2": {facts.KubernetesGroups, "v1alpha2", object{"spec": object{"schedulingPolicy": gang, "disruptionMode": "PodGroup"}}, facts.PodGroup{Min: 8, Whole: true}},
		"single pods are disrupted":   {facts.KubernetesGroups, "v1beta1", object{"spec": object{"schedulingPolicy": gang, "disruptionMode": object{"single": object{}}}}, facts.PodGroup{Min: 8}},
		"no room": {
			facts.KubernetesGroups, "v1beta1",
			object{"spec": object{"schedulingPolicy": gang}, "status": condition("PodGroupInitiallyScheduled", "False", "Unschedulable")},
			facts.PodGroup{Min: 8, Unschedulable: true},
		},
		"an error of the scheduler": {facts.KubernetesGroups, "v1beta1", object{"spec": object{"schedulingPolicy": gang}, "status": condition("PodGroupInitiallyScheduled", "False", "SchedulerError")}, facts.PodGroup{Min: 8, Unschedulable: true}},
		"plugin":                    {facts.PluginGroups, "v1alpha1", object{"spec": object{"minMember": int64(3)}}, facts.PodGroup{Min: 3}},
		"Volcano":                   {facts.VolcanoGroups, "v1beta1", object{"spec": object{"minMember": int64(3), "minTaskMember": object{"a": int64(1), "b": int64(1)}}}, facts.PodGroup{Min: 3}},
		"Volcano's tasks": {
			facts.VolcanoGroups, "v1beta1",
			object{"spec": object{"minMember": int64(1), "minTaskMember": object{"a": int64(4), "b": int64(1)}}, "status": condition("Unschedulable", "True", "NotEnoughResources")},
			facts.PodGroup{Min: 5, Unschedulable: true},
		},
		"KAI":           {facts.KAIGroups, "v2alpha2", object{"spec": object{"minMember": float64(2), "topologyConstraint": object{"requiredTopologyLevel": "example.com/rack"}}}, facts.PodGroup{Min: 2, Topology: "example.com/rack"}},
		"KAI, no label": {facts.KAIGroups, "v2alpha2", object{"spec": object{"minMember": int64(2), "topologyConstraint": object{"requiredTopologyLevel": "top level!"}}}, facts.PodGroup{Min: 2}},
		"KAI's sub-groups": {facts.KAIGroups, "v2alpha2", object{"spec": object{"subGroups": []any{
			object{"name": "leader", "minMember": int64(1)}, object{"name": "workers", "minMember": int64(8)},
		}}}, facts.PodGroup{Min: 9}},
		"two of KAI's three sub-groups": {facts.KAIGroups, "v2alpha2", object{"spec": object{"minSubGroup": int64(2), "subGroups": []any{
			object{"name": "a", "minMember": int64(5)},
			object{"name": "b"},
			object{"name": "c", "minSubGroup": int64(1)},
			object{"name": "b0", "parent": "b", "minMember": int64(2)},
			object{"name": "b1", "parent": "b", "minMember": int64(1)},
			object{"name": "c0", "parent": "c", "minMember": int64(7)},
			object{"name": "c1", "parent": "c", "minMember": int64(4)},
		}}}, facts.PodGroup{Min: 3 + 4}},
		"KAI's minimum is more than that of its sub-groups": {facts.KAIGroups, "v2alpha2", object{"spec": object{"minMember": int64(9), "subGroups": []any{object{"name": "a", "minMember": int64(5)}}}}, facts.PodGroup{Min: 9}},
		"sub-groups in a circle": {facts.KAIGroups, "v2alpha2", object{"spec": object{"minMember": int64(2), "subGroups": []any{
			object{"name": "a", "minMember": int64(3)}, object{"name": "a", "parent": "a", "minMember": int64(1)}, object{"name": "b", "parent": "c"}, object{"name": "c", "parent": "b"}, "none", object{"parent": int64(3)},
		}}}, facts.PodGroup{Min: 3}},
		"a parent of Kubernetes' PodGroup": {facts.KubernetesGroups, "v1beta1", object{"spec": object{"schedulingPolicy": gang, "parentCompositePodGroupName": "all"}}, facts.PodGroup{Min: 8}},
		"wrong types":                      {facts.VolcanoGroups, "v1beta1", object{"spec": object{"minMember": "3", "minTaskMember": []any{"a"}}, "status": object{"conditions": "none"}}, facts.PodGroup{}},
		"no spec":                          {facts.KubernetesGroups, "v1beta1", object{"spec": "x", "status": []any{}}, facts.PodGroup{}},
		"negative":                         {facts.PluginGroups, "v1alpha1", object{"spec": object{"minMember": int64(-3)}}, facts.PodGroup{}},
		"more than anyone":                 {facts.PluginGroups, "v1alpha1", object{"spec": object{"minMember": int64(1) << 60}}, facts.PodGroup{Min: facts.MaxMembers}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := podGroup(c.api, c.version, c.content)
			c.want.Version, c.want.UID = c.version, "1"
			c.want.Key, c.want.Created = facts.GroupKey{c.api, "ml", "train"}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			got := facts.PodGroupOf(u)
			got.Created = got.Created.UTC()
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("it is (-want +got):\n%s", diff)
			}
			facts.TrimPodGroup(u)
			if u.GetLabels() != nil || u.Object["spec"] != nil || u.GetUID() != "1" {
				t.Errorf("what is kept is %v", u.Object)
			}
			trimmed := facts.PodGroupOf(u)
			trimmed.Created = trimmed.Created.UTC()
			if diff := cmp.Diff(c.want, trimmed); diff != "" {
				t.Errorf("when it is trimmed, it is (-want +got):\n%s", diff)
			}
		})
	}
}

func TestIndexKnowsTheMembersOfGroups(t *testing.T) {
	t.Parallel()
	group := facts.GroupKey{facts.PluginGroups, "ml", "train"}
	pod := func(name string, edit func(*corev1.Pod)) *corev1.Pod {
		p := podWith(map[string]string{facts.PluginGroupLabel: "train"}, nil)
		p.Name = name
		edit(p)
		return p
	}
	names := func(x *facts.Index) string {
		var all []string
		for _, name := range []string{"bound", "ended", "failed", "other", "waits"} {
			for p := range x.Members(group) {
				if p.Name == name {
					all = append(all, name)
				}
			}
		}
		return strings.Join(all, " ")
	}
	before, _ := (*facts.Index)(nil).With(facts.Changes{Pods: map[string]*corev1.Pod{
		"ml/bound": pod("bound", func(p *corev1.Pod) { p.Spec.NodeName = "node" }), "ml/waits": pod("waits", func(*corev1.Pod) {}),
		"ml/ended": pod("ended", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), "ml/failed": pod("failed", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
		"ml/other": pod("other", func(p *corev1.Pod) { p.Labels = nil }),
	}})
	after, _ := before.With(facts.Changes{Pods: map[string]*corev1.Pod{"ml/waits": nil, "ml/bound": pod("bound", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), "ml/other": pod("other", func(*corev1.Pod) {})}})
	gone, _ := after.With(facts.Changes{Pods: map[string]*corev1.Pod{"ml/ended": nil, "ml/other": nil}})
	if got := [3]string{names(before), names(after), names(gone)}; got != [3]string{"bound ended waits", "ended other", ""} {
		t.Errorf("members are %q", got)
	}
}

func FuzzMembership(f *testing.F) {
	f.Add("train", "8", "train")
	f.Add("", "-1", "a\x00b")
	f.Add(strings.Repeat("x", 300), "99999999999999999999", "..")
	f.Fuzz(func(t *testing.T, name, minimum, other string) {
		for _, annotations := range []map[string]string{
			{v1alpha1.GroupAnnotation: name, v1alpha1.GroupMinMembersAnnotation: minimum}, {facts.VolcanoGroupAnnotation: other}, {facts.KAIGroupAnnotation: other, v1alpha1.GroupAnnotation: name},
		} {
			m, err := facts.MembershipOf(podWith(nil, annotations))
			if (err != nil) && m != (facts.Membership{}) {
				t.Errorf("there is an error and a group: %v, %+v", err, m)
			}
			if err == nil && (m.Min < 0 || m.Min > facts.MaxMembers || strings.ContainsAny(m.Group.Name, "\x00/ \n")) {
				t.Errorf("it is %+v", m)
			}
			if err != nil && len(err.Error()) > 512 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		}
	})
}
