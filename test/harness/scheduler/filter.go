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
)

// Scene is what the scheduler's filters are asked: a cluster and what is to happen in it. The program in test/harness/scheduler/filter plays it.
type Scene struct {
	Nodes          []*corev1.Node
	Namespaces     []corev1.Namespace
	PVCs           []corev1.PersistentVolumeClaim
	PVs            []corev1.PersistentVolume
	StorageClasses []storagev1.StorageClass
	CSINodes       []storagev1.CSINode
	// Pods are those that are bound.
	Pods []corev1.Pod
	// Daemons are pods that run on each of the nodes New and Fresh whose labels and taints admit them.
	Daemons []*corev1.Pod
	// New names the nodes that have come for Place.
	New []string
	// Place are pods with the node that each is meant for.
	Place []ScenePlacement
	// Fresh are nodes that come after all pods of Place have theirs. Those that are cordoned only make domains.
	Fresh []*corev1.Node
	// Refused are pods that no node of Judged or Fresh should take then.
	Refused []*corev1.Pod
	Judged  []string
}

// ScenePlacement is a pod with the node that it is meant for.
type ScenePlacement struct {
	Pod  *corev1.Pod
	Node string
}

// Findings are what the filters said.
type Findings struct {
	Error string
	// Daemons are those that a new or fresh node does not hold although its labels and taints admit them.
	Daemons []Verdict
	// Stuck are pods that could not be placed where they were meant to be, whatever came first.
	Stuck []Verdict
	// Taken are the refused pods that a node would have taken.
	Taken []Verdict
}

// Verdict is about a pod on a node.
type Verdict struct {
	Pod, Node string
	// Plugin and Reasons say which of the filters turned the pod away, and why.
	Plugin, Reasons string
}

// Filter is a running program that answers for the scheduler.
type Filter struct {
	encoder *json.Encoder
	decoder *json.Decoder
	input   io.WriteCloser
	cmd     *exec.Cmd
}

// build builds the program into _output/bin, below the repository's root, and returns its path. It needs what the local cluster's
// kube-scheduler is built of, so it takes little when that has been built.
var build = sync.OnceValues(func() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "scheduler-filter")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags", "-s -w", "-o", path, ".") //nolint:gosec // go
	cmd.Dir = filepath.Join(root, "test", "harness", "scheduler", "filter")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the scheduler's filters: %w\n%s", err, out)
	}
	return path, nil
})

// Start starts the program, and builds it first where that is needed. It ends with the context, or with Close.
func Start(ctx context.Context) (*Filter, error) {
	path, err := build()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path) //nolint:gosec // The program that was built.
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

// Play asks about a scene.
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
