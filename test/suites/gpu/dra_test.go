//go:build cgo && gpu

package gpu_test

import (
	"encoding/json"
	"fmt"
	"net/http"
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

	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
)

// publications serves what a DRA driver reads and writes: no ResourceSlices at first, and ResourceClaims that are all on one device.
type publications struct {
	mu     sync.Mutex
	slice  *nodeapi.ResourceSlice
	device string
}

func (p *publications) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := filepath.Base(r.URL.Path)
	switch {
	case strings.Contains(r.URL.Path, "/resourceclaims/"):
		_ = json.NewEncoder(rw).Encode(map[string]any{
			"metadata": map[string]string{"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"},
			"status": map[string]any{"allocation": map[string]any{"devices": map[string]any{"results": []map[string]string{
				{"request": "gpu", "driver": nodecontract.DRADriver, "pool": "machine", "device": p.device, "shareID": name},
			}}}},
		})
	case r.Method == http.MethodGet:
		items := []nodeapi.ResourceSlice{}
		if p.slice != nil && strings.Contains(r.URL.Query().Get("fieldSelector"), nodecontract.DRADriver) {
			items = append(items, *p.slice)
		}
		_ = json.NewEncoder(rw).Encode(map[string]any{"metadata": map[string]string{"resourceVersion": "1"}, "items": items})
	case r.Method == http.MethodPost || r.Method == http.MethodPut:
		s := &nodeapi.ResourceSlice{}
		if err := json.NewDecoder(r.Body).Decode(s); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		s.Metadata.ResourceVersion, p.slice = "1", s
		p.device = s.Spec.Devices[0].Name
		_ = json.NewEncoder(rw).Encode(s)
	default:
		http.Error(rw, "not here", http.StatusForbidden)
	}
}

func (p *publications) devices() []nodeapi.SliceDevice {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slice == nil {
		return nil
	}
	return p.slice.Spec.Devices
}

func TestDRA(t *testing.T) {
	w := newWorld(t)
	w.whole(3)
	const replicas = 10
	api := &publications{}
	registry := filepath.Join(w.dir, "registry")
	w.must(os.Mkdir(registry, 0o700))
	w.environment = append(w.serve(map[string]string{
		nodecontract.BackendAnnotation: nodecontract.BackendDRA, nodecontract.ResourceAnnotation: nodecontract.ResourceGPUShared,
		nodecontract.ReplicasPerGPUAnnotation: fmt.Sprint(replicas),
	}, api), "STATE_DIR="+filepath.Join(w.dir, "state"), "PLUGIN_REGISTRY_DIR="+registry, "CDI_SPEC_DIRS="+filepath.Join(w.dir, "cdi"))
	w.run()

	w.eventually("the socket of the driver", func() bool {
		_, err := os.Stat(filepath.Join(registry, nodecontract.DRADriver+"-reg.sock"))
		return err == nil
	})
	conn, err := grpc.NewClient("unix:"+filepath.Join(registry, nodecontract.DRADriver+"-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	w.must(err)
	defer func() { _ = conn.Close() }()
	_, err = registration.NewRegistrationClient(conn).NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
	w.must(err)
	w.eventually("the GPUs are published", func() bool { return len(api.devices()) == len(w.devices) })
	for i, published := range api.devices() {
		d := w.devices[i]
		text, err := json.Marshal(published)
		w.must(err)
		t.Logf("published: %s", text)
		for name, want := range map[string]string{nodecontract.DRAUUID: d.UUID, nodecontract.DRAProductName: d.Product} {
			if got := published.Attributes[name].String; got == nil || *got != want {
				t.Errorf("GPU %d has the attribute %s %v, want %s", d.Index, name, got, want)
			}
		}
		for _, name := range []string{nodecontract.DRADriverVersion, nodecontract.DRACUDADriverVersion, nodecontract.DRAComputeCapability} {
			if got := published.Attributes[name].Version; got == nil || strings.Count(*got, ".") != 2 {
				t.Errorf("GPU %d has the attribute %s %v", d.Index, name, got)
			}
		}
		if got := published.Capacity[nodecontract.DRAReplicas].Value; got != fmt.Sprint(replicas) {
			t.Errorf("GPU %d has %s replicas", d.Index, got)
		}
	}

	// A claim for each replica, as for pods that start one after the other.
	kubelet := drapb.NewDRAPluginClient(conn)
	var times []time.Duration
	for n := range replicas {
		uid := fmt.Sprintf("claim-%d", n)
		began := time.Now()
		answer, err := kubelet.NodePrepareResources(t.Context(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: "default", Name: uid, Uid: uid}}})
		w.must(err)
		times = append(times, time.Since(began))
		if got := answer.GetClaims()[uid]; got.GetError() != "" || len(got.GetDevices()) != 1 || len(got.GetDevices()[0].GetCdiDeviceIds()) == 0 {
			t.Fatalf("the claim is prepared as %+v", got)
		}
	}
	slices.Sort(times)
	t.Logf("preparing a claim took %v, at most %v", times[len(times)/2], times[len(times)-1])
	specs, err := filepath.Glob(filepath.Join(w.dir, "cdi", "*"))
	w.must(err)
	if len(specs) != replicas {
		t.Fatalf("the CDI specs are %q", specs)
	}
	text, err := os.ReadFile(specs[0])
	w.must(err)
	if want := "NVIDIA_VISIBLE_DEVICES=" + w.devices[0].UUID; !strings.Contains(string(text), want) {
		t.Errorf("the CDI spec has no %s: %s", want, text)
	}
	if p := w.use(w.devices[0].UUID, "64"); p.problem != "" {
		t.Error(p.problem)
	} else if err := p.end(); err != nil {
		t.Error(err)
	}
}
