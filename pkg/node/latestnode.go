package node

import (
	"context"
	"sync"

	"karve.sh/karve/pkg/node/nodeapi"
)

// latestNode holds the latest version of the Node.
type latestNode struct {
	mu   sync.Mutex
	node nodeapi.Node
	next chan struct{}
}

// set sets the latest version, and returns the one before.
func (l *latestNode) set(n nodeapi.Node) (before nodeapi.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != nil {
		close(l.next)
	}
	before, l.node, l.next = l.node, n, nil
	return before
}

// get returns the latest version, which is empty until the Node has been read. The channel is closed when there is a later one.
func (l *latestNode) get() (nodeapi.Node, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = make(chan struct{})
	}
	return l.node, l.next
}

// Watch calls f with the metadata of the latest version until ctx ends. It may leave out versions in between.
func (l *latestNode) Watch(ctx context.Context, f func(nodeapi.Metadata)) {
	for ctx.Err() == nil {
		n, next := l.get()
		if n.Metadata.ResourceVersion != "" {
			f(n.Metadata)
		}
		select {
		case <-ctx.Done():
		case <-next:
		}
	}
}
