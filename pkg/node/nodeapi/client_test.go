package nodeapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/nodeapi"
)

// clk is the system's clock, or the clock of the test's bubble.
var clk = clock.RealClock{}

// server is a fake API server for one Node.
type server struct {
	mu      sync.Mutex
	version int
	label   string
	token   string
	watches int
	patches []string
	posts   []string
	changed chan struct{}
	// expire makes the next watch fail because its version is too old.
	expire bool
}

func (s *server) set(label string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.label = label
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) object() string {
	return fmt.Sprintf(`{"metadata":{"name":"n","resourceVersion":"%d","labels":{"l":%q}},"status":{"allocatable":{"cpu":"3920m","nvidia.com/gpu":"10","many":"2k"},"conditions":[{"type":"Ready","status":"True","reason":"R","message":"m","lastHeartbeatTime":"x"}]}}`, s.version, s.label)
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+s.token {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"kind":"Status","message":"who are you"}`)
		return
	}
	switch {
	case r.Method == http.MethodPatch:
		body, _ := io.ReadAll(r.Body)
		s.patches = append(s.patches, r.URL.Path+" "+r.Header.Get("Content-Type")+" "+string(body))
		fmt.Fprint(w, "{}")
	case r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body)
		s.posts = append(s.posts, r.URL.Path+" "+string(body))
		fmt.Fprint(w, "{}")
	case r.URL.Query().Get("watch") == "true":
		if r.URL.Query().Get("fieldSelector") != "metadata.name=n" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		s.watches++
		if s.expire {
			s.expire = false
			fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}`)
			return
		}
		since := r.URL.Query().Get("resourceVersion")
		for range 2 {
			if since != fmt.Sprint(s.version) {
				fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`+"\n", s.object())
				return // A watch may end at any time.
			}
			changed := s.changed
			s.mu.Unlock()
			w.(http.Flusher).Flush()
			select {
			case <-changed:
			case <-r.Context().Done():
			}
			s.mu.Lock()
		}
	default:
		fmt.Fprint(w, s.object())
	}
}

func start(t *testing.T) (*server, *nodeapi.Client) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{version: 1, label: "first", token: "secret", changed: make(chan struct{})}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	return s, &nodeapi.Client{Server: web.URL, Name: "n", TokenFile: token, HTTP: web.Client()}
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	got, err := c.Allocatable(t.Context())
	if want := map[string]int64{"nvidia.com/gpu": 10, "many": 2000}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

func TestGetReturnsStatusErrorOfServer(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	s.token = "another"
	_, err := c.Get(t.Context())
	var status *nodeapi.StatusError
	if !errors.As(err, &status) || status.Code != http.StatusUnauthorized || status.Message != "who are you" {
		t.Errorf("got %v", err)
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	if err := c.Patch(t.Context(), "status", nodeapi.StrategicPatch, json.RawMessage(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	if len(s.patches) != 1 || s.patches[0] != `/api/v1/nodes/n/status application/strategic-merge-patch+json {"a":1}` {
		t.Errorf("got %q", s.patches)
	}
}

func TestWatchSeesEveryChangeWhateverServerDoes(t *testing.T) {
	t.Parallel()
	s, c := start(t)
	seen := make(chan string, 100)
	go c.Watch(t.Context(), func(n nodeapi.Node) {
		if len(n.Status.Conditions) != 1 || n.Status.Conditions[0] != (nodeapi.Condition{Type: "Ready", Status: "True", Reason: "R", Message: "m"}) {
			t.Errorf("the conditions are %v", n.Status.Conditions)
		}
		seen <- n.Metadata.Labels["l"]
	})
	want := func(label string) {
		t.Helper()
		for {
			select {
			case got := <-seen:
				if got == label {
					return
				}
			case <-clk.After(10 * time.Second):
				t.Fatalf("%s is not seen", label)
			}
		}
	}
	want("first")
	s.set("second")
	want("second")
	s.mu.Lock()
	s.expire = true
	s.mu.Unlock()
	s.set("third")
	want("third")
}
