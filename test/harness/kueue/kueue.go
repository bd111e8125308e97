// Package kueue runs Kueue on a local cluster: its controller and webhooks as a process, with the CRDs and webhook configurations of its chart. It is built from
// test/harness/cluster/build/kueue, whose dependencies also have the CRD of ProvisioningRequests.
package kueue

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Component is the name of Kueue's controller in a cluster.
const Component cluster.Component = "kueue"

const namespace = "kueue-system"

// CRD returns the path of the CRD of ProvisioningRequests.
func CRD(ctx context.Context) (string, error) {
	dir, err := source(ctx, "k8s.io/autoscaler/cluster-autoscaler/apis")
	return filepath.Join(dir, "config", "crd", "autoscaling.x-k8s.io_provisioningrequests.yaml"), err
}

// source returns the folder of a Go module that Kueue is built with. It downloads the module if necessary.
func source(ctx context.Context, module string) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir = filepath.Join(root, "test", "harness", "cluster", "build", "kueue")
	var errs strings.Builder
	download.Stderr = &errs
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("downloading %s: %w\n%s%s", module, err, errs.String(), out)
	}
	var is struct{ Dir string }
	if err := json.Unmarshal(out, &is); err != nil {
		return "", fmt.Errorf("downloading %s: %w", module, err)
	}
	return is.Dir, nil
}

// Start installs Kueue and starts it. It returns when Kueue is ready. Only root can start it, because Kueue reads a certificate from a fixed folder.
func Start(ctx context.Context, c *cluster.Cluster, api client.Client) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := builder.Build(ctx, root, os.Stderr, builder.Kueue); err != nil {
		return err
	}
	dir, err := source(ctx, "sigs.k8s.io/kueue")
	if err != nil {
		return err
	}
	objects, err := chart.Chart{Name: filepath.Join(dir, "charts", "kueue"), Release: "kueue", Namespace: namespace}.Template(ctx)
	if err != nil {
		return err
	}
	hooks, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	for _, o := range objects {
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
	ns.Name = namespace
	if err := api.Create(ctx, ns); err != nil {
		return fmt.Errorf("creating namespace %s: %w", namespace, err)
	}
	if err := run(ctx, c, root, hooks); err != nil {
		return err
	}
	for _, o := range append(objects.Kind("MutatingWebhookConfiguration"), objects.Kind("ValidatingWebhookConfiguration")...) {
		if err := api.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// run starts the controller, which has all rights.
func run(ctx context.Context, c *cluster.Cluster, root string, hooks int) error {
	health, err := c.FreePort(ctx)
	if err != nil {
		return err
	}
	cert, key := c.ServingCertificate()
	folder := filepath.Join(filepath.Dir(c.Kubeconfig()), "kueue")
	config := fmt.Sprintf(`apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
namespace: %s
health: {healthProbeBindAddress: "127.0.0.1:%d"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: %d, certDir: /etc/kueue/metrics/certs}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
integrations: {frameworks: [batch/job]}
featureGates: {VisibilityOnDemand: false}
`, namespace, health, hooks)
	file := filepath.Join(folder, "config.yaml")
	if err := errors.Join(os.MkdirAll(folder, 0o750), os.WriteFile(file, []byte(config), 0o600)); err != nil {
		return fmt.Errorf("writing Kueue's configuration: %w", err)
	}
	const script = `set -e
		mount -t tmpfs none /etc
		mkdir -p /etc/kueue/metrics/certs
		cp "$1" /etc/kueue/metrics/certs/tls.crt
		cp "$2" /etc/kueue/metrics/certs/tls.key
		exec "$3" --config="$4" --zap-log-level=3`
	return c.StartProgram(context.WithoutCancel(ctx), cluster.Program{
		Name: Component, Path: "/usr/bin/unshare",
		Args:     []string{"--mount", "sh", "-c", script, "sh", cert, key, filepath.Join(root, "_output", "bin", "kueue"), file},
		Env:      []string{"KUBECONFIG=" + c.Kubeconfig()},
		ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", health),
	})
}

// callsLoopback makes the webhooks of an object call a port on loopback instead of a Service.
func callsLoopback(o *unstructured.Unstructured, port int, authority []byte) error {
	clients := func(hook map[string]any) error {
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil {
			return err
		}
		hook["clientConfig"] = map[string]any{"url": fmt.Sprintf("https://127.0.0.1:%d%s", port, path), "caBundle": base64.StdEncoding.EncodeToString(authority)}
		return nil
	}
	if conversion, found, err := unstructured.NestedMap(o.Object, "spec", "conversion", "webhook"); found || err != nil {
		if err := errors.Join(err, clients(conversion)); err != nil {
			return fmt.Errorf("reading %s: %w", o.GetName(), err)
		}
		return unstructured.SetNestedMap(o.Object, conversion, "spec", "conversion", "webhook")
	}
	hooks, _, err := unstructured.NestedSlice(o.Object, "webhooks")
	if err != nil || len(hooks) == 0 {
		return err
	}
	for i := range hooks {
		hook, ok := hooks[i].(map[string]any)
		if !ok {
			return fmt.Errorf("%s has a webhook that is no object", o.GetName())
		}
		if err := clients(hook); err != nil {
			return fmt.Errorf("reading %s: %w", o.GetName(), err)
		}
	}
	return unstructured.SetNestedSlice(o.Object, hooks, "webhooks")
}

// written writes objects to files in a folder, and returns the folder.
func written(objects chart.Objects, folder string) (string, error) {
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return "", fmt.Errorf("writing objects: %w", err)
	}
	for _, o := range objects {
		text, err := o.MarshalJSON()
		if err != nil {
			return "", fmt.Errorf("writing %s: %w", o.GetName(), err)
		}
		if err := os.WriteFile(filepath.Join(folder, o.GetName()+".yaml"), text, 0o600); err != nil {
			return "", fmt.Errorf("writing %s: %w", o.GetName(), err)
		}
	}
	return folder, nil
}
