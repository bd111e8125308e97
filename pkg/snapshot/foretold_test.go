package snapshot_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodelabels"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// ec2 returns Shared with the machines of EC2.
func ec2(t *testing.T) *facts.Cluster {
	t.Helper()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	c := Shared()
	c.UseInstanceTypes(types)
	return c
}

// families returns the families of the offerings that admit the only class of a cluster.
func families(c *facts.Cluster) []string {
	view := snapshot.Build(c)
	var all []string
	for _, i := range view.Classes[0].Offerings {
		family, _, _ := strings.Cut(view.Snapshot.Offerings[i].InstanceType, ".")
		all = append(all, family)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestPodsGetMachinesWhoseNodesWillHaveTheirLabels(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		key, operator, values, want string
	}{
		{"nvidia.com/gpu.product", "In", "NVIDIA-A10G,NVIDIA-L4", "g5 g6 gr6"},
		{"nvidia.com/gpu.product", "In", "NVIDIA-A10G-SHARED", ""},
		{"nvidia.com/gpu.memory", "Gt", "40000", "g6e g7e p4d p4de p5 p5en p6-b200 p6-b300"},
		{"nvidia.com/gpu.memory", "Lt", "17409", "g4dn g5g"},
		{"nvidia.com/gpu.memory", "Lt", "17408", ""},
		{"nvidia.com/gpu.memory", "In", "15360", ""},
		{"nvidia.com/gpu.memory", "NotIn", "15360", "g5 g6 g6e g7 g7e gr6 p3dn p4d p4de p5 p5en p6-b200 p6-b300"},
		{"nvidia.com/gpu.family", "In", "hopper", "p5 p5en"},
		{"nvidia.com/gpu.count", "Gt", "7", "g4dn g5 g6 g6e g7 g7e p3dn p4d p4de p5 p5en p6-b200 p6-b300"},
		{"nvidia.com/gpu.replicas", "In", "10", "g4dn g5 g5g g6 g6e g7 g7e gr6 p3dn p4d p4de p5 p5en p6-b200 p6-b300"},
		{"nvidia.com/gpu.sharing-strategy", "In", "mps", ""},
		{"nvidia.com/mig.capable", "In", "true", "g7 g7e p4d p4de p5 p5en p6-b200 p6-b300"},
		{"nvidia.com/cuda.driver.major", "Gt", "500", ""},
		{"feature.node.kubernetes.io/pci-10de.present", "Exists", "", ""},
		{"topology.ebs.csi.aws.com/zone", "In", "us-east-1f", "g4dn g5 g6 p5"},
		{"beta.kubernetes.io/arch", "In", "arm64", "g5g"},
		{"eks.amazonaws.com/compute-type", "In", "auto", ""},
	} {
		req := corev1.NodeSelectorRequirement{Key: tc.key, Operator: corev1.NodeSelectorOperator(tc.operator)}
		if tc.values != "" {
			req.Values = strings.Split(tc.values, ",")
		}
		ofPod := ec2(t)
		ofPod.Pods = []corev1.Pod{Pod("a", func(pod *corev1.Pod) {
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{req}}},
			}}}
		})}
		if got := strings.Join(families(ofPod), " "); got != tc.want {
			t.Errorf("a pod with %s %s %s gets %q, want %q", tc.key, tc.operator, tc.values, got, tc.want)
		}
		if e := nodelabels.Find(tc.key); e.Free {
			continue // A NodePool may choose it.
		}
		ofPool := ec2(t)
		Requiring(req.Key, req.Operator, req.Values...)(&ofPool.NodePools[0])
		ofPool.Pods = []corev1.Pod{Pod("a")}
		if pod, pool := families(ofPod), families(ofPool); !slices.Equal(pod, pool) {
			t.Errorf("a NodePool with %s %s %s offers %v, and a pod gets %v", tc.key, tc.operator, tc.values, pool, pod)
		}
	}
}

