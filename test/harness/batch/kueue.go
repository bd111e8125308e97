package batch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Kueue is the name of Kueue's controller in a cluster.
const Kueue cluster.Component = "kueue"

// KueueNamespace is the namespace of Kueue.
const KueueNamespace = "kueue-system"

// ProvisioningRequests returns the path of the CRD of ProvisioningRequests.
func ProvisioningRequests(ctx context.Context) (string, error) {
	dir, err := source(ctx, "kueue", "k8s.io/autoscaler/cluster-autoscaler/apis")
	return filepath.Join(dir, "config", "crd", "autoscaling.x-k8s.io_provisioningrequests.yaml"), err
}

// StartKueue installs Kueue and starts it, with the kinds of jobs that it queues, such as "batch/job". It returns when Kueue is ready. Only root can start it, because Kueue
// reads a certificate from a fixed folder.
func StartKueue(ctx context.Context, c *cluster.Cluster, api client.Client, kinds ...string) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := builder.Build(ctx, root, os.Stderr, builder.Kueue); err != nil {
		return err
	}
	dir, err := source(ctx, "kueue", "sigs.k8s.io/kueue")
	if err != nil {
		return err
	}
	objects, err := chart.Chart{Name: filepath.Join(dir, "charts", "kueue"), Release: "kueue", Namespace: KueueNamespace}.Template(ctx)
	if err != nil {
		return err
	}
	hooks, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	for _, o := range objects.Kind("CustomResourceDefinition") {
		if err := callsLoopback(o, hooks, c.RESTConfig().CAData); err != nil {
			return err
		}
	}
	crds, err := written(objects.Kind("CustomResourceDefinition"), filepath.Join(filepath.Dir(c.Kubeconfig()), "kueue-crds"))
	if err != nil {
		return err
	}
	if err := c.ApplyCRDs(ctx, crds); err != nil {
		return err
	}
	ns := &corev1.Namespace{}
	ns.Name = KueueNamespace
	if err := api.Create(ctx, ns); err != nil {
		return fmt.Errorf("creating namespace %s: %w", KueueNamespace, err)
	}
	if err := runKueue(ctx, c, root, hooks, kinds); err != nil {
		return err
	}
	return createWebhooks(ctx, c, api, hooks, append(objects.Kind("MutatingWebhookConfiguration"), objects.Kind("ValidatingWebhookConfiguration")...)...)
}

// runKueue starts the controller, which has all rights.
func runKueue(ctx context.Context, c *cluster.Cluster, root string, hooks int, kinds []string) error {
	health, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	folder := filepath.Join(filepath.Dir(c.Kubeconfig()), "kueue")
	config := fmt.Sprintf(`apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: %s
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: %d, certDir: /etc/kueue/metrics/certs}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
integrations: {frameworks: [%s]}
featureGates: {VisibilityOnDemand: false}
`, KueueNamespace, health, hooks, strings.Join(kinds, ", "))
	file := filepath.Join(folder, "config.yaml")
	if err := errors.Join(os.MkdirAll(folder, 0o750), os.WriteFile(file, []byte(config), 0o600)); err != nil {
		return fmt.Errorf("writing Kueue's configuration: %w", err)
	}
	return c.StartProgram(context.WithoutCancel(ctx), cluster.Program{
		Name: Kueue, Path: unshare,
		Args:     certificateIn(c, "/etc", "/etc/kueue/metrics/certs", filepath.Join(root, "_output", "bin", "kueue"), "--config="+file, "--zap-log-level=3"),
		Env:      []string{"KUBECONFIG=" + c.Kubeconfig()},
		ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", health),
	})
}
