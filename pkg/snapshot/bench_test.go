package snapshot_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// BenchmarkBuild is of a large cluster: a thousand instance types of which a tenth has GPUs, three zones, twenty DaemonSets, ten pools of Karve's and ten of
// Karpenter's, and a thousand pods of fifty classes.
func BenchmarkBuild(b *testing.B) {
	c := Shared()
	base := c.InstanceTypes
	c.InstanceTypes = nil
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
		c.InstanceTypes = append(c.InstanceTypes, t)
	}
	for i := range 10 {
		c.NodePools = append(c.NodePools, StockPool(fmt.Sprintf("stock-%d", i)), Pool(fmt.Sprintf("ours-%d", i), "gpu-shared", Tainted("nvidia.com/gpu.shared"), Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)))
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
