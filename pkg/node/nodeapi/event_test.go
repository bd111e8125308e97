package nodeapi_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"karve.sh/karve/pkg/node/nodeapi"
)

func TestRecord(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	at := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	if err := c.Record(t.Context(), nodeapi.Event{Warning: true, Reason: "GPULost", Message: strings.Repeat("x", 3000), At: at}); err != nil {
		t.Fatal(err)
	}
	path, body, _ := strings.Cut(s.posts[0], " ")
	var event struct {
		Type, Reason, Message, FirstTimestamp string
		InvolvedObject                        struct{ Kind, Name string }
	}
	if err := json.Unmarshal([]byte(body), &event); err != nil {
		t.Fatal(err)
	}
	if path != "/api/v1/namespaces/default/events" || event.Type != "Warning" || event.Reason != "GPULost" || len(event.Message) != 1024 ||
		event.FirstTimestamp != "2026-03-04T12:00:00Z" || event.InvolvedObject.Kind != "Node" || event.InvolvedObject.Name != "n" {
		t.Errorf("%s %+v", path, event)
	}
	s.token = "another"
	if err := c.Record(t.Context(), nodeapi.Event{}); err == nil || !strings.Contains(err.Error(), "who are you") {
		t.Errorf("got %v", err)
	}
}
