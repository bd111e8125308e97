package main

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/overview"
)

// TestInspectPrintsGPUSharesTable has two nodes with a T4 each, and three pods with slots of 3 GiB on the first.
func TestInspectPrintsGPUSharesTable(t *testing.T) {
	t.Parallel()
	const gib = 1 << 10
	node := func(name, address string, held int64) overview.Node {
		return overview.Node{
			Name: name, Address: address, StatedMiB: held, MemoryMiB: new(int64(15 * gib)),
			GPUs: []overview.GPU{{StatedMiB: new(held), MemoryMiB: new(int64(15 * gib))}},
		}
	}
	all := &overview.Overview{Nodes: []overview.Node{node("node-1", "192.168.0.71", 9*gib), node("node-2", "192.168.0.70", 0)}}
	for range 3 {
		all.Pods = append(all.Pods, overview.Pod{StatedMiB: new(int64(3 * gib))})
	}
	const want = `NAME     IPADDRESS      GPU0(Allocated/Total)   GPU Memory(GiB)
node-1   192.168.0.71   9/15                    9/15
node-2   192.168.0.70   0/15                    0/15
---------------------------------------------------------------------
Allocated/Total GPU Memory In Cluster:
9/30 (30%)
`
	var out bytes.Buffer
	if err := (&inspectOptions{}).printGPUShare(&out, all); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
