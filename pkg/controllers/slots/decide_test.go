package slots

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

func slotsOf(counts ...int64) nodecontract.Slots {
	return nodecontract.Slots{SizesMiB: []int64{2048, 8192}, ReserveMiB: 512, Enforcement: nodecontract.EnforceWatch, GPUs: [][]int64{counts}}
}

func slotted(size string) func(*corev1.Pod) {
	return snapshottest.Asking("cpu", "10m", "memory", "16Mi", "nvidia.com/gpu-"+size, "1")
}

// TestDecide has a node with seven slots of 2 GiB, of which some are to make way for one of 8 GiB.
func TestDecide(t *testing.T) {
	t.Parallel()
	now := snapshottest.Now
	was, next := slotsOf(7, 0), slotsOf(3, 1)
	for name, c := range map[string]struct {
		closed     time.Duration
		promise    nodecontract.Slots
		next       string
		exposes    nodecontract.Slots
		held, came int
		want       step
		again      time.Duration
	}{
		"the scheduler binds what it had decided":     {2 * time.Second, was, next.String(), was, 3, 0, wait, 3 * time.Second},
		"then the slots are written":                  {lifecycle.SlotsSettle, was, next.String(), was, 3, 0, promises, 0},
		"also for pods of which the agent says less":  {lifecycle.SlotsSettle, was, next.String(), was, 1, 2, promises, 0},
		"a pod that came needs a slot":                {lifecycle.SlotsSettle, was, next.String(), was, 3, 1, keeps, 0},
		"a pod that the agent knows needs a slot":     {lifecycle.SlotsSettle, was, next.String(), was, 4, 0, keeps, 0},
		"what comes next cannot be read":              {time.Second, was, "[", was, 0, 0, keeps, 0},
		"the class has other sizes by now":            {lifecycle.SlotsSettle, was, `{"sizesMiB":[1024],"reserveMiB":512,"enforcement":"Watch","gpus":[[1]]}`, was, 0, 0, keeps, 0},
		"the kubelet reports the old slots":           {10 * time.Second, next, "", was, 3, 0, wait, 50 * time.Second},
		"the Node has the new slots":                  {10 * time.Second, next, "", next, 3, 0, opens, 0},
		"the Node never gets the new slots":           {lifecycle.SlotsPatience, next, "", was, 3, 0, givesUp, 0},
		"a time that cannot be read was long ago":     {-1, next, "", was, 3, 0, givesUp, 0},
		"a Node that somebody else tainted is opened": {-1, was, "", was, 3, 0, opens, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, xlarge := snapshottest.Pool("gpu", "gpu"), snapshottest.TypeNamed("g4dn.xlarge")
			claim := snapshottest.Claim("gpu-1", &pool, xlarge, snapshottest.Initialized(now))
			claim.Annotations[nodecontract.ResourceAnnotation], claim.Annotations[nodecontract.SlotsAnnotation] = "nvidia.com/gpu-2gb", c.promise.String()
			node := snapshottest.Node(&claim, xlarge, 0)
			for i, n := range c.exposes.Wanted() {
				node.Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(c.exposes.SizesMiB[i]))] = *resource.NewQuantity(n, resource.DecimalSI)
			}
			node.Annotations[v1alpha1.SlotsNextAnnotation] = c.next
			if c.closed >= 0 {
				node.Annotations[v1alpha1.SlotsChangingSinceAnnotation] = now.Add(-c.closed).UTC().Format(time.RFC3339)
			}
			node.Annotations[nodecontract.SlotsInUseAnnotation] = nodecontract.SlotsInUse{
				SizesMiB: was.SizesMiB, GPUs: []nodecontract.GPUSlotsInUse{{MemoryMiB: 15079, Held: []int64{int64(c.held), 0}}},
			}.String()
			m := &records.Machine{Claim: &claim, Node: &node, Type: xlarge, Promise: facts.PromiseOf(node.Annotations)}
			pods := snapshottest.Pods("pod", c.held+c.came, slotted("2gb"), snapshottest.Running(node.Name))
			for i := range pods {
				m.Pods = append(m.Pods, &pods[i])
			}
			if got, again := decide(m, now); got != c.want || again != c.again {
				t.Errorf("decide = %d, %s, want %d, %s", got, again, c.want, c.again)
			}
		})
	}
}
