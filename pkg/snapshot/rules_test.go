package snapshot_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

func TestRulesMatchScheduler(t *testing.T) {
	t.Parallel()
	honor, ignore := corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore
	policies := func(affinity, taints *corev1.NodeInclusionPolicy) func(*corev1.TopologySpreadConstraint) {
		return func(c *corev1.TopologySpreadConstraint) { c.NodeAffinityPolicy, c.NodeTaintsPolicy = affinity, taints }
	}
	onA := Selecting(zone, "us-east-1a")
	elsewhere := func(c *facts.Cluster) {
		c.Nodes[2].Spec.Taints = []corev1.Taint{{Key: "cpu-only", Effect: corev1.TaintEffectNoSchedule}}
	}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		edit func(*facts.Cluster)
		want []string
	}{
		"spread counts running pods by zone, and every zone": {
			[]corev1.Pod{
				Pod("w", inApp("web"), spreadOver(zone, "web")), Pod("r1", inApp("web"), Running("m-a")), Pod("r2", inApp("web"), Running("m-a")),
				Pod("r3", inApp("web"), Running("cpu-c")), Pod("other", inApp("db"), Running("m-a")), Pod("far", inApp("web"), in("far"), Running("m-a")),
				Pod("ended", inApp("web"), Running("m-a"), func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }),
				Pod("ends", inApp("web"), Running("m-a"), func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(Now)) }),
				Pod("lost", inApp("web"), Running("no-node")),
			}, nil, []string{"Spread " + zone + " of w counts w us-east-1a=2 us-east-1c=1"},
		},
		"spread over hosts": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver(host, "web")), Pod("r", inApp("web"), Running("m-b")), Pod("c", inApp("web"), Running("cpu-c"))},
			nil,
			[]string{"Spread of w counts w m-b=1 elsewhere=1"},
		},
		"spread counts nodes that the pod's selector matches": {
			[]corev1.Pod{Pod("w", inApp("web"), onA, spreadOver(zone, "web")), Pod("r1", inApp("web"), Running("m-a")), Pod("r2", inApp("web"), Running("m-b"))},
			nil,
			[]string{"Spread " + zone + " of w counts w us-east-1a=1 among us-east-1a"},
		},
		"spread counts all nodes with nodeAffinityPolicy Ignore": {
			[]corev1.Pod{Pod("w", inApp("web"), onA, spreadOver(zone, "web", policies(&ignore, nil))), Pod("r2", inApp("web"), Running("m-b"))},
			nil,
			[]string{"Spread " + zone + " of w counts w us-east-1b=1"},
		},
		"spread counts tainted nodes": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver(zone, "web")), Pod("r", inApp("web"), Running("cpu-c"))},
			elsewhere,
			[]string{"Spread " + zone + " of w counts w us-east-1c=1"},
		},
		"spread ignores tainted nodes with nodeTaintsPolicy Honor": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver(zone, "web", policies(&honor, &honor))), Pod("r", inApp("web"), Running("cpu-c"))},
			elsewhere,
			[]string{"Spread " + zone + " of w counts w among us-east-1a us-east-1b"},
		},
		"spread counts offerings for other pods": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver("karpenter.sh/nodepool", "web"))},
			func(c *facts.Cluster) {
				c.NodePools = append(c.NodePools, Pool("other", "gpu-shared", Tainted("other")))
			},
			[]string{"Spread karpenter.sh/nodepool of w counts w"},
		},
		"spread ignores offerings for other pods with nodeTaintsPolicy Honor": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver("karpenter.sh/nodepool", "web", policies(nil, &honor)))},
			func(c *facts.Cluster) {
				c.NodePools = append(c.NodePools, Pool("other", "gpu-shared", Tainted("other")))
			},
			[]string{"Spread karpenter.sh/nodepool of w counts w among gpu-shared"},
		},
		"spread counts nodes with the labels of all constraints": {
			[]corev1.Pod{
				Pod("w", inApp("web"), spreadOver(zone, "web"), spreadOver("rack", "web"), spreadOver(host, "web")),
				Pod("r1", inApp("web"), Running("m-a")), Pod("r2", inApp("web"), Running("m-b")),
			},
			func(c *facts.Cluster) {
				Requiring("rack", corev1.NodeSelectorOpIn, "1")(&c.NodePools[0])
				c.Nodes[1].Labels["rack"] = "1"
			},
			[]string{
				"Spread " + zone + " of w counts w us-east-1b=1 among us-east-1a us-east-1b", "Spread rack of w counts w 1=1",
				"Spread of w counts w m-b=1",
			},
		},
		"spread among pods of the same revision": {
			[]corev1.Pod{
				Pod("w1", inApp("web"), WithLabels("rev", "1"), spreadOver(zone, "web", byRevision)), Pod("w2", inApp("web"), WithLabels("rev", "2"), spreadOver(zone, "web", byRevision)),
				Pod("r1", inApp("web"), WithLabels("rev", "1"), Running("m-a")), Pod("r2", inApp("web"), WithLabels("rev", "2"), Running("m-b")),
			},
			nil,
			[]string{"Spread " + zone + " of w1 counts w1 us-east-1a=1", "Spread " + zone + " of w2 counts w2 us-east-1b=1"},
		},
		"spread that does not count its own pods": {
			[]corev1.Pod{Pod("w", spreadOver(zone, "web")), Pod("x", inApp("web")), Pod("r1", inApp("web"), Running("m-a"))},
			nil,
			[]string{"Spread " + zone + " of w counts x us-east-1a=1"},
		},
		"spread that counts no pods": {
			[]corev1.Pod{Pod("w", spreadOver(zone, "web")), Pod("v", inApp("v"), spreadOver(zone, "", selectAll)), Pod("u", spreadOver(zone, "", selectNone))}, nil, nil,
		},
		"two spreads of one Deployment count nodes with both labels": {
			append(Pods("w", 3, inApp("web"), spreadOver(zone, "web"), spreadOver(host, "web")),
				Pod("r", inApp("web"), Running("m-a")), Pod("no-host", inApp("web"), Running("cpu-c"))),
			func(c *facts.Cluster) { delete(c.Nodes[2].Labels, host) },
			[]string{"Spread " + zone + " of w-000 counts w-000 us-east-1a=1 among us-east-1a us-east-1b", "Spread of w-000 counts w-000 m-a=1"},
		},
		"two spreads, before there are nodes": {
			[]corev1.Pod{Pod("w", inApp("web"), spreadOver(zone, "web"), spreadOver(host, "web"))},
			func(c *facts.Cluster) { c.Nodes = c.Nodes[2:] },
			[]string{"Spread " + zone + " of w counts w", "Spread of w counts w"},
		},
		"affinity to running pods": {
			[]corev1.Pod{Pod("w", near(zone, "db")), Pod("db", inApp("db"), Running("m-b")), Pod("cpu", inApp("db"), Running("cpu-c"))},
			nil,
			[]string{"Together " + zone + " of w counts  us-east-1b=1 us-east-1c=1"},
		},
		"affinity to pending pods": {
			[]corev1.Pod{Pod("w", near(host, "db")), Pod("db", inApp("db")), Pod("cpu", inApp("db"), Running("cpu-c"))},
			nil,
			[]string{"Together of w counts db elsewhere=1"},
		},
		"affinity to pods that match all terms": {
			[]corev1.Pod{
				Pod("w", func(pod *corev1.Pod) {
					near(zone, "db")(pod)
					terms := &pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
					*terms = append(*terms, corev1.PodAffinityTerm{TopologyKey: host, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "1"}}})
				}),
				Pod("one", inApp("db"), Running("m-a")), Pod("both", inApp("db"), WithLabels("tier", "1"), Running("m-b")),
			},
			nil,
			[]string{"Together " + zone + " of w counts  us-east-1b=1", "Together of w counts  m-b=1"},
		},
		"affinity by two topology keys, one of which matches": {
			[]corev1.Pod{Pod("w", inApp("db"), near(zone, "db", "db"), func(pod *corev1.Pod) {
				pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[1].TopologyKey = karpv1.CapacityTypeLabelKey
			}), Pod("cpu", inApp("db"), Running("cpu-c"))},
			nil,
			[]string{"Together " + zone + " of w counts w us-east-1c=1", "Together " + karpv1.CapacityTypeLabelKey + " of w counts w elsewhere=1"},
		},
		"anti-affinity among pending pods": {
			append(Pods("w", 2, inApp("web"), away(host, "web")), Pod("x", inApp("web")), Pod("y", inApp("db"))),
			nil,
			[]string{"Apart of w-000 counts w-000,x"},
		},
		"anti-affinity to running pods only": {
			[]corev1.Pod{Pod("w", away(zone, "web")), Pod("r", inApp("web"), Running("m-a"))}, nil, nil,
		},
		"namespaces by name and by label": {
			[]corev1.Pod{
				Pod("w", func(pod *corev1.Pod) {
					near(zone, "db", "db")(pod)
					terms := pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
					terms[0].Namespaces, terms[0].NamespaceSelector = []string{"named"}, app("red")
					terms[1].NamespaceSelector = &metav1.LabelSelector{}
				}),
				Pod("own", inApp("db"), Running("m-a")), Pod("named", in("named"), inApp("db"), Running("m-a")),
				Pod("red", in("red"), inApp("db"), Running("m-b")), Pod("blue", in("blue"), inApp("db"), Running("m-b")),
			},
			func(c *facts.Cluster) {
				for _, name := range []string{"red", "blue"} {
					c.Namespaces = append(c.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}})
				}
			},
			[]string{"Together " + zone + " of w counts  us-east-1a=1 us-east-1b=1"},
		},
		"mismatchLabelKeys": {
			[]corev1.Pod{
				Pod("w", inApp("web"), WithLabels("team", "red"), func(pod *corev1.Pod) {
					away(zone, "web")(pod)
					pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].MismatchLabelKeys = []string{"team", "none"}
				}),
				Pod("x", inApp("web"), WithLabels("team", "blue")), Pod("y", inApp("web"), WithLabels("team", "red")),
			}, nil, []string{"Apart " + zone + " of w counts x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := twoZones()
			c.Pods = tc.pods
			if tc.edit != nil {
				tc.edit(c)
			}
			view := snapshot.Build(c)
			got := formatRules(t, view)
			slices.Sort(tc.want)
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			for _, class := range view.Classes {
				if class.Blocked != nil || len(class.Preferences) > 0 {
					t.Errorf("class %+v", class)
				}
			}
		})
	}
}

