// Package hostile generates objects that the API server accepts but that no reasonable user creates: extreme amounts, counts and strings, in any
// combination. Tests use it to check that such objects do not harm others.
package hostile

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// Namespace is the namespace of all namespaced objects.
const Namespace = "hostile"

// Generator generates objects. The same seed gives the same objects.
type Generator struct {
	rand *rand.Rand
	// prefix is the prefix of the objects' names. A number follows it.
	prefix string
	made   int
	// names are the names of earlier objects, by kind, so that objects can refer to one another.
	names map[string][]string
}

// New returns a generator for objects whose names begin with prefix.
func New(prefix string, seed uint64) *Generator {
	return &Generator{rand: rand.New(rand.NewPCG(seed, 1)), prefix: prefix, names: map[string][]string{}}
}

// Object returns an object of any kind. Every second one is a pod, because most users may create pods.
func (g *Generator) Object() client.Object {
	others := []func() client.Object{
		func() client.Object { return g.Node() }, func() client.Object { return g.Node() }, func() client.Object { return g.NodePool() },
		func() client.Object { return g.NodeClaim() }, func() client.Object { return g.GPUNodeClass() }, func() client.Object { return g.DaemonSet() },
		func() client.Object { return g.PersistentVolumeClaim() }, func() client.Object { return g.PersistentVolume() },
		func() client.Object { return g.StorageClass() }, func() client.Object { return g.CSINode() }, func() client.Object { return g.Namespace() },
		func() client.Object { return g.Event() },
	}
	if g.maybe(0.5) {
		return g.Pod()
	}
	return pick(g, others...)()
}

func (g *Generator) meta(kind string) metav1.ObjectMeta {
	g.made++
	name := fmt.Sprintf("%s-%d", g.prefix, g.made)
	g.names[kind] = append(g.names[kind], name)
	return metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(snapshottest.Now)}
}

func (g *Generator) namespaced(kind string) metav1.ObjectMeta {
	m := g.meta(kind)
	m.Namespace = Namespace
	return m
}

// known returns the name of an earlier object, or sometimes of one that does not exist.
func (g *Generator) known(kind string) string {
	if names := g.names[kind]; len(names) > 0 && !g.maybe(0.1) {
		return pick(g, names...)
	}
	return "missing"
}

func (g *Generator) maybe(p float64) bool { return g.rand.Float64() < p }

func pick[T any](g *Generator, all ...T) T { return all[g.rand.IntN(len(all))] }

// count returns a number that is mostly small, and sometimes most.
func (g *Generator) count(most int) int {
	switch {
	case g.maybe(0.02):
		return most
	case g.maybe(0.5):
		return min(most, 1)
	}
	return min(most, g.rand.IntN(4))
}

// quantity returns any non-negative quantity that the API server accepts.
func (g *Generator) quantity() resource.Quantity {
	if g.maybe(0.3) {
		return resource.MustParse(fmt.Sprintf("%d%s", g.rand.Int64N(1000), pick(g, "", "m", "Ki", "Mi", "Gi", "k", "M")))
	}
	return resource.MustParse(pick(g, "0", "-0", "1", "1m", "1n", "1e-9", "0.000000001", "100m", "3900m", "8", "64", "1000000", "9007199254740991", "9007199254740992",
		"9223372036854775", "9223372036854776", "10000000000000000", "4611686018427387904", "9223372036854775807", "9223372036854775807Ei", "1e18", "1e30", "8Ei", "1Pi", "15Gi",
		"1073741824000m"))
}

// whole returns a quantity of something indivisible.
func (g *Generator) whole() resource.Quantity {
	return resource.MustParse(pick(g, "0", "1", "1", "1", "2", "10", "128", "1000000", "9007199254740991", "9007199254740993", "4611686018427387904", "9223372036854775807", "1k", "8E"))
}

// number returns the text of a number, or of something like it.
func (g *Generator) number() string {
	return pick(g, "0", "-1", "1", "4", "8", "10", "256", "257", "65536", "1099511627776", "4611686018427387904", "9223372036854775807", "9223372036854775808", "-9223372036854775808",
		"1e9", "0x10", "four", "", "00000000000000000000000000000000000000000000000000000000000007")
}