func TestRefusalNamesTheLabelAndWhatToUseInstead(t *testing.T) {
	t.Parallel()
	for key, words := range map[string][]string{
		"nvidia.com/gpu.memory":                       {"label nvidia.com/gpu.memory is known only roughly", "from 15079 to 17408", "use operator Gt or Lt"},
		"nvidia.com/cuda.driver.major":                {"label nvidia.com/cuda.driver.major is known only when there is a node", "use an image"},
		"feature.node.kubernetes.io/pci-10de.present": {"known only when there is a node", "use nvidia.com/gpu.present"},
		"eks.amazonaws.com/nodegroup":                 {"label eks.amazonaws.com/nodegroup is not 15360", "use karpenter.sh/nodepool"},
		"nvidia.com/gpu.product":                      {"label nvidia.com/gpu.product is not 15360 but Tesla-T4"},
	} {
		c := Shared()
		c.Pods = []corev1.Pod{Pod("a", Selecting(key, "15360"))}
		wantBlocked(t, c, planner.ReasonNoPool, words...)
	}
}

func TestPoolThatRequiresAnUnknownLabelLaunchesNothing(t *testing.T) {
	t.Parallel()
	for key, words := range map[string]string{
		"nvidia.com/gpu.product":       "for nvidia.com/gpu.product: it is Tesla-T4",
		"nvidia.com/cuda.driver.major": "label nvidia.com/cuda.driver.major is known only when there is a node",
	} {
		for _, edit := range []func(*karpv1.NodePool){Requiring(key, corev1.NodeSelectorOpIn, "580"), Labeled(map[string]string{key: "580"})} {
			c := Shared()
			edit(&c.NodePools[0])
			pool := &snapshot.Pools(c)[0]
			if len(pool.Offerings) > 0 || len(pool.Problems) != 1 || pool.Problems[0].Reason != "NodeLabelsDiffer" || !strings.Contains(pool.Problems[0].Message, words) {
				t.Errorf("%s: %d offerings and %+v", key, len(pool.Offerings), pool.Problems)
			}
		}
	}
	c := Shared()
	Requiring("nvidia.com/gpu.deploy.device-plugin", corev1.NodeSelectorOpIn, "false")(&c.NodePools[0])
	if pool := &snapshot.Pools(c)[0]; len(pool.Offerings) == 0 || pool.Offerings[0].CustomLabels["nvidia.com/gpu.deploy.device-plugin"] != "false" {
		t.Errorf("a label that a NodePool may set: %+v", pool.Problems)
	}
}

func TestDaemonSetsCountWhereTheirLabelsWillBeOrMayBe(t *testing.T) {
	t.Parallel()
	for key, counts := range map[string]bool{
		"nvidia.com/gpu.present": true, "feature.node.kubernetes.io/pci-10de.present": true, "nvidia.com/gpu.deploy.dcgm-exporter": true, "nvidia.com/mps.capable": false, "example.com/gpu": false,
	} {
		ds := DaemonSet("exporter", "cpu", "1")
		ds.Spec.Template.Spec.NodeSelector = map[string]string{key: "true"}
		c := Shared()
		c.DaemonSets = []appsv1.DaemonSet{ds}
		if got := snapshot.Pools(c)[0].Offerings[0].Daemons.MilliCPU == 1000; got != counts {
			t.Errorf("a DaemonSet that selects %s counts: %t", key, got)
		}
	}
}

// A CapacityBuffer and a waiting pod.
func TestBuffersGetMachinesWhoseNodesWillHaveTheirLabels(t *testing.T) {
	t.Parallel()
	c := ec2(t)
	pod := Pod("b", Selecting("nvidia.com/gpu.product", "NVIDIA-A10G"))
	c.Buffers = []karpenter.Buffer{{Namespace: "default", Name: "b", Replicas: 1, Template: corev1.PodTemplateSpec{Spec: pod.Spec}}}
	view := snapshot.Build(c)
	if len(view.Reserves) != 1 || len(view.Reserves[0].Class.Offerings) == 0 {
		t.Fatalf("reserves: %+v", view.Reserves)
	}
	for _, i := range view.Reserves[0].Class.Offerings {
		if name := view.Snapshot.Offerings[i].InstanceType; !strings.HasPrefix(name, "g5.") {
			t.Errorf("the buffer may get %s", name)
		}
	}
}