func byRevision(c *corev1.TopologySpreadConstraint) { c.MatchLabelKeys = []string{"rev"} }

func selectAll(c *corev1.TopologySpreadConstraint) { c.LabelSelector = &metav1.LabelSelector{} }

func selectNone(c *corev1.TopologySpreadConstraint) { c.LabelSelector = nil }

func TestSpreadRuleHasMaxSkewAndMinDomains(t *testing.T) {
	t.Parallel()
	c := twoZones()
	c.Pods = []corev1.Pod{Pod("w", inApp("web"), spreadOver(zone, "web", func(c *corev1.TopologySpreadConstraint) { c.MaxSkew, c.MinDomains = 2, new(int32(3)) }))}
	rule := snapshot.Build(c).Rules[0]
	if rule.MaxSkew != 2 || rule.MinDomains != 3 || rule.Name != "topologySpreadConstraints on "+zone {
		t.Errorf("rule: %+v", rule)
	}
}

func TestOfferingsAndNodesHaveTheirDomains(t *testing.T) {
	t.Parallel()
	c := twoZones()
	Requiring("team", corev1.NodeSelectorOpIn, "red", "blue")(&c.NodePools[0])
	c.NodeClaims = append(c.NodeClaims, Claim("new", &c.NodePools[0], xlarge))
	c.Pods = []corev1.Pod{Pod("w", inApp("web"), near("team", "web"), spreadOver(zone, "web"), away(host, "web"))}
	view := snapshot.Build(c)
	want := []planner.Topology{{Key: "team", Domains: []string{"blue", "red"}}, {Key: zone, Domains: []string{"us-east-1a", "us-east-1b", "us-east-1c"}}}
	if diff := cmp.Diff(want, view.Topologies); diff != "" {
		t.Fatalf("topologies (-want +got):\n%s", diff)
	}
	for i, o := range view.Snapshot.Offerings {
		if want[0].Domains[o.Domains[0]] != view.Offerings[i].CustomLabels["team"] || want[1].Domains[o.Domains[1]] != o.Zone {
			t.Errorf("offering %+v", o)
		}
	}
	for i, want := range [][]int{{-1, 0}, {-1, 1}, {-1, 0}} {
		if diff := cmp.Diff(want, view.Nodes[i].Domains); diff != "" {
			t.Errorf("node %s (-want +got):\n%s", view.Nodes[i].Name, diff)
		}
	}
	// A pod with an affinity by a label cannot run on nodes without the label.
	if class := view.Classes[0]; len(class.Nodes) != 0 || len(class.Offerings) != len(view.Offerings) {
		t.Errorf("on nodes %v, by %d offerings", class.Nodes, len(class.Offerings))
	}
}

