package ui_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
	"karve.sh/karve/pkg/ui"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata, for the diff to be reviewed")

// small returns a cluster with a full node, a node that starts, and pods that wait.
func small() *facts.Cluster {
	c := withMachines(2)
	c.NodeClaims[1].Status.Conditions = nil
	c.Nodes = c.Nodes[:1]
	asks := Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")
	c.Pods = append(Pods("serves", 7, asks, Running("node-0")), Pods("waits", 12, asks)...)
	c.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 3}}
	return c
}

// source is a cluster that changes while it is looked at.
type source struct {
	is    atomic.Pointer[facts.Cluster]
	fails atomic.Pointer[error]
	reads atomic.Int32
	// works says whether a controller works.
	works atomic.Pointer[leader.Leader]
	// silent makes reads wait until their context ends.
	silent atomic.Bool
	// costs are nil without a Prometheus.
	costs ui.Costs
}

func (s *source) read(ctx context.Context) (*facts.Cluster, error) {
	s.reads.Add(1)
	if s.silent.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := s.fails.Load(); err != nil {
		return nil, *err
	}
	return s.is.Load(), nil
}

func (s *source) controller(context.Context) leader.Leader {
	if works := s.works.Load(); works != nil {
		return *works
	}
	return leader.Leader{State: leader.Working, Namespace: "karve-system"}
}

func (s *source) note() string { return "the prices are of a test" }

const token = "a-token"

func serve(t *testing.T, s *source) http.Handler {
	t.Helper()
	server := ui.New(ui.Config{
		Controller: s.controller, Costs: s.costs,
		Cluster: "test", Read: s.read, Note: s.note, Clock: clock.RealClock{}, Admit: ui.RequireToken(token),
		Explain: func(c *facts.Cluster) *explain.Explainer {
			return explain.New(c, explain.NewSettings(published.DefaultSettings()))
		},
	})
	handler, err := server.Handler()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return handler
}

func of(c *facts.Cluster) *source {
	s := &source{}
	s.is.Store(c)
	return s
}

func get(handler http.Handler, path string, edits ...func(*http.Request)) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:1234"+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+token)
	for _, edit := range edits {
		edit(r)
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]string{
		"overview": "/karve/overview", "sweep": "/karve/sweep?replicas=4", "node": "/karve/explain?node=node-0", "pod": "/karve/explain?pod=default/waits-000",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The estimates come when they are planned, so the overview is asked for until they are there.
			handler := serve(t, of(small()))
			var got map[string]any
			for range 100 {
				r := get(handler, path)
				text := body(t, r)
				if r.StatusCode != http.StatusOK || r.Header.Get("Content-Type") != "application/json" {
					t.Fatalf("status %d, %s", r.StatusCode, text)
				}
				if err := json.Unmarshal([]byte(text), &got); err != nil {
					t.Fatal(err)
				}
				if name != "overview" || strings.Contains(text, "headroomReplicas") {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			text, err := json.MarshalIndent(got, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(golden, append(text, '\n'), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(text)+"\n"); diff != "" {
				t.Errorf("(-want +got; -update accepts it)\n%s", diff)
			}
		})
	}
}

