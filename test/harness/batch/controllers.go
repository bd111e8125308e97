package batch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// The controllers of jobs.
const (
	JobSet           cluster.Component = "jobset"
	TrainingOperator cluster.Component = "training-operator"
	KubeRay          cluster.Component = "ray-operator"
)

// JobCRDs returns the paths of the CRDs of JobSets, PyTorchJobs and RayClusters.
func JobCRDs(ctx context.Context) ([]string, error) {
	jobset, err := source(ctx, "jobs", "sigs.k8s.io/jobset")
	if err != nil {
		return nil, err
	}
	kubeflow, err := source(ctx, "jobs", "github.com/kubeflow/training-operator")
	if err != nil {
		return nil, err
	}
	ray, err := source(ctx, "jobs", "github.com/ray-project/kuberay/ray-operator")
	return []string{
		filepath.Join(jobset, "charts", "jobset", "crds"), filepath.Join(kubeflow, "manifests", "base", "crds", "kubeflow.org_pytorchjobs.yaml"), filepath.Join(ray, "config", "crd", "bases"),
	}, err
}

// StartJobControllers starts the controllers of JobSets, PyTorchJobs and RayClusters. Those of PyTorchJobs and RayClusters create PodGroups of scheduler-plugins. The cluster must
// have their CRDs. Only root can start them, because Kubeflow reads a certificate from a fixed folder.
func StartJobControllers(ctx context.Context, c *cluster.Cluster, api client.Client) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := builder.Build(ctx, root, os.Stderr, builder.Jobs); err != nil {
		return err
	}
	return errors.Join(startJobSet(ctx, c, api), startTrainingOperator(ctx, c, api), startKubeRay(ctx, c))
}

// webhookCertificates is the folder in which controller-runtime finds certificates by default.
const webhookCertificates = "/tmp/k8s-webhook-server/serving-certs"

func startJobSet(ctx context.Context, c *cluster.Cluster, api client.Client) error {
	dir, err := source(ctx, "jobs", "sigs.k8s.io/jobset")
	if err != nil {
		return err
	}
	objects, err := chart.Chart{Name: filepath.Join(dir, "charts", "jobset"), Release: "jobset", Namespace: "jobset-system"}.Template(ctx)
	if err != nil {
		return err
	}
	hooks, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	config := filepath.Join(c.Dir(), "jobset.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
webhook: {host: 127.0.0.1, port: %d, certDir: %s}
`, hooks, webhookCertificates), 0o600); err != nil {
		return fmt.Errorf("writing JobSet's configuration: %w", err)
	}
	if err := startController(ctx, c, JobSet, "--metrics-bind-address=0", "--config="+config); err != nil {
		return err
	}
	return createWebhooks(ctx, c, api, hooks, append(objects.Kind("MutatingWebhookConfiguration"), objects.Kind("ValidatingWebhookConfiguration")...)...)
}

func startTrainingOperator(ctx context.Context, c *cluster.Cluster, api client.Client) error {
	dir, err := source(ctx, "jobs", "github.com/kubeflow/training-operator")
	if err != nil {
		return err
	}
	content, err := os.ReadFile(filepath.Join(dir, "manifests", "base", "webhook", "manifests.yaml"))
	if err != nil {
		return fmt.Errorf("reading Kubeflow's webhooks: %w", err)
	}
	webhooks := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(content, &webhooks.Object); err != nil {
		return fmt.Errorf("reading Kubeflow's webhooks: %w", err)
	}
	hooks, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	// The operator writes a certificate of its own to the Secret and to the configuration of this name. A kubelet would put it into its folder. Here that has the cluster's.
	const namespace = "kubeflow"
	own := &unstructured.Unstructured{}
	own.SetGroupVersionKind(webhooks.GroupVersionKind())
	own.SetName("validator.training-operator.kubeflow.org")
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "training-operator-webhook-cert"}}, own,
	} {
		if err := api.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %T %s: %w", o, o.GetName(), err)
		}
	}
	if err := startController(ctx, c, TrainingOperator, "--metrics-bind-address=0", fmt.Sprintf("--webhook-server-port=%d", hooks), "--enable-scheme=pytorchjob",
		"--gang-scheduler-name="+SchedulerName); err != nil {
		return err
	}
	return createWebhooks(ctx, c, api, hooks, webhooks)
}

func startKubeRay(ctx context.Context, c *cluster.Cluster) error {
	return startController(ctx, c, KubeRay, "--metrics-addr=0", "--enable-leader-election=false", "--batch-scheduler=scheduler-plugins")
}

// startController starts a controller, which has all rights.
func startController(ctx context.Context, c *cluster.Cluster, name cluster.Component, args ...string) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	health, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	program := append([]string{filepath.Join(root, "_output", "bin", string(name)), fmt.Sprintf("--health-probe-bind-address=127.0.0.1:%d", health)}, args...)
	return c.StartProgram(context.WithoutCancel(ctx), cluster.Program{
		Name: name, Path: unshare, Args: certificateIn(c, filepath.Dir(webhookCertificates), webhookCertificates, program...),
		Env:      []string{"KUBECONFIG=" + c.Kubeconfig()},
		ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", health),
	})
}
