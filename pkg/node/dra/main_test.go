package dra_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

var clk = clock.RealClock{}

// apiServer is an API server with a Node, ResourceSlices and ResourceClaims, which checks resource versions.
type apiServer struct {
	mu      sync.Mutex
	slices  map[string]nodeapi.ResourceSlice
	claims  map[string]string
	version int
	writes  int
	changed chan struct{}
	// drop removes fields whose feature gates are off. foreign is called before a slice is written.
	drop    func(*nodeapi.ResourceSlice)
	away    bool // it answers no request for a claim
	foreign func(*apiServer)
}

func (s *apiServer) bump() {
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *apiServer) put(r nodeapi.ResourceSlice) nodeapi.ResourceSlice {
	s.bump()
	r.Metadata.ResourceVersion = fmt.Sprint(s.version)
	s.slices[r.Metadata.Name] = r
	return r
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const slicesPath = "/apis/resource.k8s.io/v1/resourceslices"
	refuse := func(code int) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","code":%d,"message":"refused"}`, code)
	}
	name := strings.TrimPrefix(r.URL.Path, slicesPath+"/")
	switch {
	case r.URL.Path == "/api/v1/nodes/n":
		fmt.Fprint(w, `{"metadata":{"name":"n","uid":"node-uid"}}`)
	case strings.Contains(r.URL.Path, "/resourceclaims/"):
		if s.away {
			refuse(http.StatusServiceUnavailable)
			return
		}
		claim, ok := s.claims[filepath.Base(r.URL.Path)]
		if !ok {
			refuse(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, claim)
	case r.URL.Query().Get("watch") == "true":
		if r.URL.Query().Get("fieldSelector") != "spec.driver=gpu.karve.sh,spec.nodeName=n" {
			refuse(http.StatusForbidden)
			return
		}
		changed := s.changed
		if r.URL.Query().Get("resourceVersion") == fmt.Sprint(s.version) {
			s.mu.Unlock()
			w.(http.Flusher).Flush()
			select {
			case <-changed:
			case <-r.Context().Done():
			}
			s.mu.Lock()
		}
		fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"message":"list again"}}`) // The client lists anew.
	case r.Method == http.MethodGet && r.URL.Path == slicesPath:
		items := []nodeapi.ResourceSlice{}
		for _, slice := range s.slices {
			items = append(items, slice)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": fmt.Sprint(s.version)}, "items": items})
	case r.Method == http.MethodDelete:
		if _, ok := s.slices[name]; !ok {
			refuse(http.StatusNotFound)
			return
		}
		delete(s.slices, name)
		s.bump()
		fmt.Fprint(w, "{}")
	default:
		s.write(w, r, refuse)
	}
}

func (s *apiServer) write(w http.ResponseWriter, r *http.Request, refuse func(int)) {
	if s.foreign != nil {
		f := s.foreign
		s.foreign = nil
		f(s)
	}
	var slice nodeapi.ResourceSlice
	if err := json.NewDecoder(r.Body).Decode(&slice); err != nil || slice.APIVersion != "resource.k8s.io/v1" || slice.Kind != "ResourceSlice" {
		refuse(http.StatusBadRequest)
		return
	}
	now, exists := s.slices[slice.Metadata.Name]
	if exists != (r.Method == http.MethodPut) || exists && now.Metadata.ResourceVersion != slice.Metadata.ResourceVersion {
		refuse(http.StatusConflict)
		return
	}
	if s.drop != nil {
		s.drop(&slice)
	}
	for i := range slice.Spec.Devices {
		for j := range slice.Spec.Devices[i].Taints {
			slice.Spec.Devices[i].Taints[j].TimeAdded = "2026-03-01T12:00:00Z"
		}
	}
	s.writes++
	_ = json.NewEncoder(w).Encode(s.put(slice))
}

// world is a driver with its API server and folders.
type world struct {
	t         *testing.T
	api       *apiServer
	driver    *dra.Driver
	config    dra.Config
	stop      func()
	published chan error
}

const t4 = "GPU-11111111-2222-3333-4444-555555555555"

func t4s(n int) []gpu.Device {
	var out []gpu.Device
	for i := range n {
		out = append(out, gpu.Device{
			UUID: strings.Replace(t4, "GPU-1", fmt.Sprintf("GPU-%d", i+1), 1), Index: i, Minor: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, NUMANode: -1, PCIeRoot: "pci0000:00",
		})
	}
	return out
}

func tenEach(t *testing.T) sharing.Config {
	t.Helper()
	c, err := sharing.FromPromise(sharing.Promise{Resource: nodecontract.ResourceGPUShared, Replicas: 10, Backend: nodecontract.BackendDRA})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newWorld returns a driver that runs, and that the kubelet has accepted.
func newWorld(t *testing.T, options ...func(*dra.Config)) *world {
	t.Helper()
	api := &apiServer{slices: map[string]nodeapi.ResourceSlice{}, claims: map[string]string{}, version: 1, changed: make(chan struct{})}
	web := httptest.NewServer(api)
	t.Cleanup(web.Close)
	// The path of a Unix socket is short.
	dir, err := os.MkdirTemp("", "dra") //nolint:usetesting // That of the test is too long.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{t: t, api: api, published: make(chan error, 100)}
	w.config = dra.Config{
		API: &nodeapi.Client{Server: web.URL, Name: "n", HTTP: web.Client()}, Registry: dir, State: filepath.Join(dir, "state"), Specs: filepath.Join(dir, "cdi"),
		CDIMissing: func([]string) error { return nil },
		Published: func(_ int, err error) {
			select {
			case w.published <- err:
			default:
			}
		},
	}
	for _, option := range options {
		option(&w.config)
	}
	t.Cleanup(func() { w.stop() })
	w.start()
	w.register()
	return w
}

// start starts a driver on the folders, as a restarted agent does.
func (w *world) start() {
	w.t.Helper()
	driver, err := dra.New(w.config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.run(driver)
}

func (w *world) run(driver *dra.Driver) {
	w.driver = driver
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- driver.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) dial() *grpc.ClientConn {
	w.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(w.config.Registry, "gpu.karve.sh-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// register does what the kubelet does when it finds the socket.
func (w *world) register() {
	w.t.Helper()
	client := registration.NewRegistrationClient(w.dial())
	var info *registration.PluginInfo
	w.eventually(func() error {
		var err error
		info, err = client.GetInfo(w.t.Context(), &registration.InfoRequest{})
		return err
	})
	if info.GetType() != "DRAPlugin" || info.GetName() != "gpu.karve.sh" || info.GetEndpoint() != "" || !slices.Equal(info.GetSupportedVersions(), []string{"v1.DRAPlugin"}) {
		w.t.Fatalf("it registers as %v", info)
	}
	if _, err := client.NotifyRegistrationStatus(w.t.Context(), &registration.RegistrationStatus{PluginRegistered: true}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) eventually(check func() error) {
	w.t.Helper()
	deadline := clk.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if clk.Now().After(deadline) {
			w.t.Fatal(err)
		}
		clk.Sleep(10 * time.Millisecond)
	}
}

// slice returns the only slice once it satisfies a condition.
func (w *world) slice(what string, ok func(nodeapi.ResourceSlice) bool) nodeapi.ResourceSlice {
	w.t.Helper()
	var found nodeapi.ResourceSlice
	w.eventually(func() error {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		for _, s := range w.api.slices {
			found = s
		}
		if len(w.api.slices) != 1 || !ok(found) {
			return fmt.Errorf("not %s: %+v", what, w.api.slices)
		}
		return nil
	})
	return found
}

// allocate stores a claim as the scheduler leaves it. Each device is "request=device" or "request=device*replicas".
func (w *world) allocate(name string, devices ...string) *drapb.Claim {
	w.t.Helper()
	var results []map[string]any
	for i, text := range devices {
		request, device, _ := strings.Cut(text, "=")
		device, replicas, _ := strings.Cut(device, "*")
		if replicas == "" {
			replicas = "1"
		}
		results = append(results, map[string]any{
			"request": request, "driver": "gpu.karve.sh", "pool": "n", "device": device, "shareID": fmt.Sprintf("%s-share-%d", name, i),
			"consumedCapacity": map[string]string{"replicas": replicas, "memory": "0"},
		})
	}
	claim, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": name, "uid": name + "-uid"},
		"status":   map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": results}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	w.api.claims[name] = string(claim)
	return &drapb.Claim{Namespace: "team", Name: name, Uid: name + "-uid"}
}

func (w *world) prepare(c *drapb.Claim) *drapb.NodePrepareResourceResponse {
	w.t.Helper()
	r, err := drapb.NewDRAPluginClient(w.dial()).NodePrepareResources(w.t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.GetClaims()[c.GetUid()]
}

func (w *world) unprepare(c *drapb.Claim) {
	w.t.Helper()
	r, err := drapb.NewDRAPluginClient(w.dial()).NodeUnprepareResources(w.t.Context(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{c}})
	if err != nil {
		w.t.Fatal(err)
	}
	if answer, ok := r.GetClaims()[c.GetUid()]; !ok || answer.GetError() != "" {
		w.t.Fatalf("unprepare says %v", r)
	}
}
