package batch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Coscheduling is the name of the scheduler of scheduler-plugins in a cluster.
const Coscheduling cluster.Component = "coscheduling"

// SchedulerName is the name by which pods choose the scheduler of scheduler-plugins. The chart of scheduler-plugins, Kubeflow and KubeRay use it.
const SchedulerName = "scheduler-plugins-scheduler"

// PodGroups returns the path of the CRD of the PodGroups of scheduler-plugins.
func PodGroups(ctx context.Context) (string, error) {
	dir, err := source(ctx, "jobs", "sigs.k8s.io/scheduler-plugins")
	return filepath.Join(dir, "config", "crd", "bases", "scheduling.x-k8s.io_podgroups.yaml"), err
}

// StartCoscheduling starts the scheduler of scheduler-plugins beside the cluster's own. The cluster must have the CRD of PodGroups.
func StartCoscheduling(ctx context.Context, c *cluster.Cluster) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := builder.Build(ctx, root, os.Stderr, builder.Coscheduling); err != nil {
		return err
	}
	port, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	// The plugins are those of the chart of scheduler-plugins, without those for other purposes.
	config := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 500, burst: 1000}
profiles:
- schedulerName: %s
  plugins:
    multiPoint:
      enabled: [{name: Coscheduling}]
      disabled: [{name: PrioritySort}]
`, c.Kubeconfig(), SchedulerName)
	file := filepath.Join(c.Dir(), "coscheduling.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return fmt.Errorf("writing the scheduler's configuration: %w", err)
	}
	cert, key := c.ServingCertificate()
	return c.StartProgram(context.WithoutCancel(ctx), cluster.Program{
		Name: Coscheduling, Path: filepath.Join(root, "_output", "bin", "coscheduling"),
		Args: []string{
			"--config=" + file, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--tls-cert-file=" + cert, "--tls-private-key-file=" + key,
			"--authentication-kubeconfig=" + c.Kubeconfig(), "--authorization-kubeconfig=" + c.Kubeconfig(),
			// The plugin asks for no second try of the pods that it rejects when a node changes. By default, they are tried again after five minutes.
			"--pod-max-in-unschedulable-pods-duration=10s",
		},
		ReadyURL: fmt.Sprintf("https://127.0.0.1:%d/healthz", port),
	})
}