// moment returns the text of a time, or of something like it.
func (g *Generator) moment() string {
	return pick(g, "2026-03-01T12:00:00Z", "2026-03-01T11:00:00Z", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2262-04-11T23:47:16Z",
		"1677-09-21T00:12:43Z", "2026-03-01T12:00:00+24:00", "now", "", "1772366400")
}

// text returns any text. most limits the length of the longest ones.
func (g *Generator) text(most int) string {
	switch g.rand.IntN(5) {
	case 0:
		return ""
	case 1:
		return strings.Repeat(pick(g, "x", "\x00", "ÿ", "%s", "\n", "{\"a\":", "🦣"), 1+g.count(most/8))
	case 2:
		return "%!d(string=" + g.number() + ")"
	case 3:
		return `{"since":{"a/b":"` + g.moment() + `"},"until":"` + g.moment() + `"}`
	}
	return g.number()
}

// value returns the value of a label.
func (g *Generator) value() string {
	v := pick(g, "", "a", "true", "us-east-1a", "g4dn.xlarge", "t4", strings.Repeat("v", 63), "0", "1", "256", "1099511627776", "9223372036854775807", "9223372036854775808", "1e9", "amd64", "spot", "mars")
	return v
}

// keys are label keys that have a meaning, and some that have none.
var keys = []string{
	"app", "topology.kubernetes.io/zone", "kubernetes.io/hostname", "kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type",
	"nvidia.com/gpu.count", "nvidia.com/gpu.memory", "nvidia.com/gpu.present", "karpenter.k8s.aws/instance-family", "karpenter.k8s.aws/instance-gpu-count",
	"karpenter.k8s.aws/instance-cpu", "example.com/" + strings.Repeat("k", 63), "topology.ebs.csi.aws.com/zone",
}

func (g *Generator) labels(most int) map[string]string {
	labels := map[string]string{}
	for i := range g.count(most) {
		if i < 8 {
			labels[pick(g, keys...)] = g.value()
			continue
		}
		labels[fmt.Sprintf("example.com/%d", i)] = g.value()
	}
	return labels
}

func (g *Generator) annotations(keys ...string) map[string]string {
	annotations := map[string]string{}
	for range g.count(len(keys)) {
		annotations[pick(g, keys...)] = pick(g, g.text(4096), g.number(), g.moment(), "9223372036854775807Ei", "1e-9", "-0", "4Gi", "0", "-1", "1e400", "Infinity")
	}
	return annotations
}

func (g *Generator) selector() *metav1.LabelSelector {
	switch g.rand.IntN(5) {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	case 2:
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(g, "web", "hostile", "")}}
	}
	s := &metav1.LabelSelector{}
	for range 1 + g.count(200) {
		r := metav1.LabelSelectorRequirement{Key: pick(g, keys...), Operator: pick(g, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{g.value(), "web"}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (g *Generator) taints(most int) []corev1.Taint {
	var taints []corev1.Taint
	for i := range g.count(most) {
		taint := corev1.Taint{Key: fmt.Sprintf("example.com/%d", i), Value: pick(g, "", "a"), Effect: pick(g, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)}
		if i == 0 {
			taint.Key = pick(g, "nvidia.com/gpu.shared", "karve.sh/surplus", "karve.sh/disrupting", "karve.sh/replicas-not-ready", "karpenter.sh/disrupted", "example.com/0")
		}
		taints = append(taints, taint)
	}
	return taints
}

// integer returns any int32 from least on.
func (g *Generator) integer(least int32) int32 {
	n := pick(g, least, least+1, 3, 100, math.MaxInt32-1, math.MaxInt32, g.rand.Int32())
	return max(least, n)
}

func unique(values []string) []string {
	slices.Sort(values)
	return slices.Compact(values)
}

// Namespaced returns an object of each namespaced kind.
func Namespaced() []client.Object {
	return []client.Object{&corev1.Pod{}, &appsv1.DaemonSet{}, &corev1.PersistentVolumeClaim{}, &corev1.Event{}}
}
