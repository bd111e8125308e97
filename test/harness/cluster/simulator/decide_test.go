package simulator

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster/machines"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const shared, whole = "nvidia.com/gpu.shared", "nvidia.com/gpu"

func karveNode(resourceName, gpus, perGPU string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Labels: map[string]string{nodePoolLabel: "gpu-shared", gpuCountLabel: "1"},
		Annotations: map[string]string{
			"karve.sh/resource": resourceName, "karve.sh/gpus": gpus, "karve.sh/replicas-per-gpu": perGPU,
		},
	}}
}

// draNode returns a node of Karve whose agent is a DRA driver.
func draNode(gpus, perGPU string) *corev1.Node {
	node := karveNode(shared, gpus, perGPU)
	node.Annotations["karve.sh/backend"] = "DRA"
	return node
}

func stockNode(pool, gpus string) *corev1.Node {
	labels := map[string]string{nodePoolLabel: pool}
	if gpus != "" {
		labels[gpuCountLabel] = gpus
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
}

func withCapacity(node *corev1.Node, name corev1.ResourceName, n int64) *corev1.Node {
	node.Status.Capacity = corev1.ResourceList{name: *resource.NewQuantity(n, resource.DecimalSI)}
	return node
}

func ofImage(node *corev1.Node, image string) *corev1.Node {
	node.Annotations[machines.ImageAnnotation] = image
	return node
}

func TestDecide(t *testing.T) {
	t.Parallel()
	longAgo := history{registered: noon.Add(-time.Minute)}
	had := history{registered: noon.Add(-time.Minute), offered: true}
	of := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		node  *corev1.Node
		past  history
		rules map[string]string
		want  decision
		not   bool // decide ignores the node
	}{
		"a Karve node without GPUs is ignored": {node: stockNode("cpu", ""), past: longAgo, not: true},
		"a stock GPU node without a rule is ignored": {
			node: stockNode("gpu", "4"), past: longAgo, rules: map[string]string{"default": "replicasPerGPU: 10"}, not: true,
		},
		"a stock node without GPUs is ignored despite a rule": {
			node: stockNode("gpu", ""), past: longAgo, rules: map[string]string{"gpu": "replicasPerGPU: 10"}, not: true,
		},
		"an unregistered node has no GPUs": {
			node: karveNode(shared, "1", "10"),
			want: decision{capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}},
		},
		"replicas follow registration with a delay": {
			node: karveNode(shared, "1", "10"), past: history{registered: noon.Add(-500 * time.Millisecond)},
			want: decision{
				capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil},
				again: 1500 * time.Millisecond,
			},
		},
		"replicas replace whole GPUs": {
			node: karveNode(shared, "4", "10"), past: longAgo,
			want: decision{
				capacity: resources{whole: nil, shared: of(40)}, allocatable: resources{whole: nil, shared: of(40)}, offers: true,
			},
		},
		"replicas that are not renamed replace whole GPUs": {
			node: karveNode(whole, "1", "10"), past: longAgo,
			want: decision{capacity: resources{whole: of(10)}, allocatable: resources{whole: of(10)}, offers: true},
		},
		"an invalid promise gives no replicas": {
			node: karveNode(shared, "1", "ten"), past: longAgo,
			want: decision{capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}},
		},
		"a delay rule delays the plugin": {
			node: karveNode(shared, "1", "10"), past: longAgo, rules: map[string]string{"default": "delay: 3m"},
			want: decision{
				capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}, again: 2 * time.Minute,
			},
		},
		"a longer delay removes no replicas": {
			node: karveNode(shared, "1", "10"), past: had, rules: map[string]string{"default": "delay: 3m"},
			want: decision{
				capacity: resources{whole: nil, shared: of(10)}, allocatable: resources{whole: nil, shared: of(10)}, offers: true,
			},
		},
		"a plugin that never starts offers nothing": {
			node: karveNode(shared, "1", "10"), past: longAgo, rules: map[string]string{"gpu-shared": "offer: none"},
			want: decision{capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}},
		},
		"a plugin that crashes leaves its capacity": {
			node: karveNode(shared, "1", "10"), past: had, rules: map[string]string{"gpu-shared": "offer: none"},
			want: decision{capacity: resources{whole: nil}, allocatable: resources{whole: nil, shared: of(0)}},
		},
		"a plugin that crashed before a restart leaves its capacity": {
			node: withCapacity(karveNode(shared, "1", "10"), shared, 10),
			past: history{registered: noon.Add(-time.Minute), before: true}, rules: map[string]string{"gpu-shared": "offer: none"},
			want: decision{capacity: resources{whole: nil}, allocatable: resources{whole: nil, shared: of(0)}},
		},
		"flapping replicas are present at first": {
			node: karveNode(shared, "1", "10"), past: longAgo, rules: map[string]string{"gpu-shared": "flap: 25s"},
			want: decision{
				capacity: resources{whole: nil, shared: of(10)}, allocatable: resources{whole: nil, shared: of(10)}, offers: true, again: 15 * time.Second,
			},
		},
		"flapping replicas disappear": {
			node: karveNode(shared, "1", "10"), past: had, rules: map[string]string{"gpu-shared": "flap: 50s"},
			want: decision{capacity: resources{whole: nil}, allocatable: resources{whole: nil, shared: of(0)}, again: 40 * time.Second},
		},
		"a node keeps its rule": {
			node: karveNode(shared, "1", "10"), past: history{registered: longAgo.registered, rule: &Rule{Offer: new(intstr.FromInt32(3))}},
			rules: map[string]string{"gpu-shared": "{offer: none}"},
			want: decision{
				capacity: resources{whole: nil, shared: of(3)}, allocatable: resources{whole: nil, shared: of(3)}, offers: true,
			},
		},
		"the rule of the pool overrides the default": {
			node: karveNode(shared, "1", "10"), past: longAgo,
			rules: map[string]string{"gpu-shared": "{offer: 4}", "default": "{offer: none}"},
			want: decision{
				capacity: resources{whole: nil, shared: of(4)}, allocatable: resources{whole: nil, shared: of(4)}, offers: true,
			},
		},
		"an image on which no plugin starts is broken in every pool": {
			node: ofImage(karveNode(shared, "1", "10"), "ami-bad"), past: longAgo, rules: map[string]string{"ami-bad": "{offer: none}", "gpu-shared": "{offer: 4}"},
			want: decision{capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}},
		},
		"other images work": {
			node: ofImage(karveNode(shared, "1", "10"), "ami-good"), past: longAgo, rules: map[string]string{"ami-bad": "{offer: none}"},
			want: decision{
				capacity: resources{whole: nil, shared: of(10)}, allocatable: resources{whole: nil, shared: of(10)}, offers: true,
			},
		},
		"a plugin may have another configuration than promised": {
			node: karveNode(shared, "1", "10"), past: longAgo, rules: map[string]string{"gpu-shared": "{replicasPerGPU: 2, resource: nvidia.com/gpu}"},
			want: decision{capacity: resources{whole: of(2)}, allocatable: resources{whole: of(2)}, offers: true},
		},
		"a DRA driver publishes its replicas and no resource": {
			node: draNode("4", "10"), past: longAgo,
			want: decision{
				capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}, offers: true, driver: nodecontract.DRADriver, published: []int64{10, 10, 10, 10},
			},
		},
		"a DRA driver that is late publishes nothing yet": {
			node: draNode("1", "10"), past: history{registered: noon.Add(-500 * time.Millisecond)},
			want: decision{
				capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}, again: 1500 * time.Millisecond, driver: nodecontract.DRADriver,
			},
		},
		"a DRA driver may publish less than promised": {
			node: draNode("4", "10"), past: had, rules: map[string]string{"gpu-shared": "{offer: 6}"},
			want: decision{
				capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}, offers: true, driver: nodecontract.DRADriver, published: []int64{2, 2, 1, 1},
			},
		},
		"the slice of a DRA driver that crashes is removed": {
			node: draNode("1", "10"), past: had, rules: map[string]string{"gpu-shared": "{offer: none}"},
			want: decision{capacity: resources{whole: nil, shared: nil}, allocatable: resources{whole: nil, shared: nil}, driver: nodecontract.DRADriver},
		},
		"NVIDIA's plugin on a stock pool": {
			node: stockNode("gpu", "4"), past: longAgo, rules: map[string]string{"gpu": "replicasPerGPU: 10"},
			want: decision{
				capacity: resources{whole: nil, shared: of(40)}, allocatable: resources{whole: nil, shared: of(40)}, offers: true,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules, err := ParseRules(&corev1.ConfigMap{Data: c.rules})
			if err != nil {
				t.Fatal(err)
			}
			got, ours := decide(c.node, c.past, rules, noon)
			if ours == c.not {
				t.Fatalf("decide manages the node: %v", ours)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestOnlyDifferencesAreWritten(t *testing.T) {
	t.Parallel()
	ten := int64(10)
	want := resources{shared: &ten, whole: nil}
	for name, c := range map[string]struct {
		have corev1.ResourceList
		want map[corev1.ResourceName]any
	}{
		"all of it":       {corev1.ResourceList{whole: resource.MustParse("1")}, map[corev1.ResourceName]any{shared: "10", whole: nil}},
		"another number":  {corev1.ResourceList{shared: resource.MustParse("4")}, map[corev1.ResourceName]any{shared: "10"}},
		"nothing":         {corev1.ResourceList{shared: resource.MustParse("10"), "cpu": resource.MustParse("4")}, nil},
		"only a deletion": {corev1.ResourceList{shared: resource.MustParse("10"), whole: resource.MustParse("0")}, map[corev1.ResourceName]any{whole: nil}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, want.change(c.have)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestKeepsStartupTaint(t *testing.T) {
	t.Parallel()
	longAgo := history{registered: noon.Add(-time.Minute)}
	for name, c := range map[string]struct {
		past history
		rule Rule
		want bool
	}{
		"an unregistered node":                          {history{}, Rule{}, true},
		"a registered node":                             {longAgo, Rule{}, false},
		"a node whose agent never becomes ready":        {longAgo, Rule{KeepTaint: true}, true},
		"a node with a recorded rule to keep the taint": {history{registered: noon, rule: &Rule{KeepTaint: true}}, Rule{}, true},
		"a node that keeps another rule":                {history{registered: noon, rule: &Rule{}}, Rule{KeepTaint: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := keepsTaint(karveNode(shared, "1", "10"), c.past, Rules{"gpu-shared": c.rule}); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestInvalidRulesAreRefused(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"text for offer":         "offer: some",
		"a negative offer":       "offer: -1",
		"negative replicas":      "replicasPerGPU: -1",
		"a negative delay":       "delay: -3s",
		"a delay without a unit": "delay: three",
		"a flap period of zero":  "flap: 0s",
		"a misspelled field":     "offers: all",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if rules, err := ParseRules(&corev1.ConfigMap{Data: map[string]string{"x": rule}}); err == nil {
				t.Errorf("%q was read as %+v", rule, rules)
			}
		})
	}
}