func TestServerRequiresTokenAndLoopbackHost(t *testing.T) {
	t.Parallel()
	handler := serve(t, of(small()))
	header := func(key, value string) func(*http.Request) { return func(r *http.Request) { r.Header.Set(key, value) } }
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	method := func(m string) func(*http.Request) { return func(r *http.Request) { r.Method = m } }
	for _, tc := range []struct {
		name, path string
		edit       func(*http.Request)
		want       int
	}{
		{"the token", "/karve/overview", func(*http.Request) {}, http.StatusOK},
		{"a wrong token", "/karve/overview", header("Authorization", "Bearer a-tokem"), http.StatusForbidden},
		{"a longer token", "/karve/overview", header("Authorization", "Bearer a-token2"), http.StatusForbidden},
		{"no token", "/karve/overview", header("Authorization", ""), http.StatusForbidden},
		{"a token that is no bearer's", "/karve/overview", header("Authorization", token), http.StatusForbidden},
		{"no token for events", "/karve/events", header("Authorization", ""), http.StatusForbidden},
		{"no token for a path that does not exist", "/karve/secret", header("Authorization", ""), http.StatusForbidden},
		{"a token in the query", "/karve/overview?token=" + token, header("Authorization", ""), http.StatusForbidden},
		{"localhost", "/karve/sweep?replicas=5", host("localhost:80"), http.StatusOK},
		{"localhost in capitals without a port", "/", host("LocalHost"), http.StatusOK},
		{"another loopback address", "/", host("127.1.2.3:80"), http.StatusOK},
		{"the loopback address of IPv6", "/", host("[::1]:80"), http.StatusOK},
		{"a foreign name", "/karve/overview", host("example.com:1234"), http.StatusForbidden},
		{"a foreign name for the page's files", "/", host("example.com"), http.StatusForbidden},
		{"a foreign name that begins like a local one", "/", host("localhost.example.com"), http.StatusForbidden},
		{"an address of the network", "/", host("10.0.0.1:1234"), http.StatusForbidden},
		{"no name", "/", host(""), http.StatusForbidden},
		{"a POST", "/karve/overview", method(http.MethodPost), http.StatusMethodNotAllowed},
		{"a DELETE of a file", "/", method(http.MethodDelete), http.StatusMethodNotAllowed},
		{"a preflight", "/karve/overview", method(http.MethodOptions), http.StatusMethodNotAllowed},
		{"the page without a token", "/", header("Authorization", ""), http.StatusOK},
		{"a file that does not exist", "/secret", func(*http.Request) {}, http.StatusNotFound},
		{"a file outside of the page's", "/..%2fserver.go", func(*http.Request) {}, http.StatusNotFound},
		{"too many replicas", "/karve/sweep?replicas=49", func(*http.Request) {}, http.StatusBadRequest},
		{"no number of replicas", "/karve/sweep", func(*http.Request) {}, http.StatusBadRequest},
		{"nothing to explain", "/karve/explain", func(*http.Request) {}, http.StatusBadRequest},
		{"two things to explain", "/karve/explain?node=a&pod=b/c", func(*http.Request) {}, http.StatusBadRequest},
		{"a node that does not exist", "/karve/explain?node=a", func(*http.Request) {}, http.StatusNotFound},
		{"a pod that does not exist", "/karve/explain?pod=a", func(*http.Request) {}, http.StatusNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := get(handler, tc.path, tc.edit)
			text := body(t, r)
			if r.StatusCode != tc.want {
				t.Errorf("status %d, want %d: %s", r.StatusCode, tc.want, text)
			}
			if r.StatusCode >= 400 && (text == "" || strings.Contains(text, "waits")) {
				t.Errorf("it says %q", text)
			}
			policy := r.Header.Get("Content-Security-Policy")
			if !strings.HasPrefix(policy, "default-src 'self';") || strings.Contains(policy, "unsafe") || r.Header.Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("its headers are %v", r.Header)
			}
			for name := range r.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("other pages may read it: %s", name)
				}
			}
		})
	}
}

// TestAnswersHaveNoHiddenCharactersOfObjects looks at a pod whose scheduler has a name that turns the direction of the text after it around.
func TestAnswersHaveNoHiddenCharactersOfObjects(t *testing.T) {
	t.Parallel()
	c := small()
	pod := &c.Pods[len(c.Pods)-1]
	pod.Spec.SchedulerName, pod.Status.Conditions = "my\u202e\u009b\u200b\x1b\r<b>sche\\u001bduler", nil
	c.Nodes[0].Labels[corev1.LabelTopologyZone] = "a\u202ezone"
	handler := serve(t, of(c))
	explained, overview := body(t, get(handler, "/karve/explain?pod="+pod.Namespace+"/"+pod.Name)), body(t, get(handler, "/karve/overview"))
	if !strings.Contains(explained, `my\u003cb\u003esche\\u001bduler`) {
		t.Errorf("the scheduler is not in %s", explained)
	}
	for _, text := range []string{explained, overview} {
		if i := strings.IndexAny(text, "\u202e\u009b\u200b"); i >= 0 {
			t.Errorf("%q", text[max(0, i-30):])
		}
	}
}

