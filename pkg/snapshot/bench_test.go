package snapshot_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// BenchmarkBuild builds the view of a large cluster: a thousand instance types, a tenth of them with GPUs, three zones, twenty DaemonSets, ten pools of Karve
// and ten of Karpenter, and a thousand pods of fifty classes.
func BenchmarkBuild(b *testing.B) {
	c := Shared()
	base := c.InstanceTypes()
	var types []catalog.InstanceType
	for i := range 1000 {
		t := base[i%len(base)]
		t.Name = fmt.Sprintf("%s-%d", t.Name, i)
		t.Labels = map[string]string{corev1.LabelInstanceTypeStable: t.Name}
		for k, v := range base[i%len(base)].Labels {
			if k != corev1.LabelInstanceTypeStable {
				t.Labels[k] = v
			}
		}
		if i%10 != 0 {
			t.GPU = catalog.GPU{}
		}
		types = append(types, t)
	}
	c.UseInstanceTypes(types)
	for i := range 10 {
		c.NodePools = append(c.NodePools, KarpenterPool(fmt.Sprintf("stock-%d", i)), Pool(fmt.Sprintf("ours-%d", i), "gpu-shared", Tainted("nvidia.com/gpu.shared"), Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)))
	}
	for i := range 20 {
		c.DaemonSets = append(c.DaemonSets, DaemonSet(fmt.Sprintf("ds-%d", i), "cpu", "10m"))
		c.Pods = append(c.Pods, Pods(fmt.Sprintf("pods-%d", i), 50)...)
	}
	for i := range c.Pods {
		Asking("cpu", fmt.Sprintf("%dm", 100+i%50), "nvidia.com/gpu.shared", "1")(&c.Pods[i])
	}
	b.ReportAllocs()
	for b.Loop() {
		snapshot.Build(c)
	}
}

// BenchmarkBuildOfManyPods builds the view of ten thousand pending pods in fifty shapes, each a Deployment with rules of its own. Another ten thousand pods run
// on a thousand nodes, a hundred of which are Karve's.
func BenchmarkBuildOfManyPods(b *testing.B) {
	c := Shared()
	Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)(&c.NodePools[0])
	for i := range 100 {
		c.NodeClaims = append(c.NodeClaims, Claim(fmt.Sprintf("m-%d", i), &c.NodePools[0], xlarge, Initialized(Now)))
		c.Nodes = append(c.Nodes, Node(&c.NodeClaims[i], xlarge, 10))
	}
	for i := range 900 {
		c.Nodes = append(c.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cpu-%d", i), Labels: map[string]string{zone: Zones[i%2]}}})
	}
	for i := range 20_000 {
		name := fmt.Sprintf("app-%d", i%50)
		edits := []func(*corev1.Pod){
			Asking("cpu", fmt.Sprintf("%dm", 100+i%50), "memory", "1Gi", "nvidia.com/gpu.shared", "1"), inApp(name), WithLabels("pod-template-hash", "5d8f"),
			WithLabels("statefulset.kubernetes.io/pod-name", fmt.Sprint(i)), spreadOver(zone, name), GPUMemory("1Gi"),
		}
		if i%5 == 0 {
			edits = append(edits, away(host, name))
		}
		if i%5 == 1 {
			edits = append(edits, near(zone, name))
		}
		if i/50%2 == 0 {
			edits = append(edits, Running(c.Nodes[i%1000].Name))
		}
		c.Pods = append(c.Pods, Pod(fmt.Sprintf("%s-%d", name, i), edits...))
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := len(snapshot.Build(c).Classes); got != 50 {
			b.Fatalf("%d classes", got)
		}
	}
}

// tenants returns a cluster with the given number of Deployments of three pending pods, each with rules of its own.
func tenants(deployments int) *facts.Cluster {
	c := Shared()
	Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)(&c.NodePools[0])
	for i := range 20 {
		c.NodeClaims = append(c.NodeClaims, Claim(fmt.Sprintf("m-%d", i), &c.NodePools[0], xlarge, Initialized(Now)))
		c.Nodes = append(c.Nodes, Node(&c.NodeClaims[i], xlarge, 10))
	}
	for i := range deployments {
		name := fmt.Sprintf("app-%05d", i)
		c.Pods = append(c.Pods, Pods(name, 3, Asking("cpu", fmt.Sprintf("%dm", 100+i%7*50), "memory", "1Gi", "nvidia.com/gpu.shared", "1"),
			inApp(name), spreadOver(zone, name), spreadOver(host, name), away(host, name))...)
	}
	return c
}

// BenchmarkBuildForTenants builds the view of Deployments with rules of their own.
func BenchmarkBuildForTenants(b *testing.B) {
	for _, n := range []int{100, 300, 1_000, 3_000} {
		b.Run(fmt.Sprint(n, " classes"), func(b *testing.B) {
			c := tenants(n)
			b.ReportAllocs()
			for b.Loop() {
				if got := len(snapshot.Build(c).Classes); got != min(n, 1000) { // The others wait for the next round.
					b.Fatalf("%d classes", got)
				}
			}
		})
	}
}

// nodeTerms returns node affinity terms with expressions for one label, each with as many values of which no node has any but the last.
func nodeTerms(name string, terms, values int) []corev1.NodeSelectorTerm {
	all := make([]corev1.NodeSelectorTerm, terms)
	for i := range all {
		is := corev1.NodeSelectorRequirement{Key: zone, Operator: corev1.NodeSelectorOpIn}
		for k := range values - 1 {
			is.Values = append(is.Values, fmt.Sprintf("%s-%d-%d", name, i, k))
		}
		is.Values = append(is.Values, Zones[i%2])
		all[i].MatchExpressions = []corev1.NodeSelectorRequirement{is}
	}
	return all
}