// started returns a cluster with a machine that started for the only pod at a time, and with labels of the agent.
func started(at time.Time, labels map[string]string) *facts.Cluster {
	c := Shared()
	c.Pods = []corev1.Pod{Pod("a", Selecting("nvidia.com/gpu.product", "Tesla-T4"))}
	view := snapshot.Build(c)
	claim := Claim("one", &c.NodePools[0], &Types()[3], Initialized(at), func(claim *karpv1.NodeClaim) {
		claim.Annotations[v1alpha1.PlannedPodsAnnotation] = view.PlannedPods(planner.Launch{Pods: []string{"default/a"}})
		claim.Annotations[karpv1.NodePoolHashAnnotationKey], claim.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = c.NodePools[0].Hash(), karpv1.NodePoolHashVersion
	})
	node := Node(&claim, &Types()[3], 10)
	maps.Copy(node.Labels, labels)
	c.NodeClaims, c.Nodes = []karpv1.NodeClaim{claim}, []corev1.Node{node}
	return c
}

func TestNodeThatContradictsThePlanStopsLaunches(t *testing.T) {
	t.Parallel()
	const product = "nvidia.com/gpu.product"
	for name, tc := range map[string]struct {
		at     time.Time
		labels map[string]string
		nodes  int
		waits  string
	}{
		"the label is late":             {Now.Add(-time.Minute), nil, 1, ""},
		"the label is missing":          {Now.Add(-3 * time.Minute), nil, 0, "its label nvidia.com/gpu.product is missing, and was expected to be Tesla-T4"},
		"the label has another value":   {Now.Add(-time.Second), map[string]string{product: "NVIDIA-A10G"}, 0, "NodeClaim one was launched for such pods and does not admit them: its label nvidia.com/gpu.product is NVIDIA-A10G"},
		"the label is as it should be":  {Now.Add(-3 * time.Minute), map[string]string{product: "Tesla-T4"}, 1, ""},
		"other labels are not as usual": {Now.Add(-3 * time.Minute), map[string]string{product: "Tesla-T4", "nvidia.com/gpu.count": "9"}, 1, ""},
	} {
		c := started(tc.at, tc.labels)
		view := snapshot.Build(c)
		class := view.Classes[0]
		switch {
		case len(class.Nodes) != tc.nodes:
			t.Errorf("%s: %d nodes admit the pod", name, len(class.Nodes))
		case tc.waits == "" && (class.Blocked != nil || len(class.Offerings) == 0):
			t.Errorf("%s: the pod waits: %+v", name, class.Blocked)
		case tc.waits != "" && (class.Blocked == nil || class.Blocked.Reason != planner.ReasonLabels || !strings.Contains(class.Blocked.Message, tc.waits)):
			t.Errorf("%s: blocked: %+v", name, class.Blocked)
		}
		if got := view.NodeMismatches(&c.GPUNodeClasses[0]); len(got) != min(1, len(tc.waits)) {
			t.Errorf("%s: recorded %+v", name, got)
		}
	}
}

func TestNodeWithAnotherTaintStopsLaunchesUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	taint := func(key string, effect corev1.TaintEffect) corev1.Taint {
		return corev1.Taint{Key: key, Effect: effect}
	}
	for name, tc := range map[string]struct {
		taint corev1.Taint
		waits bool
	}{
		"an agent's":                {taint("example.com/agent-not-ready", corev1.TaintEffectNoExecute), true},
		"an administrator's":        {taint("team", corev1.TaintEffectNoSchedule), true},
		"only a preference":         {taint("team", corev1.TaintEffectPreferNoSchedule), false},
		"of a condition":            {taint(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule), false},
		"cordoned":                  {taint(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule), false},
		"an interruption of spot":   {taint("aws-node-termination-handler/spot-itn", corev1.TaintEffectNoSchedule), false},
		"one that the pod ignores":  {taint("ignored", corev1.TaintEffectNoSchedule), false},
		"one of the NodePool":       {taint("own", corev1.TaintEffectNoSchedule), false},
		"a startup taint of a pool": {taint("starting", corev1.TaintEffectNoSchedule), false},
	} {
		c := started(Now.Add(-3*time.Minute), map[string]string{"nvidia.com/gpu.product": "Tesla-T4"})
		c.Pods[0].Spec.Tolerations = append(c.Pods[0].Spec.Tolerations, corev1.Toleration{Key: "ignored", Operator: corev1.TolerationOpExists})
		c.NodeClaims[0].Annotations[v1alpha1.PlannedPodsAnnotation] = new(snapshot.Build(c)).PlannedPods(planner.Launch{Pods: []string{"default/a"}})
		c.NodeClaims[0].Spec.Taints = append(c.NodeClaims[0].Spec.Taints, taint("own", corev1.TaintEffectNoSchedule))
		c.NodeClaims[0].Spec.StartupTaints = append(c.NodeClaims[0].Spec.StartupTaints, taint("starting", corev1.TaintEffectNoSchedule))
		c.Nodes[0].Spec.Taints = append(c.Nodes[0].Spec.Taints, tc.taint)
		view := snapshot.Build(c)
		class := view.Classes[0]
		if waits := class.Blocked != nil && class.Blocked.Reason == planner.ReasonTaints; waits != tc.waits || tc.waits && !strings.Contains(class.Blocked.Message, "it has the taint "+tc.taint.ToString()) {
			t.Errorf("%s: blocked: %+v", name, class.Blocked)
		}
		found := view.NodeMismatches(&c.GPUNodeClasses[0])
		if (len(found) == 1) != tc.waits {
			t.Errorf("%s: recorded %+v", name, found)
		}
		c.GPUNodeClasses[0].Status.NodeMismatches = found
		c.Nodes[0].Spec.Taints = nil
		if view = snapshot.Build(c); view.Classes[0].Blocked != nil || len(view.NodeMismatches(&c.GPUNodeClasses[0])) > 0 {
			t.Errorf("%s: without the taint: %+v", name, view.Classes[0].Blocked)
		}
	}
}