// TestThePageLearnsThatTheControllerStopped follows a cluster in which nothing else changes.
func TestThePageLearnsThatTheControllerStopped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := of(small())
		s.is.Load().Generation = 1
		handler := serve(t, s)
		state := func() string {
			var u struct {
				Overview struct{ Controller leader.Leader }
			}
			if err := json.Unmarshal([]byte(body(t, get(handler, "/karve/overview"))), &u); err != nil {
				t.Fatal(err)
			}
			return string(u.Overview.Controller.State)
		}
		if got := state(); got != "Working" {
			t.Errorf("first it is %s", got)
		}
		s.works.Store(&leader.Leader{State: leader.Stopped, Message: "no controller has worked"})
		time.Sleep(6 * time.Second)
		if got := state(); got != "Stopped" {
			t.Errorf("then it is %s", got)
		}
	})
}

// TestPageLoadsOnlyItsOwnFiles checks what a browser would refuse or load from elsewhere.
func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	handler := serve(t, of(small()))
	files, err := filepath.Glob("web/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	types := map[string]string{".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	for _, file := range files {
		name := filepath.Base(file)
		path := "/" + name
		if name == "index.html" {
			path = "/"
		}
		r := get(handler, path)
		text := body(t, r)
		if got := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || got != types[filepath.Ext(name)] {
			t.Errorf("%s: status %d, type %q", name, r.StatusCode, got)
		}
		for _, refused := range []string{"https://", "http://", "style=", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "javascript:", "createContextualFragment", "onclick=", "eval(", "<style"} {
			if text := strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""); strings.Contains(text, refused) {
				t.Errorf("%s has %q", name, refused)
			}
		}
	}
}

// TestEventsSendWhatDiffers follows a cluster from one tab while others follow it too.
func TestEventsSendWhatDiffers(t *testing.T) {
	t.Parallel()
	s := of(small())
	server := httptest.NewServer(serve(t, s))
	t.Cleanup(server.Close)
	follow := func() func() map[string]any {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/karve/events", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answered, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answered.Body.Close() })
		lines := bufio.NewScanner(answered.Body)
		lines.Buffer(nil, 1<<20)
		return func() map[string]any {
			for lines.Scan() {
				if text, ok := strings.CutPrefix(lines.Text(), "data:"); ok {
					var u map[string]any
					if err := json.Unmarshal([]byte(text), &u); err != nil {
						t.Fatal(err)
					}
					return u
				}
			}
			t.Fatalf("the stream ended: %v", lines.Err())
			return nil
		}
	}
	first, second := follow(), follow()
	for _, next := range []func() map[string]any{first, second} {
		if u := next(); u["whole"] != true || len(list(u["pods"])) != 7 || len(list(u["waiting"])) != 12 || len(list(u["nodes"])) != 2 {
			t.Fatalf("the first update is %v", u)
		}
	}
	// One pod is deleted, and one gets a node.
	c := small()
	c.Pods = c.Pods[1:]
	c.Pods[len(c.Pods)-1].Spec.NodeName = "node-0"
	s.is.Store(c)
	for _, next := range []func() map[string]any{first, second} {
		u := next()
		for u["gone"] == nil { // These are the estimates of the first cluster.
			u = next()
		}
		gone, _ := u["gone"].(map[string]any)
		if u["whole"] != nil || len(list(u["pods"])) != 1 || len(list(u["nodes"])) > 1 || len(list(gone["pods"])) != 1 || len(list(gone["waiting"])) != 1 {
			t.Errorf("the update is %v", u)
		}
	}
	problem := errors.New("the cluster sleeps")
	s.fails.Store(&problem)
	for u := first(); ; u = first() {
		if head, _ := u["overview"].(map[string]any); head["problem"] == problem.Error() {
			break
		}
	}
}

// TestUnreadClusterHasNoNumbers looks at a cluster that could never be read: zeros would look like those of an empty cluster.
func TestUnreadClusterHasNoNumbers(t *testing.T) {
	t.Parallel()
	s := &source{}
	s.fails.Store(new(errors.New("nodes is forbidden")))
	handler := serve(t, s)
	want := `{"whole":true,"overview":{"cluster":"test","problem":"nodes is forbidden","controller":{"state":"Unknown"},"pools":[]}}` + "\n"
	if got := body(t, get(handler, "/karve/overview")); got != want {
		t.Errorf("the overview is %s, want %s", got, want)
	}
	for _, path := range []string{"/karve/sweep?replicas=4", "/karve/explain?node=a"} {
		if r := get(handler, path); r.StatusCode != http.StatusServiceUnavailable || body(t, r) != "nodes is forbidden\n" {
			t.Errorf("%s: status %d", path, r.StatusCode)
		}
	}
}

