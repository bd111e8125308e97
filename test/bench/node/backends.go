package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// rounds is how many pods measureBackend runs, one after another.
const rounds = 20

// measureBackend measures Karve's agent with a backend on a node of its own, where it does what its Node says, as the chart runs it.
func measureBackend(ctx context.Context, c *cluster.Cluster, name string, p gpus.Plugin, backend string) (result map[string]any, err error) {
	machine, stop, err := machineOf(ctx, c, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	n := machine.Node
	if err := machine.InCluster(ctx); err != nil {
		return nil, err
	}
	if err := machine.Promise(ctx, backend, replicas); err != nil {
		return nil, err
	}
	port, err := c.FreePort(ctx)
	if err != nil {
		return nil, err
	}
	metrics := fmt.Sprintf("127.0.0.1:%d", port)
	p.Args = []string{"--metrics-address=" + metrics, "--state-dir=" + filepath.Join(n.Dir(), "state"), "--cdi-spec-dirs=" + filepath.Join(n.Dir(), "cdi")}
	process, err := machine.StartUnconfigured(p)
	if err != nil {
		return nil, err
	}
	defer p.Stop(process)
	info, err := os.Stat(p.Path)
	if err != nil {
		return nil, err
	}
	result = map[string]any{"plugin": p.Name + ", " + backend, "binaryBytes": info.Size()}
	for i := range rounds {
		if err := runPod(ctx, n, fmt.Sprintf("%s-%d", name, i)); err != nil {
			return nil, err
		}
	}
	longest, err := gauge(ctx, metrics, "karve_node_allocation_seconds_max")
	if err != nil {
		return nil, err
	}
	result["allocationMaxMs"] = milliseconds(time.Duration(longest * float64(time.Second)))
	if err := smithytime.SleepWithContext(ctx, 5*time.Second); err != nil {
		return nil, err
	}
	result["residentKiB"], err = process.ResidentKiB()
	return result, err
}

// runPod creates a pod with a replica and waits until it runs. The pods come one after another: kube-scheduler 1.36.3 counts an allocation twice for a moment.
func runPod(ctx context.Context, n *kubelet.Node, name string) error {
	pods := n.Client().CoreV1().Pods(n.Namespace())
	if _, err := pods.Create(ctx, n.Pod(name, nodecontract.ResourceGPUShared, 1), metav1.CreateOptions{}); err != nil {
		return err
	}
	deadline := time.Now().Add(patience)
	for {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case pod.Status.Phase == corev1.PodRunning:
			return nil
		case pod.Status.Phase == corev1.PodFailed || time.Now().After(deadline):
			return fmt.Errorf("%s is %s: %s", name, pod.Status.Phase, pod.Status.Message)
		}
		if err := smithytime.SleepWithContext(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// gauge returns the value of a metric without labels.
func gauge(ctx context.Context, address, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}
