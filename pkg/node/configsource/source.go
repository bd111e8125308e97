package configsource

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/limited"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
)

// NodeWatcher calls a function with the Node's metadata, once at first and then after changes, the latest if there are several, until ctx ends.
type NodeWatcher interface {
	Watch(ctx context.Context, f func(nodeapi.Metadata))
}

// Source watches the sources of the configuration.
type Source struct {
	// File and Dir are the paths of configurations. "" disables them.
	File, Dir string
	// Default is the named configuration for nodes without the label.
	Default string
	Strict  bool
	// Node may be nil. Then labels and annotations are not used.
	Node  NodeWatcher
	Clock clock.WithTicker
}

// Update is a new configuration, or the error that prevented one. After an error, the previous configuration stays in force.
type Update struct {
	Answer Answer
	Err    error
}

const (
	// quiet is how long files must not change before they are used, because editors write in several steps.
	quiet = 100 * time.Millisecond
	// lookEvery is how often files are read. They are small, and the kernel's notifications miss changes on some file systems.
	lookEvery = 100 * time.Millisecond
	// nodeGrace is how long to wait for the Node before the files alone are used. With the wrong sharing, a pod could get a whole GPU.
	nodeGrace = 10 * time.Second
	// maxFile is the largest size of a ConfigMap, in bytes.
	maxFile = 1 << 20
	// maxNamed is the most files in a directory of configurations.
	maxNamed = 1024
)

// Run calls update at first and after each change, until ctx ends. A value in again makes it read immediately, and call update even if nothing has
// changed.
func (s Source) Run(ctx context.Context, again <-chan os.Signal, update func(Update)) {
	if s.Clock == nil {
		s.Clock = clock.RealClock{}
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	node, waiting := s.watchNode(ctx)
	var looks <-chan time.Time // It is nil without files.
	if s.File != "" || s.Dir != "" {
		ticker := s.Clock.NewTicker(lookEvery)
		defer ticker.Stop()
		looks = ticker.C()
	}
	l := look{source: s, update: update}
	var meta nodeapi.Metadata
	for {
		if waiting == nil {
			l.look(ctx, meta)
		}
		select {
		case <-ctx.Done():
			return
		case meta = <-node:
			waiting = nil
		case <-waiting:
			waiting = nil
			logr.FromContextOrDiscard(ctx).Info("The Node is not known yet; going on without its label and annotations")
		case <-looks:
		case <-again:
			l.force = true
		}
	}
}

// watchNode returns a channel of the Node's metadata, and one that receives when the wait for the first metadata is over. Both are nil if there is no Node
// to watch.
func (s Source) watchNode(ctx context.Context) (<-chan nodeapi.Metadata, <-chan time.Time) {
	if s.Node == nil {
		return nil, nil
	}
	node := make(chan nodeapi.Metadata)
	go s.Node.Watch(ctx, func(m nodeapi.Metadata) {
		select {
		case node <- m:
		case <-ctx.Done():
		}
	})
	return node, s.Clock.After(nodeGrace)
}

// look holds the state of the last read.
type look struct {
	source Source
	update func(Update)
	last   *Inputs
	// answered reports whether there was a configuration. force makes the next read call update even if nothing has changed.
	answered, force bool
}

func (l *look) look(ctx context.Context, meta nodeapi.Metadata) {
	same := func(in Inputs) bool { return l.last != nil && !l.force && sameInputs(*l.last, in) }
	in := l.source.read(meta)
	if same(in) {
		return
	}
	if l.last != nil { // The first read does not have to wait until files are quiet.
		in = l.source.settled(ctx, in, meta)
	}
	if ctx.Err() != nil || same(in) {
		return
	}
	a, err := Choose(in)
	if err != nil && !l.answered && a.Source != "" {
		a.say("%s; going on with what is promised", err)
		err = nil
	}
	l.answered = l.answered || err == nil
	l.last, l.force = &in, false
	l.update(Update{Answer: a, Err: err})
}

// settled reads until two consecutive reads have the same result.
func (s Source) settled(ctx context.Context, in Inputs, meta nodeapi.Metadata) Inputs {
	for s.File != "" || s.Dir != "" {
		timer := s.Clock.NewTimer(quiet)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
		next := s.read(meta)
		if ctx.Err() != nil || sameInputs(in, next) {
			return next
		}
		in = next
	}
	return in
}

func (s Source) read(meta nodeapi.Metadata) Inputs {
	in := Inputs{
		Path: s.File, Dir: s.Dir, Default: s.Default, Strict: s.Strict,
		Label: meta.Labels[nodecontract.ConfigLabel], Resource: meta.Annotations[nodecontract.ResourceAnnotation], Replicas: meta.Annotations[nodecontract.ReplicasPerGPUAnnotation],
		MPS: meta.Annotations[nodecontract.MPSAnnotation], MIG: meta.Annotations[nodecontract.MIGAnnotation], MIGConfig: meta.Labels[nodecontract.MIGConfigLabel],
		Slots: meta.Annotations[nodecontract.SlotsAnnotation], Backend: meta.Annotations[nodecontract.BackendAnnotation],
	}
	if s.File != "" {
		in.File = readDocument(s.File)
	}
	if s.Dir == "" {
		return in
	}
	entries, err := os.ReadDir(s.Dir)
	if err == nil && len(entries) > maxNamed {
		err = fmt.Errorf("there are %d files, and there can be %d", len(entries), maxNamed)
	}
	if err != nil {
		in.DirErr = err
		return in
	}
	in.Named = map[string]Document{}
	for _, e := range entries {
		// The directory of a mounted ConfigMap also has "..data" and other directories.
		if path := filepath.Join(s.Dir, e.Name()); !strings.HasPrefix(e.Name(), "..") && isFile(path) {
			in.Named[e.Name()] = readDocument(path)
		}
	}
	return in
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func readDocument(path string) Document {
	data, err := limited.ReadFile(path, maxFile)
	return Document{Data: string(data), Err: err}
}

// sameInputs compares inputs by content. Errors are compared by text.
func sameInputs(a, b Inputs) bool {
	documents := func(a, b Document) bool { return a.Data == b.Data && errorText(a.Err) == errorText(b.Err) }
	return a.Label == b.Label && a.Resource == b.Resource && a.Replicas == b.Replicas && a.MPS == b.MPS && a.MIG == b.MIG && a.MIGConfig == b.MIGConfig && a.Slots == b.Slots && a.Backend == b.Backend &&
		documents(a.File, b.File) &&
		errorText(a.DirErr) == errorText(b.DirErr) && maps.EqualFunc(a.Named, b.Named, documents)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
