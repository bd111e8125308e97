package node

import (
	"context"
	"sync"

	"karve.sh/karve/pkg/node/nodeapi"
)

// nodeWatch holds the latest version of the Node.
type nodeWatch struct {
	mu   sync.Mutex
	node nodeapi.Node
	next chan struct{}
}

// set sets the latest version, and returns the one before.
func (w *nodeWatch) set(n nodeapi.Node) (before nodeapi.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next != nil {
		close(w.next)
	}
	before, w.node, w.next = w.node, n, nil
	return before
}

// latest returns the latest version, which is empty until the Node has been read. The channel is closed when there is a later one.
func (w *nodeWatch) latest() (nodeapi.Node, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(chan struct{})
	}
	return w.node, w.next
}

// Watch calls f with the metadata of the latest version until ctx ends. It may leave out versions in between.
func (w *nodeWatch) Watch(ctx context.Context, f func(nodeapi.Metadata)) {
	for ctx.Err() == nil {
		n, next := w.latest()
		if n.Metadata.ResourceVersion != "" {
			f(n.Metadata)
		}
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
}
