package nodeapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"karve.sh/karve/pkg/node/nodeapi"
)

const driver = "gpu.nvidia.com"

// slicesServer is a fake API server with ResourceSlices of one API version, or of none if it is "".
type slicesServer struct {
	mu        sync.Mutex
	group     string
	forbidden bool
	version   int
	names     []string
	requests  int
	events    chan string
}

func (s *slicesServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	group, forbidden, version, names := s.group, s.forbidden, s.version, slices.Clone(s.names)
	s.mu.Unlock()
	switch {
	case forbidden:
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"kind":"Status","message":"not allowed"}`)
	case r.URL.Path != "/apis/resource.k8s.io/"+group+"/resourceslices":
		http.NotFound(w, r)
	case r.URL.Query().Get("fieldSelector") != "spec.driver=gpu.nvidia.com,spec.nodeName=n":
		w.WriteHeader(http.StatusBadRequest)
	case r.URL.Query().Get("watch") == "true":
		w.(http.Flusher).Flush()
		select {
		case event := <-s.events:
			fmt.Fprintln(w, event)
		case <-r.Context().Done():
		}
	default:
		var items []string
		for _, name := range names {
			items = append(items, fmt.Sprintf(`{"metadata":{"name":%q}}`, name))
		}
		fmt.Fprintf(w, `{"metadata":{"resourceVersion":"%d"},"items":[%s]}`, version, strings.Join(items, ","))
	}
}

func (s *slicesServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// watched starts a watch and returns channels with what it delivers and what it logs.
func (s *slicesServer) watched(t *testing.T) (updates chan []string, log chan string) {
	t.Helper()
	s.events = make(chan string)
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	updates, log = make(chan []string, 100), make(chan string, 100)
	c := &nodeapi.Client{Server: web.URL, Name: "n", HTTP: web.Client()}
	ctx := logr.NewContext(t.Context(), funcr.New(func(_, line string) { log <- line }, funcr.Options{}))
	go c.WatchSlices(ctx, driver, func(names []string) { updates <- names })
	return updates, log
}

func next(t *testing.T, updates chan []string) []string {
	t.Helper()
	select {
	case names := <-updates:
		return names
	case <-clk.After(10 * time.Second):
		t.Fatal("no update arrives")
		return nil
	}
}

func TestWatchSlicesSupportsEachAPIVersion(t *testing.T) {
	t.Parallel()
	for _, group := range []string{"v1", "v1beta2", "v1beta1"} {
		t.Run(group, func(t *testing.T) {
			t.Parallel()
			s := &slicesServer{group: group, version: 7, names: []string{"b", "a"}}
			updates, _ := s.watched(t)
			if got := next(t, updates); !slices.Equal(got, []string{"a", "b"}) {
				t.Errorf("the update is %q", got)
			}
			s.events <- `{"type":"DELETED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}`
			if got := next(t, updates); !slices.Equal(got, []string{"b"}) {
				t.Errorf("the update is %q", got)
			}
			s.events <- `{"type":"MODIFIED","object":{"metadata":{"name":"b","resourceVersion":"9"}}}`
			s.events <- `{"type":"DELETED","object":{"metadata":{"name":"b","resourceVersion":"10"}}}`
			if got := next(t, updates); len(got) != 0 {
				t.Errorf("the update is %q", got)
			}
			s.mu.Lock()
			s.names = []string{"c"}
			s.mu.Unlock()
			s.events <- `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}`
			if got := next(t, updates); !slices.Equal(got, []string{"c"}) {
				t.Errorf("the update is %q", got)
			}
		})
	}
}

func TestWatchSlicesPollsSparinglyWithoutAPI(t *testing.T) {
	t.Parallel()
	old := &slicesServer{}
	updates, log := old.watched(t)
	if got := next(t, updates); len(got) != 0 {
		t.Errorf("the update is %q", got)
	}
	closed := &slicesServer{group: "v1", forbidden: true}
	_, refusals := closed.watched(t)
	clk.Sleep(3 * time.Second)
	if n := old.count(); n != 3 || len(log) > 0 {
		t.Errorf("asked %d times, and said %d things", n, len(log))
	}
	if n := closed.count(); n != 1 || len(refusals) != 1 || !strings.Contains(<-refusals, "not allowed") {
		t.Errorf("asked %d times, and said %d more things", n, len(refusals))
	}
}
