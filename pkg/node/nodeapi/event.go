package nodeapi

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"karve.sh/karve/pkg/plain"
)

// Event is a Kubernetes event about the Node.
type Event struct {
	// Warning reports whether the type of the event is Warning. Otherwise it is Normal.
	Warning bool
	Reason  string
	Message string
	At      time.Time
}

// Events about objects without a namespace are in this namespace.
const eventNamespace = "default"

const component = "karve-node"

// Record writes an event about the Node.
func (c *Client) Record(ctx context.Context, e Event) error {
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	message := plain.Shorten(e.Message, plain.MaxNote)
	at := e.At.UTC().Format(time.RFC3339)
	event := map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]string{"generateName": c.Name + ".", "namespace": eventNamespace},
		// As in the kubelet, the name of the Node is also its UID, because `kubectl describe node` selects events by both.
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Node", "name": c.Name, "uid": c.Name},
		"type":           kind, "reason": e.Reason, "message": message, "count": 1, "firstTimestamp": at, "lastTimestamp": at,
		"source": map[string]string{"component": component, "host": c.Name}, "reportingComponent": component, "reportingInstance": c.Name,
	}
	if err := c.do(ctx, http.MethodPost, "/api/v1/namespaces/"+eventNamespace+"/events", event, nil); err != nil {
		return fmt.Errorf("writing an event about node %s: %w", c.Name, err)
	}
	return nil
}