// places returns the zones of the offerings and the names of the nodes that admit a pod.
func places(view snapshot.View, pod string) []string {
	class := view.Classes[classOf(view, pod)]
	var all []string
	for _, i := range class.Offerings {
		all = append(all, view.Snapshot.Offerings[i].Zone)
	}
	for _, i := range class.Nodes {
		all = append(all, view.Nodes[i].Name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestAntiAffinityExcludesDomainsOfRunningPods(t *testing.T) {
	t.Parallel()
	const a, b = "us-east-1a", "us-east-1b"
	for name, tc := range map[string]struct {
		waits, runs corev1.Pod
		want        []string
	}{
		"nothing for pods that do not match":     {Pod("w", away(host, "web")), Pod("r", inApp("db"), Running("m-a")), []string{"m-a", "m-b", a, b}},
		"a node, by the pending pod's term":      {Pod("w", away(host, "web")), Pod("r", inApp("web"), Running("m-a")), []string{"m-b", a, b}},
		"a zone, by the pending pod's term":      {Pod("w", away(zone, "web")), Pod("r", inApp("web"), Running("m-a")), []string{"m-b", b}},
		"a node, by the running pod's term":      {Pod("w", inApp("web")), Pod("r", away(host, "web"), Running("m-a")), []string{"m-b", a, b}},
		"a zone, by the running pod's term":      {Pod("w", inApp("web")), Pod("r", away(zone, "web"), Running("m-a")), []string{"m-b", b}},
		"nothing by a term that does not match":  {Pod("w", inApp("db")), Pod("r", away(zone, "web"), Running("m-a")), []string{"m-a", "m-b", a, b}},
		"nothing by a pod on a missing node":     {Pod("w", inApp("web")), Pod("r", away(zone, "web"), Running("gone")), []string{"m-a", "m-b", a, b}},
		"nothing by a label that the node lacks": {Pod("w", inApp("web")), Pod("r", away("rack", "web"), Running("m-a")), []string{"m-a", "m-b", a, b}},
		"nothing by a terminating pod": {Pod("w", inApp("web")), Pod("r", away(zone, "web"), Running("m-a"), func(pod *corev1.Pod) {
			pod.DeletionTimestamp = new(metav1.NewTime(Now))
		}), []string{"m-a", "m-b", a, b}},
		"a zone, by a pod on a node without GPUs": {Pod("w", inApp("web")), Pod("r", away(zone, "web"), Running("cpu-c")), []string{"m-a", "m-b", a, b}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := twoZones()
			c.Pods = []corev1.Pod{tc.waits, tc.runs}
			view := snapshot.Build(c)
			if diff := cmp.Diff(tc.want, places(view, "w")); diff != "" || view.Classes[0].Blocked != nil {
				t.Errorf("blocked %+v, places (-want +got):\n%s", view.Classes[0].Blocked, diff)
			}
		})
	}
}

// The DaemonSet's pod would get to the machine first, so that Karve would launch machines for the pod again and again.
func TestAntiAffinityToDaemonSetExcludesNewMachines(t *testing.T) {
	t.Parallel()
	const a, b = "us-east-1a", "us-east-1b"
	everywhere := []string{"m-a", "m-b", a, b}
	for name, tc := range map[string]struct {
		waits  corev1.Pod
		daemon func(*appsv1.DaemonSet)
		want   []string
	}{
		"nothing for pods that do not match":  {Pod("w", away(host, "web")), func(*appsv1.DaemonSet) {}, everywhere},
		"by the pending pod's term":           {Pod("w", away(host, "logs")), labeled, []string{"m-a", "m-b"}},
		"by the pending pod's term on a zone": {Pod("w", away(zone, "logs")), labeled, []string{"m-a", "m-b"}},
		"not in another namespace": {Pod("w", away(host, "logs")), func(ds *appsv1.DaemonSet) {
			labeled(ds)
			ds.Namespace = "kube-system"
		}, everywhere},
		"not on a label that machines lack":          {Pod("w", away("rack", "logs")), labeled, everywhere},
		"by the DaemonSet's term":                    {Pod("w", inApp("web")), parted("web"), []string{"m-a", "m-b"}},
		"not by the DaemonSet's term for other pods": {Pod("w", inApp("db")), parted("web"), everywhere},
		"not where the DaemonSet does not run": {Pod("w", away(host, "logs")), func(ds *appsv1.DaemonSet) {
			labeled(ds)
			ds.Spec.Template.Spec.NodeSelector = map[string]string{zone: a}
		}, []string{"m-a", "m-b", b}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := twoZones()
			ds := DaemonSet("logs")
			ds.Namespace = "default"
			tc.daemon(&ds)
			c.Pods, c.DaemonSets = []corev1.Pod{tc.waits}, []appsv1.DaemonSet{ds}
			view := snapshot.Build(c)
			if diff := cmp.Diff(tc.want, places(view, "w")); diff != "" || view.Classes[0].Blocked != nil {
				t.Errorf("blocked %+v, places (-want +got):\n%s", view.Classes[0].Blocked, diff)
			}
		})
	}
}

func labeled(ds *appsv1.DaemonSet) { ds.Spec.Template.Labels = map[string]string{"app": "logs"} }

func parted(from string) func(*appsv1.DaemonSet) {
	return func(ds *appsv1.DaemonSet) {
		pod := Pod("daemon", away(host, from))
		ds.Spec.Template.Spec.Affinity = pod.Spec.Affinity
	}
}

func TestReasonNamesRulesThatLeaveNoPlace(t *testing.T) {
	t.Parallel()
	c := twoZones()
	c.Pods = []corev1.Pod{Pod("w", away(zone, "web")), Pod("r1", inApp("web"), Running("m-a")), Pod("r2", inApp("web"), Running("m-b"))}
	wantBlocked(t, c, planner.ReasonRule, "podAntiAffinity", "topology.kubernetes.io/zone: us-east-1a, us-east-1b")
	c.Pods = []corev1.Pod{Pod("w", inApp("web"), spreadOver("rack", "web"))}
	wantBlocked(t, c, planner.ReasonRule, "topologySpreadConstraints on rack: no machine that admits the pod has that label")
	c.Pods = []corev1.Pod{Pod("w", near("rack", "web"))}
	wantBlocked(t, c, planner.ReasonRule, "podAffinity on rack")
	c = Shared()
	c.Pods, c.DaemonSets = []corev1.Pod{Pod("w", away(host, "logs"))}, []appsv1.DaemonSet{DaemonSet("logs")}
	c.DaemonSets[0].Namespace = "default"
	labeled(&c.DaemonSets[0])
	wantBlocked(t, c, planner.ReasonRule, "podAntiAffinity", "a DaemonSet's pods")
}

// Pods differ only in labels that a selector matches.
func TestLabelsSplitClassesOnlyIfSelectorsMatchThem(t *testing.T) {
	t.Parallel()
	numbered := func(prefix string, n int, edits ...func(*corev1.Pod)) []corev1.Pod {
		pods := Pods(prefix, n, edits...)
		for i := range pods {
			WithLabels("apps.kubernetes.io/pod-index", fmt.Sprint(i))(&pods[i])
		}
		return pods
	}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		want int
	}{
		"a StatefulSet with a spread":                  {numbered("w", 4, inApp("web"), spreadOver(zone, "web")), 1},
		"labels that no selector matches":              {slices.Concat(numbered("w", 2), numbered("v", 2, inApp("web"))), 1},
		"labels that another pod's selector matches":   {slices.Concat(numbered("w", 2), numbered("v", 2, inApp("web")), numbered("u", 2, inApp("db"), away(zone, "web"))), 3},
		"labels that a running pod's selector matches": {slices.Concat(numbered("w", 2), numbered("v", 2, inApp("web")), []corev1.Pod{Pod("r", away(zone, "web"), Running("m-a"))}), 2},
		"the same in two namespaces":                   {slices.Concat(numbered("w", 2), numbered("v", 2, in("far"))), 1},
		"the same, spread, in two namespaces":          {slices.Concat(numbered("w", 2, inApp("web"), spreadOver(zone, "web")), numbered("v", 2, in("far"), inApp("web"), spreadOver(zone, "web"))), 2},
		"two revisions, each spread by itself":         {slices.Concat(numbered("w", 2, inApp("web"), WithLabels("rev", "1"), spreadOver(zone, "web", byRevision)), numbered("v", 2, inApp("web"), WithLabels("rev", "2"), spreadOver(zone, "web", byRevision))), 2},
		"two revisions that are spread together":       {slices.Concat(numbered("w", 2, inApp("web"), WithLabels("rev", "1"), spreadOver(zone, "web")), numbered("v", 2, inApp("web"), WithLabels("rev", "2"), spreadOver(zone, "web"))), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := twoZones()
			c.Pods = tc.pods
			if got := len(snapshot.Build(c).Classes); got != tc.want {
				t.Errorf("%d classes, want %d", got, tc.want)
			}
		})
	}
}

