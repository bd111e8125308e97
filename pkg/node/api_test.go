package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"

	"karve.sh/karve/pkg/node/nodeapi"
)

// apiServer is a fake API server for one Node. It implements only what the agent needs.
type apiServer struct {
	mu          sync.Mutex
	version     int
	annotations map[string]string
	labels      map[string]string
	conditions  map[string]map[string]string
	patches     int            // number of label patches
	writes      map[string]int // number of patches of an annotation
	slices      []string
	published   map[string]nodeapi.ResourceSlice // the agent's own slices
	pods        []nodeapi.Pod
	events      []map[string]any
	allocatable string
	taints      []string
	refuse      bool // reject events
	changed     chan struct{}
}

// withNode gives the machine a Node and returns its API server.
func (m *machine) withNode() *apiServer {
	s := &apiServer{annotations: map[string]string{}, labels: map[string]string{}, conditions: map[string]map[string]string{}, writes: map[string]int{}, published: map[string]nodeapi.ResourceSlice{}, allocatable: "0", changed: make(chan struct{})}
	web := httptest.NewServer(s)
	m.t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	m.node = &nodeapi.Client{Server: web.URL, Name: "n", HTTP: web.Client()}
	return s
}

func (s *apiServer) touch() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) annotate(key, value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.annotations[key] = value
	s.touch()
}

func (s *apiServer) label(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.labels[key]
}

// change changes the Node as another client does.
func (s *apiServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.touch()
}

func (s *apiServer) annotation(key string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.annotations[key]
}

// written returns how often the annotation was patched.
func (s *apiServer) written(key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes[key]
}

// condition returns a condition as "status reason: message".
func (s *apiServer) condition(kind string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.conditions[kind]
	return c["status"] + " " + c["reason"] + ": " + c["message"]
}

// untilCondition waits for a condition that begins with a status and reason and contains all words.
func (m *machine) untilCondition(s *apiServer, kind, begin string, words ...string) {
	m.t.Helper()
	m.eventually(kind+" "+begin+" "+strings.Join(words, " "), func() bool {
		c := s.condition(kind)
		for _, w := range words {
			if !strings.Contains(c, w) {
				return false
			}
		}
		return strings.HasPrefix(c, begin)
	})
}

// count returns the number of events with the reason whose message contains words.
func (s *apiServer) count(reason, words string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.events {
		if message, _ := e["message"].(string); e["reason"] == reason && strings.Contains(message, words) {
			n++
		}
	}
	return n
}

func (s *apiServer) object() string {
	var taints []map[string]string
	for _, key := range s.taints {
		taints = append(taints, map[string]string{"key": key})
	}
	data, _ := json.Marshal(map[string]any{
		"spec":     map[string]any{"taints": taints},
		"metadata": map[string]any{"name": "n", "resourceVersion": fmt.Sprint(s.version), "annotations": s.annotations, "labels": s.labels},
		"status":   map[string]any{"allocatable": map[string]string{resource: s.allocatable}, "conditions": slices.Collect(maps.Values(s.conditions))},
	})
	return string(data)
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/"):
		s.serveSlices(w, r)
	case r.URL.Path == "/api/v1/pods":
		_ = json.NewEncoder(w).Encode(map[string]any{"items": s.pods})
	case r.Method == http.MethodPost:
		var e map[string]any
		_ = json.NewDecoder(r.Body).Decode(&e)
		if s.refuse {
			http.Error(w, "no events", http.StatusForbidden)
			return
		}
		s.events = append(s.events, e)
		fmt.Fprint(w, "{}")
	case r.Method == http.MethodPatch:
		s.patch(w, r)
	case r.URL.Query().Get("watch") == "true":
		s.awaitChange(w, r)
		fmt.Fprintf(w, `{"type":"MODIFIED","object":%s}`, s.object())
	default:
		fmt.Fprint(w, s.object())
	}
}

// awaitChange blocks until the Node has changed since the resource version at which the watch starts. The caller holds mu; awaitChange releases it while it
// waits.
func (s *apiServer) awaitChange(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("resourceVersion") != fmt.Sprint(s.version) {
		return
	}
	changed := s.changed
	s.mu.Unlock()
	defer s.mu.Lock()
	w.(http.Flusher).Flush()
	select {
	case <-changed:
	case <-r.Context().Done():
	}
}

// serveSlices ends each watch with an error, so that the agent lists again. The caller holds mu.
func (s *apiServer) serveSlices(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/apis/resource.k8s.io/v1/") {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("watch") == "true" {
		s.awaitChange(w, r)
		fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old"}}`)
		return
	}
	if r.Method != http.MethodGet || strings.Contains(r.URL.Query().Get("fieldSelector"), "spec.driver=gpu.karve.sh") {
		s.serveOwnSlices(w, r)
		return
	}
	var items []map[string]any
	for _, name := range s.slices {
		items = append(items, map[string]any{"metadata": map[string]string{"name": name}})
	}
	data, _ := json.Marshal(map[string]any{"metadata": map[string]string{"resourceVersion": fmt.Sprint(s.version)}, "items": items})
	_, _ = w.Write(data)
}

// serveOwnSlices serves the slices that the agent publishes.
func (s *apiServer) serveOwnSlices(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet:
		items := slices.Collect(maps.Values(s.published))
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": fmt.Sprint(s.version)}, "items": items})
	case http.MethodDelete:
		delete(s.published, path.Base(r.URL.Path))
		s.touch()
		fmt.Fprint(w, "{}")
	default:
		var slice nodeapi.ResourceSlice
		_ = json.NewDecoder(r.Body).Decode(&slice)
		s.touch()
		slice.Metadata.ResourceVersion = fmt.Sprint(s.version)
		s.published[slice.Metadata.Name] = slice
		_ = json.NewEncoder(w).Encode(slice)
	}
}

// free returns the names of the published devices that take pods.
func (s *apiServer) free() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, slice := range s.published {
		for _, d := range slice.Spec.Devices {
			if len(d.Taints) == 0 {
				names = append(names, d.Name)
			}
		}
	}
	return names
}

func (s *apiServer) patch(w http.ResponseWriter, r *http.Request) {
	var p struct {
		Metadata struct {
			ResourceVersion string
			Annotations     map[string]*string
			Labels          map[string]*string
		}
		Status struct{ Conditions []map[string]string }
	}
	_ = json.NewDecoder(r.Body).Decode(&p)
	if v := p.Metadata.ResourceVersion; v != "" && v != fmt.Sprint(s.version) {
		http.Error(w, "the object has been modified", http.StatusConflict)
		return
	}
	for key, value := range p.Metadata.Annotations {
		s.writes[key]++
		if delete(s.annotations, key); value != nil {
			s.annotations[key] = *value
		}
	}
	if len(p.Metadata.Labels) > 0 {
		s.patches++
	}
	for key, value := range p.Metadata.Labels {
		if delete(s.labels, key); value != nil {
			s.labels[key] = *value
		}
	}
	for _, c := range p.Status.Conditions {
		if s.conditions[c["type"]] == nil {
			s.conditions[c["type"]] = map[string]string{}
		}
		maps.Copy(s.conditions[c["type"]], c)
	}
	s.touch()
	fmt.Fprint(w, "{}")
}