func TestMismatchOutlivesItsNodeAndEndsWithAChange(t *testing.T) {
	t.Parallel()
	after := func(edit func(*facts.Cluster)) *planner.Refusal {
		c := started(Now.Add(-3*time.Minute), map[string]string{"nvidia.com/gpu.product": "NVIDIA-A10G"})
		view := snapshot.Build(c)
		c.GPUNodeClasses[0].Status.NodeMismatches = view.NodeMismatches(&c.GPUNodeClasses[0])
		c.NodeClaims, c.Nodes = nil, nil
		edit(c)
		view = snapshot.Build(c)
		if blocked := view.Classes[0].Blocked; blocked != nil {
			return blocked
		}
		return view.Classes[0].NoOffering
	}
	if blocked := after(func(*facts.Cluster) {}); blocked == nil || blocked.Reason != planner.ReasonLabels {
		t.Errorf("after the node is gone: %+v", blocked)
	}
	for name, edit := range map[string]func(*facts.Cluster){
		"the pod": func(c *facts.Cluster) {
			c.Pods = []corev1.Pod{Pod("a", Selecting("nvidia.com/gpu.family", "turing"))}
		},
		"the NodePool":     func(c *facts.Cluster) { c.NodePools[0].Generation++ },
		"the GPUNodeClass": func(c *facts.Cluster) { c.GPUNodeClasses[0].Generation++ },
		"the node class": func(c *facts.Cluster) {
			state := c.NodeClasses[NodeClassRef]
			state.Generation++
			c.NodeClasses[NodeClassRef] = state
		},
	} {
		if blocked := after(edit); blocked != nil {
			t.Errorf("after a change of %s: %+v", name, blocked)
		}
	}
	c := started(Now.Add(-3*time.Minute), map[string]string{"nvidia.com/gpu.product": "NVIDIA-A10G"})
	view := snapshot.Build(c)
	c.GPUNodeClasses[0].Status.NodeMismatches = view.NodeMismatches(&c.GPUNodeClasses[0])
	c.Nodes[0].Labels["nvidia.com/gpu.product"] = "Tesla-T4"
	if view = snapshot.Build(c); view.Classes[0].NoOffering != nil || len(view.NodeMismatches(&c.GPUNodeClasses[0])) != 0 {
		t.Errorf("after the label was corrected: %+v", view.Classes[0].NoOffering)
	}
}

// Karpenter's own list has no name that the table lacks.
func TestTableHasTheFormerNamesOfLabels(t *testing.T) {
	t.Parallel()
	for former, key := range karpv1.NormalizedLabels {
		if nodelabels.Current(former) != key {
			t.Errorf("%s has the value of %q, want %q", former, nodelabels.Current(former), key)
		}
	}
	for _, key := range clouds.PlaceLabels() {
		if nodelabels.Find(key) == nil {
			t.Errorf("the table lacks %s", key)
		}
	}
}