// preferencesOf returns a class's preferences: the zones and nodes that grant each, or its rule.
func preferencesOf(view snapshot.View, pod string) []string {
	var all []string
	for _, w := range view.Classes[classOf(view, pod)].Preferences {
		if w.Rule >= 0 {
			all = append(all, formatRule(view, view.Rules[w.Rule]))
			continue
		}
		var granted []string
		for _, i := range w.Offerings {
			o := view.Snapshot.Offerings[i]
			granted = append(granted, view.Snapshot.Pools[o.Pool].Name+"/"+o.Zone)
		}
		for _, i := range w.Nodes {
			granted = append(granted, view.Nodes[i].Name)
		}
		slices.Sort(granted)
		all = append(all, strings.Join(slices.Compact(granted), " "))
	}
	return all
}

func TestPreferencesHaveOrderOfKarpenterRelaxation(t *testing.T) {
	t.Parallel()
	c := twoZones()
	c.NodePools = append(c.NodePools, Pool("soft", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared), Tainted("spare"), func(np *karpv1.NodePool) {
		np.Spec.Template.Spec.Taints[1].Effect = corev1.TaintEffectPreferNoSchedule
	}))
	weighted := func(weight int32, key, name string) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: podTerms(key, name)[0]}
	}
	anyway := func(c *corev1.TopologySpreadConstraint) { c.WhenUnsatisfiable = corev1.ScheduleAnyway }
	c.Pods = []corev1.Pod{
		Pod("w", inApp("web"), func(pod *corev1.Pod) {
			a := affinityOf(pod)
			a.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
				weighted(1, zone, "db"), weighted(9, host, "db"), weighted(5, host, "nobody"),
			}}
			a.PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{weighted(1, host, "web")}}
			a.NodeAffinity = &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 1, Preference: expression(karpv1.NodePoolLabelKey, corev1.NodeSelectorOpIn, "soft")},
				{Weight: 7, Preference: expression(zone, corev1.NodeSelectorOpIn, "us-east-1b")},
				{Weight: 3, Preference: expression("nowhere", corev1.NodeSelectorOpExists)},
			}}
		}, spreadOver(zone, "web"), spreadOver(host, "web", anyway), spreadOver("karpenter.sh/nodepool", "web", anyway)),
		Pod("db", inApp("db"), Running("m-a")), Pod("web", inApp("web"), Running("m-b")),
	}
	all := "gpu-shared/us-east-1a gpu-shared/us-east-1b"
	want := []string{
		"Together of w counts  m-a=1",
		"Together " + zone + " of w counts  us-east-1a=1",
		// First the running pods that the pod prefers to avoid, then the pending ones.
		all + " m-a soft/us-east-1a soft/us-east-1b",
		"Apart of w counts w",
		// First the heaviest term alone, then that or the next term that any place grants. While both hold, only the heaviest counts.
		"gpu-shared/us-east-1b m-b soft/us-east-1b",
		"gpu-shared/us-east-1b m-b soft/us-east-1a soft/us-east-1b",
		"Spread of w counts w m-b=1",
		"Spread karpenter.sh/nodepool of w counts w gpu-shared=1",
		all + " m-a m-b",
	}
	view := snapshot.Build(c)
	if diff := cmp.Diff(want, preferencesOf(view, "w")); diff != "" {
		t.Errorf("preferences (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"m-a", "m-b", "us-east-1a", "us-east-1b"}, places(view, "w")); diff != "" {
		t.Errorf("preferences take places away (-want +got):\n%s", diff)
	}
}

