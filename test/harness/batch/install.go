// Package batch runs on a local cluster what queues and schedules jobs: Kueue, the scheduler of scheduler-plugins, and the controllers of JobSets, PyTorchJobs and RayClusters.
// Each is a process, with the CRDs and webhook configurations of its release. They are built from test/harness/cluster/build/kueue, whose dependencies also have the CRD of
// ProvisioningRequests, and test/harness/cluster/build/jobs.
package batch

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

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// source returns the folder of a Go module with which the programs of test/harness/cluster/build/<build> are built. It downloads the module if necessary.
func source(ctx context.Context, build, module string) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	download.Dir = filepath.Join(root, "test", "harness", "cluster", "build", build)
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

const unshare = "/usr/bin/unshare"

// certificateIn returns the arguments with which unshare, as root, runs a program that reads its certificate from a fixed folder, where others may run the same program. The
// program sees an empty folder over, which contains the fixed one.
func certificateIn(c *cluster.Cluster, over, folder string, program ...string) []string {
	const script = `set -e
		mkdir -p "$1"
		mount -t tmpfs none "$1"
		mkdir -p "$2"
		cp "$3" "$2/tls.crt"
		cp "$4" "$2/tls.key"
		shift 4
		exec "$@"`
	cert, key := c.ServingCertificate()
	return append([]string{"--mount", "sh", "-c", script, "sh", over, folder, cert, key}, program...)
}

// createWebhooks creates configurations of webhooks that a program serves on loopback.
func createWebhooks(ctx context.Context, c *cluster.Cluster, api client.Client, port int, configurations ...*unstructured.Unstructured) error {
	for _, o := range configurations {
		if err := callsLoopback(o, port, c.RESTConfig().CAData); err != nil {
			return err
		}
		if err := api.Create(ctx, o); err != nil {
			return fmt.Errorf("creating %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
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
