package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"karve.sh/karve/pkg/overview"
)

// TestDocsPrintMemoryOfEachGPU runs the filter in docs/cli.md on two nodes with a T4 each, the first of which has three pods with slots of 3 GiB.
func TestDocsPrintMemoryOfEachGPU(t *testing.T) {
	t.Parallel()
	jq, err := exec.LookPath("jq")
	if err != nil {
		t.Skip("jq is not installed")
	}
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, filter, _ := strings.Cut(string(page), "kubectl karve inspect -o json | jq -r '")
	filter, _, _ = strings.Cut(filter, "'\n")
	const gib = 1 << 10
	node := func(name, address string, held int64) overview.Node {
		return overview.Node{
			Name: name, Address: address, StatedMiB: held, MemoryMiB: new(int64(15 * gib)),
			GPUs: []overview.GPU{{StatedMiB: new(held), MemoryMiB: new(int64(15 * gib))}, {Index: 1}},
		}
	}
	var data, out bytes.Buffer
	o := inspectOptions{output: output{format: "json"}}
	all := &overview.Overview{Nodes: []overview.Node{node("node-1", "192.168.0.71", 9*gib+gib/2), node("node-2", "192.168.0.70", 0)}}
	if err := o.print(streams{nil, &data, &data}, all, nil); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), jq, "-r", filter)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &data, &out, &out
	const want = "node-1\t192.168.0.71\t9.5/15\t0/0\t9.5/15\nnode-2\t192.168.0.70\t0/15\t0/0\t0/15\n"
	if err := cmd.Run(); err != nil || out.String() != want {
		t.Errorf("%v, got\n%s\nwant\n%s", err, &out, want)
	}
}
