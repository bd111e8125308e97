package ui

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log" //nolint:depguard // http.Server takes no other logger.
	"net"
	"net/http"
	"path"
	"reflect"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/snapshot/facts"
)

//go:embed web
var embedded embed.FS

// Prefix is the prefix of all paths that reveal anything about the cluster. The other paths are the page's files.
const Prefix = "/karve/"

// Config defines what a Server shows, and to whom.
type Config struct {
	// Cluster is the name of the cluster on the page. It may be "".
	Cluster string
	// Read reads the cluster. Calls do not overlap.
	Read func(context.Context) (*facts.Cluster, error)
	// Explain returns an Explainer for the pods and nodes of a cluster. It is called when somebody asks.
	Explain func(*facts.Cluster) *explain.Explainer
	// Note tells users where prices come from. It returns "" if there is nothing to say.
	Note func() string
	// Controller tells whether a controller works. It returns within a few seconds.
	Controller func(context.Context) leader.Leader
	// Admit wraps the handler of all paths below Prefix, and refuses requests from users who may not see the cluster.
	Admit func(http.Handler) (http.Handler, error)
	Clock clock.WithTicker
	// Links are the addresses of other pages about a pod.
	Links []Link
	// Costs returns what machines have cost. It is nil if no Prometheus is known.
	Costs Costs
}

// Server serves the page. It reads the cluster once for all viewers, and only while there are any.
type Server struct {
	config Config

	// works says whether a controller works. It was found out at the time asked.
	works leader.Leader
	asked time.Time

	// showing is locked while the frame is replaced. It guards estimates.
	showing   sync.Mutex
	estimates *estimates

	// mu guards the fields up to watching.
	mu sync.Mutex
	// now is the frame of the last read, at the time looked. It is nil before the first read, and when a page is opened after a while without one.
	now    *frame
	looked time.Time
	// changed is closed when now is replaced.
	changed chan struct{}
	// watching is the number of pages that follow the cluster.
	watching int
	// wake makes Run read immediately.
	wake chan struct{}
	// planning is held while a price is planned for the slider, which takes all processors.
	planning chan struct{}

	costs costs
}

// New returns a server, which shows nothing until Run runs.
func New(c Config) *Server {
	return &Server{
		config: c, estimates: &estimates{}, changed: make(chan struct{}), wake: make(chan struct{}, 1), planning: make(chan struct{}, 1),
		costs: costs{asking: make(chan struct{}, 1), known: map[string]knownCosts{}},
	}
}

// Serve runs the server on a listener until the context ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	handler, err := s.Handler()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: patience, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: log.New(io.Discard, "", 0), // Its messages are about connections that browsers gave up.
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	defer wg.Wait()
	defer stop()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Handler returns the handler of all requests.
func (s *Server) Handler() (http.Handler, error) {
	answers := http.NewServeMux()
	answers.HandleFunc(Prefix+"overview", s.overview)
	answers.HandleFunc(Prefix+"events", s.events)
	answers.HandleFunc(Prefix+"explain", s.explain)
	answers.HandleFunc(Prefix+"sweep", s.sweep)
	answers.HandleFunc(Prefix+"cost", s.cost)
	answers.HandleFunc(Prefix+"cost.csv", s.costCSV)
	admitted, err := s.config.Admit(answers)
	if err != nil {
		return nil, err
	}
	files, err := fs.Sub(embedded, "web")
	if err != nil {
		return nil, err
	}
	all := http.NewServeMux()
	all.Handle(Prefix, admitted)
	all.Handle("/", page(files))
	return guard(all), nil
}

// policy allows the page to load only its own files, and forbids showing it in another page.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard only lets requests pass that read, and whose Host names this computer: a foreign page cannot reach the server under its own name that resolves
// to the loopback address.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		switch {
		case !loopback(r.Host):
			http.Error(w, "This page is served only under a name of this computer: open it with localhost or 127.0.0.1.", http.StatusForbidden)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "This page only reads.", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// loopback reports whether the Host header of a request names this computer.
