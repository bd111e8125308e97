// Command bench-node compares Karve's agent with NVIDIA's device plugin. Both run on the same kubelet with the same pods, and use the same mock NVML
// library, which simulates four T4 GPUs. It also compares the backends of Karve's agent, with the agent in a cluster as the chart runs it. It prints a table and writes
// it as JSON. `make bench-node` runs it, as root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/bench/results"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	out := flag.String("o", filepath.Join("..", "_output", "bench-node.json"), "where the numbers go")
	starts := flag.Int("starts", 5, "how often each plugin is started")
	reloads := flag.Int("reloads", 10, "how often each plugin is given another configuration, once idle and once among pods that come and go")
	flag.Parse()
	if err := kubelet.Missing(); err != nil {
		return err
	}
	if err := cluster.Missing(); err != nil {
		return err
	}
	var plugins []gpus.Plugin
	for _, build := range []func(context.Context) (gpus.Plugin, error){gpus.Karve, gpus.NVIDIA} {
		p, err := build(ctx)
		if err != nil {
			return err
		}
		plugins = append(plugins, p)
	}
	c, err := cluster.Start(ctx, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}})
	if err != nil {
		return err
	}
	defer func() { _ = c.Stop() }()
	var measured []map[string]any
	for i, p := range plugins {
		fmt.Fprintf(os.Stderr, "measuring %s\n", p.Name)
		result, err := measure(ctx, c, fmt.Sprintf("node-%d", i), p, *starts, *reloads)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", p.Name, err)
		}
		measured = append(measured, result)
	}
	for i, backend := range []string{string(v1alpha1.BackendDevicePlugin), nodecontract.BackendDRA} {
		fmt.Fprintf(os.Stderr, "measuring %s with backend %s\n", plugins[0].Name, backend)
		result, err := measureBackend(ctx, c, fmt.Sprintf("backend-%d", i), plugins[0], backend)
		if err != nil {
			return fmt.Errorf("measuring backend %s: %w", backend, err)
		}
		measured = append(measured, result)
	}
	if err := table(measured); err != nil {
		return err
	}
	return results.Save(*out, measured)
}

// lines are the rows of the table, by key in the JSON.
var lines = []struct{ key, title string }{
	{"plugin", ""},
	{"binaryBytes", "binary, bytes"},
	{"residentKiB", "memory with 4 T4, resident KiB"},
	{"allocationMaxMs", "answer to the kubelet for a pod, ms (longest)"},
	{"startKubeletMs", "start to devices known to the kubelet, ms (median)"},
	{"startNodeMs", "start to allocatable on the Node, ms (median)"},
	{"reloadKubeletMs", "new configuration to new allocatable in the kubelet, ms (median)"},
	{"reloadKubeletMaxMs", "the same, ms (longest)"},
	{"reloadNodeMs", "new configuration to new allocatable on the Node, ms (median)"},
	{"reloadZeroKubeletMs", "of that at zero in the kubelet, ms a reload (mean)"},
	{"reloadZeroNodeMs", "of that at zero on the Node, ms a reload (mean)"},
	{"podsRan", "pods that ran during the reloads"},
	{"podsFailed", "pods that failed admission during the reloads"},
	{"xidUnhealthyPercent", "replicas of a GPU unhealthy after its XID 79, %"},
	{"xidKubeletMs", "XID to that in the kubelet, ms"},
}

func table(results []map[string]any) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, line := range lines {
		_, _ = fmt.Fprint(w, line.title)
		for _, r := range results {
			value, measured := r[line.key]
			if !measured {
				value = "-"
			}
			_, _ = fmt.Fprintf(w, "\t%v", value)
		}
		_, _ = fmt.Fprintln(w)
	}
	return w.Flush()
}