func requiring(terms []corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
	}
}

func preferring(terms []corev1.NodeSelectorTerm) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
		for i, term := range terms {
			preferred := &pod.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			*preferred = append(*preferred, corev1.PreferredSchedulingTerm{Weight: int32(100 - i%100), Preference: term})
		}
	}
}

// BenchmarkBuildOfNodeAffinity builds the view of pods with long node affinity, of which that of 4000 terms is beyond the bound.
func BenchmarkBuildOfNodeAffinity(b *testing.B) {
	for _, x := range []struct {
		name                string
		pods, terms, values int
		edit                func([]corev1.NodeSelectorTerm) func(*corev1.Pod)
	}{
		{"1 pod, 4000 preferred terms", 1, 4000, 1, preferring},
		{"1000 pods, 70 preferred terms of 2 values", 1000, 70, 2, preferring},
		{"1000 pods, 20 preferred terms of 18 values", 1000, 20, 18, preferring},
		{"300 pods, 5 required terms of 100 values", 300, 5, 100, requiring},
		{"1000 pods, 20 required terms of 18 values", 1000, 20, 18, requiring},
		{"1000 pods, 1 required term of 60 values", 1000, 1, 60, requiring},
	} {
		b.Run(x.name, func(b *testing.B) {
			c := tenants(0)
			for i := range x.pods {
				name := fmt.Sprintf("app-%d", i)
				c.Pods = append(c.Pods, Pod(name, Asking("cpu", "1", "memory", "1Gi", "nvidia.com/gpu.shared", "1"), x.edit(nodeTerms(name, x.terms, x.values))))
			}
			c.Index = c.Indexed() // As in the controller.
			b.ReportAllocs()
			for b.Loop() {
				if got := len(snapshot.Build(c).Classes); got < min(x.pods, 2) { // Pods beyond the bound are of one class.
					b.Fatalf("%d classes", got)
				}
			}
		})
	}
}

// BenchmarkBuildOfManyTerms builds the view of 440 pods, each with a required affinity of 55 terms, which is just within the bound.
func BenchmarkBuildOfManyTerms(b *testing.B) {
	c := tenants(0)
	for i := range 440 {
		name := fmt.Sprintf("app-%d", i)
		var friends []string
		for k := range 55 {
			friends = append(friends, fmt.Sprintf("friend-%d-%d", i, k))
		}
		c.Pods = append(c.Pods, Pod(name, Asking("cpu", "1", "memory", "1Gi", "nvidia.com/gpu.shared", "1"), inApp(name), near(zone, friends...)))
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := len(snapshot.Build(c).Classes); got < 2 { // Pods beyond the bound are of one class.
			b.Fatalf("%d classes", got)
		}
	}
}

// BenchmarkBuildAfterOnePodChange builds the view of a large cluster after one pod has changed, with pods of some shapes waiting.
func BenchmarkBuildAfterOnePodChange(b *testing.B) {
	for _, waiting := range []int{5, 300} {
		b.Run(fmt.Sprintf("5000 nodes, %d shapes", waiting), func(b *testing.B) {
			c := Large(5_000)
			for i := range waiting {
				c.Pods = append(c.Pods, Pod(fmt.Sprintf("new-%d", i), Asking("cpu", fmt.Sprintf("%dm", 100+i), "memory", "1Gi", "nvidia.com/gpu.shared", "1")))
			}
			c.Index = c.Indexed()
			pods := c.Pods
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				pod := pods[i%len(pods)].DeepCopy()
				WithLabels("changed", fmt.Sprint(i))(pod)
				c.Index, _ = c.Index.With(facts.Changes{Pods: map[string]*corev1.Pod{facts.PodName(pod): pod}})
				v := snapshot.Build(c)
				for i := range v.Machines {
					v.Machines[i].ReplicasInUse()
				}
			}
		})
	}
}

// BenchmarkBuildForEqualTenants builds the view of a large cluster after one pod has changed. In each of 200 namespaces, a Deployment waits whose pods request
// what those of the others do, with rules of its own.
func BenchmarkBuildForEqualTenants(b *testing.B) {
	inFirstZone := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: Zones[:1]}}}}
	for _, nodes := range []int{1_000, 5_000} {
		b.Run(fmt.Sprint(nodes, " nodes"), func(b *testing.B) {
			c := Large(nodes)
			for i := range 200 {
				name := fmt.Sprintf("app-%03d", i)
				waiting := Pods(name, 3, Asking("cpu", "100m", "memory", "1Gi", "nvidia.com/gpu.shared", "1"), inApp(name), spreadOver(zone, name), spreadOver(host, name), away(host, name), requiring(inFirstZone))
				for k := range waiting {
					waiting[k].Namespace = fmt.Sprintf("team-%03d", i)
				}
				c.Pods = append(c.Pods, waiting...)
			}
			c.Index = c.Indexed()
			pods := c.Pods
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				pod := pods[i%len(pods)].DeepCopy()
				WithLabels("changed", fmt.Sprint(i))(pod)
				c.Index, _ = c.Index.With(facts.Changes{Pods: map[string]*corev1.Pod{facts.PodName(pod): pod}})
				if got := len(snapshot.Build(c).Classes); got < 200 {
					b.Fatalf("%d classes", got)
				}
			}
		})
	}
}