// TestReturningPageSeesNoOldCluster opens the page again after a while without one.
func TestReturningPageSeesNoOldCluster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := of(Shared())
		handler := serve(t, s)
		if got := body(t, get(handler, "/karve/overview")); !strings.Contains(got, `"nodes":0`) {
			t.Errorf("the first overview is %.300s", got)
		}
		s.is.Store(small())
		time.Sleep(time.Hour)
		if got := body(t, get(handler, "/karve/overview")); !strings.Contains(got, "waits-000") {
			t.Errorf("an hour later, the overview is %.300s", got)
		}
	})
}

// TestBoundIsUnknownWhenPodsAreNew adds pods to a cluster that had none.
func TestBoundIsUnknownWhenPodsAreNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := of(Shared())
		handler := serve(t, s)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go get(handler, "/karve/events", func(r *http.Request) { *r = *r.WithContext(ctx) })
		time.Sleep(time.Minute)
		if got := body(t, get(handler, "/karve/overview")); !strings.Contains(got, `"boundMicroUSDPerHour":0`) {
			t.Errorf("without pods, the overview is %.300s", got)
		}
		s.is.Store(Shared())
		time.Sleep(1500 * time.Millisecond)
		s.is.Store(small()) // The next estimate is seconds away.
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if got := body(t, get(handler, "/karve/overview")); strings.Contains(got, `"boundMicroUSDPerHour":0`) && !strings.Contains(got, `"replicas":0`) {
				t.Fatalf("with pods, the overview is %.600s", got)
			}
		}
	})
}

// TestSilentClusterIsReported reads a cluster that does not answer.
func TestSilentClusterIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := of(small())
		s.silent.Store(true)
		handler := serve(t, s)
		if got := body(t, get(handler, "/karve/overview")); !strings.Contains(got, `"problem":"the cluster has not answered for 30s"`) {
			t.Errorf("the overview is %.300s", got)
		}
		s.silent.Store(false)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go get(handler, "/karve/events", func(r *http.Request) { *r = *r.WithContext(ctx) })
		time.Sleep(time.Minute)
		if got := body(t, get(handler, "/karve/overview")); strings.Contains(got, "problem") || !strings.Contains(got, `"totals"`) {
			t.Errorf("when it answers, the overview is %.300s", got)
		}
	})
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// TestClusterIsReadOnlyWhileWatched checks that a cluster is read once for all tabs, and not while there are none.
func TestClusterIsReadOnlyWhileWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := of(Shared())
		handler := serve(t, s)
		time.Sleep(time.Minute)
		if n := s.reads.Load(); n != 1 {
			t.Errorf("%d reads before anyone looks, want 1", n)
		}
		ctx, leave := context.WithCancel(t.Context())
		for range 3 {
			go get(handler, "/karve/events", func(r *http.Request) { *r = *r.WithContext(ctx) })
		}
		time.Sleep(time.Minute)
		if n := s.reads.Load(); n < 60 || n > 66 {
			t.Errorf("%d reads in a minute of three tabs, want about one a second", n)
		}
		leave()
		synctest.Wait()
		n := s.reads.Load()
		time.Sleep(time.Minute)
		if more := s.reads.Load() - n; more > 1 {
			t.Errorf("%d reads after all have gone", more)
		}
	})
}

// withMachines returns a cluster with n machines of ten replicas, called node-0 and so on.
func withMachines(n int) *facts.Cluster {
	c := Shared()
	machine := TypeNamed("g4dn.xlarge")
	for i := range n {
		claim := Claim(fmt.Sprintf("gpu-shared-%d", i), &c.NodePools[0], machine, Initialized(Now))
		node := Node(&claim, machine, 10)
		node.Name = fmt.Sprintf("node-%d", i)
		claim.Status.NodeName = node.Name
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
	}
	return c
}
