package scheduler

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Scene is the input of the scheduler's filters: a cluster and what happens in it. The program in test/harness/cluster/build/kubernetes/filter plays it.
type Scene struct {
	Nodes          []*corev1.Node
	Namespaces     []corev1.Namespace
	PVCs           []corev1.PersistentVolumeClaim
	PVs            []corev1.PersistentVolume
	StorageClasses []storagev1.StorageClass
	CSINodes       []storagev1.CSINode
	// Pods are the bound pods.
	Pods []corev1.Pod
	// Daemons are daemon pods. One runs on each node of New and Fresh whose labels and taints admit it.
	Daemons []*corev1.Pod
	// New names the nodes that were launched for the pods of Place.
	New []string
	// Place are pods with their planned node.
	Place []ScenePlacement
	// Fresh are nodes that are launched after all pods of Place are bound. Cordoned ones only add topology domains.
	Fresh []*corev1.Node
	// Refused are pods that no node of Judged or Fresh should then admit.
	Refused []*corev1.Pod
	Judged  []string
}

// ScenePlacement is a pod with its planned node.
type ScenePlacement struct {
	Pod  *corev1.Pod
	Node string
}

// Findings are the results of the filters.
type Findings struct {
	Error string
	// Daemons are daemon pods that a new or fresh node rejects although its labels and taints admit them.
	Daemons []Verdict
	// Stuck are pods that could not be placed as planned, in any order.
	Stuck []Verdict
	// Taken are the refused pods that a node would admit.
	Taken []Verdict
}

// Verdict is a filter's rejection of a pod on a node.
type Verdict struct {
	Pod, Node string
	// Plugin is the filter that rejected the pod. Reasons says why.
	Plugin, Reasons string
}

// Filter is the running program with the scheduler's filters.
type Filter struct {
	encoder *json.Encoder
	decoder *json.Decoder
	input   io.WriteCloser
	cmd     *exec.Cmd
}

// build builds the program into _output/bin, below the repository's root, and returns its path. It shares its dependencies with the local cluster's
// kube-scheduler, so the build is fast once that has been built.
var build = sync.OnceValues(func() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "scheduler-filter")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags", "-s -w", builder.KubernetesFlag, "-o", path, ".")
	cmd.Dir = filepath.Join(root, "test", "harness", "cluster", "build", "kubernetes", "filter")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the scheduler's filters: %w\n%s", err, out)
	}
	return path, nil
})

// Start builds the program if needed and starts it. It ends with the context, or with Close.
func Start(ctx context.Context) (*Filter, error) {
	path, err := build()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the scheduler's filters: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the scheduler's filters: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the scheduler's filters: %w", err)
	}
	return &Filter{encoder: json.NewEncoder(in), decoder: json.NewDecoder(bufio.NewReader(out)), input: in, cmd: cmd}, nil
}

// Close ends the program.
func (f *Filter) Close() error {
	return errors.Join(f.input.Close(), f.cmd.Wait())
}

// Play runs the filters on a scene.
func (f *Filter) Play(s *Scene) (Findings, error) {
	var found Findings
	if err := f.encoder.Encode(s); err != nil {
		return found, fmt.Errorf("asking the scheduler's filters: %w", err)
	}
	if err := f.decoder.Decode(&found); err != nil {
		return found, fmt.Errorf("asking the scheduler's filters: %w", err)
	}
	if found.Error != "" {
		return found, errors.New(found.Error)
	}
	return found, nil
}
