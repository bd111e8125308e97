package ui

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"karve.sh/karve/pkg/quote"
)

// maxReplicas is the largest number of replicas of a GPU that the slider requests.
const maxReplicas = 48

// ping is how often the server sends to the page while nothing changes. patience is how long the page may take to read what it was sent.
const (
	ping     = 15 * time.Second
	patience = 15 * time.Second
)

// overview responds with everything that the page shows, for programs and tests.
func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	done := s.watch()
	defer done()
	now, err := s.seen(r.Context())
	if err != nil {
		return // The client is gone.
	}
	u, _ := now.since(nil)
	answer(w, u)
}

// events sends the cluster as server-sent events: first everything, and then the changes. A page that reads slowly gets fewer and larger updates.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	done := s.watch()
	defer done()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would buffer it.
	tick := s.config.Clock.NewTicker(ping)
	defer tick.Stop()
	var sent *frame
	for {
		now, changed := s.current()
		if now != nil && now != sent {
			if u, differs := now.since(sent); differs && !s.send(w, u) {
				return
			}
			sent = now
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-tick.C():
			if !s.write(w, ":\n\n") {
				return
			}
		}
	}
}

func (s *Server) send(w http.ResponseWriter, u update) bool {
	text, err := json.Marshal(u)
	return err == nil && s.write(w, "data:"+string(text)+"\n\n")
}

// write writes an event and reports whether the client may get more.
func (s *Server) write(w http.ResponseWriter, event string) bool {
	out := http.NewResponseController(w)
	if err := out.SetWriteDeadline(s.config.Clock.Now().Add(patience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return false
	}
	if _, err := w.Write([]byte(event)); err != nil {
		return false
	}
	return out.Flush() == nil
}

// explain responds with why a node stays or goes, or why a pod waits or is where it is.
func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	node, pod := query.Get("node"), query.Get("pod")
	if (node == "") == (pod == "") {
		http.Error(w, "ask for one node or one pod: ?node=NAME or ?pod=NAMESPACE/NAME", http.StatusBadRequest)
		return
	}
	now, err := s.seen(r.Context())
	if err != nil {
		return
	}
	if now.explainer == nil {
		http.Error(w, now.problem, http.StatusServiceUnavailable)
		return
	}
	var answered any
	if node != "" {
		answered, err = now.explainer().Node(node)
	} else {
		namespace, name, _ := strings.Cut(pod, "/")
		answered, err = now.explainer().Pod(namespace, name)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	answer(w, answered)
}

// sweep responds with what all pods would cost if each GPU had a given number of replicas. It stops planning when the client is gone.
func (s *Server) sweep(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.URL.Query().Get("replicas"), 10, 32)
	if err != nil || n < 1 || n > maxReplicas {
		http.Error(w, fmt.Sprintf("ask for 1 to %d replicas: ?replicas=10", maxReplicas), http.StatusBadRequest)
		return
	}
	now, err := s.seen(r.Context())
	if err != nil {
		return
	}
	if now.cluster == nil {
		http.Error(w, now.problem, http.StatusServiceUnavailable)
		return
	}
	select {
	case <-r.Context().Done():
		return
	case s.planning <- struct{}{}:
		defer func() { <-s.planning }()
	}
	found, err := quote.SweepOf(quote.Anew(now.cluster), []int32{int32(n)}, searching(r.Context(), s.config.Clock))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if r.Context().Err() == nil {
		answer(w, found.Rows[0])
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if text, err := encode(v); err == nil { // Plain values can always be encoded.
		_, _ = w.Write(append(text, '\n')) //nolint:gosec // It is JSON and says so. If it fails, the client is gone.
	}
}