func loopback(host string) bool {
	name := host
	if split, _, err := net.SplitHostPort(host); err == nil {
		name = split
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return strings.EqualFold(name, "localhost") || ip != nil && ip.IsLoopback()
}

func page(files fs.FS) http.Handler {
	server := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The MIME types that are configured on this computer must not matter.
		switch path.Ext(r.URL.Path) {
		case ".js":
			w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		case ".css":
			w.Header().Set("Content-Type", "text/css; charset=utf-8")
		case ".svg":
			w.Header().Set("Content-Type", "image/svg+xml")
		}
		server.ServeHTTP(w, r)
	})
}

// every is how often the cluster is read while someone watches. A read from informers costs little if nothing has changed.
const every = time.Second

// Run reads the cluster while someone looks at the page, until the context ends.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.estimating(ctx) })
	defer wg.Wait()
	tick := s.config.Clock.NewTicker(every)
	defer tick.Stop()
	for {
		if s.wanted() {
			s.look(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		case <-s.wake:
		}
	}
}

const rest = 5 * time.Second

// estimating renews the estimates after the cluster has changed, with a rest in between.
func (s *Server) estimating(ctx context.Context) {
	var seen *facts.Cluster
	for {
		now, changed := s.current()
		if now != nil && now.cluster != nil && now.cluster != seen {
			seen = now.cluster
			e := estimate(seen, searching(ctx, s.config.Clock))
			if ctx.Err() != nil {
				return
			}
			s.show(func(before *frame) (*frame, error) {
				s.estimates = e
				if before == nil || before.problem != "" {
					return before, nil
				}
				return newFrame(s.config.Cluster, s.config.Note(), s.config.Links, before.cluster, before.controller, before.explainer, e)
			})
			select {
			case <-ctx.Done():
				return
			case <-s.config.Clock.After(rest):
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (s *Server) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watching > 0 || s.now == nil
}

// longest is the time limit of a read of the cluster.
const longest = 30 * time.Second

func (s *Server) read(ctx context.Context) (*facts.Cluster, error) {
	ctx, stop := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the cluster has not answered for %s", longest))
	defer stop()
	c, err := s.config.Read(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c, err
}

// asks is how often it is found out whether a controller works.
const asks = 5 * time.Second

// controller returns whether a controller works. Only Run calls it.
func (s *Server) controller(ctx context.Context) leader.Leader {
	if now := s.config.Clock.Now(); s.asked.IsZero() || now.Sub(s.asked) >= asks {
		s.works, s.asked = s.config.Controller(ctx), now
	}
	return s.works
}

func (s *Server) look(ctx context.Context) {
	c, err := s.read(ctx)
	var works leader.Leader
	if err == nil {
		works = s.controller(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	s.looked = s.config.Clock.Now()
	s.mu.Unlock()
	s.show(func(before *frame) (*frame, error) {
		switch {
		case err != nil:
			return before.failing(s.config.Cluster, err)
		case before != nil && before.problem == "" && c.Generation != 0 && c.Generation == before.cluster.Generation && reflect.DeepEqual(works, before.controller):
			return before, nil
		}
		return newFrame(s.config.Cluster, s.config.Note(), s.config.Links, c, works, sync.OnceValue(func() *explain.Explainer { return s.config.Explain(c) }), s.estimates)
	})
}

// show replaces the frame. If that fails, it shows the error.
func (s *Server) show(next func(before *frame) (*frame, error)) {
	s.showing.Lock()
	defer s.showing.Unlock()
	before, _ := s.current()
	after, err := next(before)
	if err != nil {
		if after, err = before.failing(s.config.Cluster, err); err != nil {
			return // Only values that cannot be encoded cannot be shown, and a message can be encoded.
		}
	}
	if after == before {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = after
	close(s.changed)
	s.changed = make(chan struct{})
}

// current returns the last frame, and a channel that is closed when there is a newer one.
func (s *Server) current() (*frame, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now, s.changed
}

// seen returns the last frame. It waits for the first read.
func (s *Server) seen(ctx context.Context) (*frame, error) {
	for {
		now, changed := s.current()
		if now != nil {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-changed:
		}
	}
}

// watch makes Run read until the returned function is called.
func (s *Server) watch() (done func()) {
	add := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watching == 0 && s.config.Clock.Since(s.looked) > 3*every {
			s.now = nil
		}
		s.watching += n
	}
	add(1)
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return func() { add(-1) }
}