func TestPreferredTermIsSeparateFromEqualRequiredTerm(t *testing.T) {
	t.Parallel()
	c := twoZones()
	c.Pods = []corev1.Pod{Pod("w", inApp("web"), away(zone, "web")), Pod("x", inApp("web"), func(pod *corev1.Pod) {
		affinityOf(pod).PodAntiAffinity = &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 1, PodAffinityTerm: podTerms(zone, "web")[0]},
		}}
	})}
	view := snapshot.Build(c)
	want := []string{"Apart " + zone + " of w counts w,x", "Apart " + zone + " of x counts w,x"}
	got := formatRules(t, view)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(view.Classes[classOf(view, "w")].Preferences) != 0 {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
}

func TestAffinityCountsPodsThatMatchDozensOfTerms(t *testing.T) {
	t.Parallel()
	const n = 55
	labeled := func(labels int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for i := range labels {
				WithLabels(fmt.Sprintf("team-%d", i), "a")(pod)
			}
		}
	}
	affine := func(labels int) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			affinityOf(pod).PodAffinity = &corev1.PodAffinity{}
			for i := range labels {
				required := &pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
				*required = append(*required, corev1.PodAffinityTerm{TopologyKey: zone, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{fmt.Sprintf("team-%d", i): "a"}}})
			}
		}
	}
	c := twoZones()
	c.Pods = []corev1.Pod{
		Pod("all", affine(n)), Pod("fewer", Asking("cpu", "2", v1alpha1.ResourceGPUShared, "1"), affine(n-1)),
		Pod("r1", labeled(n), Running("m-a")), Pod("r2", labeled(n-1), Running("m-b")),
	}
	got := formatRules(t, snapshot.Build(c))
	slices.Sort(got)
	want := []string{"Together " + zone + " of all counts  us-east-1a=1", "Together " + zone + " of fewer counts  us-east-1a=1 us-east-1b=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
