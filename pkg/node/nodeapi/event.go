package nodeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Event is something to tell about the Node.
type Event struct {
	// Warning is the event's type; else it is Normal.
	Warning bool
	Reason  string
	Message string
	At      time.Time
}

// Events of objects without a namespace are in this one.
const eventNamespace = "default"

const component = "karve-node"

// maxMessage is what the API server takes.
const maxMessage = 1024

// Record writes an event about the Node.
func (c *Client) Record(ctx context.Context, e Event) error {
	kind := "Normal"
	if e.Warning {
		kind = "Warning"
	}
	message := e.Message
	if len(message) > maxMessage {
		message = message[:maxMessage-3] + "..."
	}
	at := e.At.UTC().Format(time.RFC3339)
	body, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Event",
		"metadata": map[string]string{"generateName": c.Name + ".", "namespace": eventNamespace},
		// The kubelet gives the Node's name as its UID, too; `kubectl describe node` looks for both.
		"involvedObject": map[string]string{"apiVersion": "v1", "kind": "Node", "name": c.Name, "uid": c.Name},
		"type":           kind, "reason": e.Reason, "message": message, "count": 1, "firstTimestamp": at, "lastTimestamp": at,
		"source": map[string]string{"component": component, "host": c.Name}, "reportingComponent": component, "reportingInstance": c.Name,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = c.call(ctx, http.MethodPost, "/api/v1/namespaces/"+eventNamespace+"/events", metadataOnly, "application/json", body, func(io.Reader) error { return nil })
	if err != nil {
		return fmt.Errorf("writing an event about node %s: %w", c.Name, err)
	}
	return nil
}
