package plugintest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Network is how a Kubelet listens and connects.
type Network interface {
	Listen(ctx context.Context, path string) (net.Listener, error)
	Dial(ctx context.Context, path string) (net.Conn, error)
}

// Kubelet is a fake kubelet.
type Kubelet struct {
	podresources.UnimplementedPodResourcesListerServer

	Network Network
	// Dir is the directory of the sockets.
	Dir string
	// Before137 makes it behave as kubelets before 1.37 do: it knows one plugin of a resource, the last that registered, and forgets it when the stream of any
	// plugin of the resource ends. As of 1.37, it knows all of them by path. It refuses a registration on a path that it knows, and then does not see the end of
	// the plugin that has the path.
	Before137 bool

	mu sync.Mutex
	// refuse, if set, is the error for registrations, and failPods the error of the pod resources API.
	refuse, failPods error
	// blank makes the pod resources API list no pods.
	blank bool

	server    *grpc.Server
	stop      context.CancelFunc
	group     sync.WaitGroup
	endpoints map[string]*endpoint // by resource: the one that it calls
	known     map[string]*endpoint // by resource and path: those whose end it sees
	paths     map[string]map[string]*endpoint
	lists     map[string]List
	requests  []*pluginapi.RegisterRequest
	history   map[string][]List
	pods      map[string]Grant
}

// List is a list of devices that a plugin has sent, with its time.
type List struct {
	At      time.Time
	Devices []*pluginapi.Device
}

// Healthy returns the number of healthy devices.
func (l List) Healthy() int {
	n := 0
	for _, d := range l.Devices {
		if d.GetHealth() == pluginapi.Healthy {
			n++
		}
	}
	return n
}

// IDs returns the IDs of all devices, healthy or not.
func (l List) IDs() []string {
	var out []string
	for _, d := range l.Devices {
		out = append(out, d.GetID())
	}
	return out
}

// Grant is the kubelet's allocation to a pod.
type Grant struct {
	Resource string
	IDs      []string
	Response *pluginapi.ContainerAllocateResponse
}

type endpoint struct {
	path   string
	client pluginapi.DevicePluginClient
	stop   context.CancelFunc
	// stopped is set when the kubelet no longer calls it.
	stopped bool
}

// Socket returns the path of the socket for registrations.
func (k *Kubelet) Socket() string { return path.Join(k.Dir, "kubelet.sock") }

// PodResourcesSocket returns the path of the socket of the pod resources API.
func (k *Kubelet) PodResourcesSocket() string {
	return path.Join(k.Dir, "pod-resources.d", "kubelet.sock")
}

// Start starts or restarts the kubelet after emptying its directory. Pods stay.
func (k *Kubelet) Start(ctx context.Context) error {
	if m, ok := k.Network.(*Memory); ok {
		m.Wipe(k.Dir)
	} else {
		entries, err := os.ReadDir(k.Dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !e.IsDir() {
				if err := os.Remove(path.Join(k.Dir, e.Name())); err != nil {
					return err
				}
			}
		}
		if err := os.MkdirAll(path.Dir(k.PodResourcesSocket()), 0o750); err != nil {
			return err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var own context.Context
	own, k.stop = context.WithCancel(ctx)
	k.server = grpc.NewServer()
	k.endpoints, k.known, k.paths, k.lists = map[string]*endpoint{}, map[string]*endpoint{}, map[string]map[string]*endpoint{}, map[string]List{}
	if k.history == nil {
		k.history, k.pods = map[string][]List{}, map[string]Grant{}
	}
	pluginapi.RegisterRegistrationServer(k.server, &registration{k: k, ctx: own})
	podresources.RegisterPodResourcesListerServer(k.server, k)
	for _, socket := range []string{k.PodResourcesSocket(), k.Socket()} {
		if _, ok := k.Network.(*Memory); !ok {
			_ = os.Remove(socket)
		}
		listener, err := k.Network.Listen(ctx, socket)
		if err != nil {
			return err
		}
		server := k.server
		k.group.Go(func() { _ = server.Serve(listener) })
	}
	return nil
}

// Stop stops the kubelet. Pods stay.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server, stop := k.server, k.stop
	k.mu.Unlock()
	if server == nil {
		return
	}
	stop()
	server.Stop()
	k.group.Wait()
}

// Refuse makes registrations fail with the error. If it is nil, they succeed again.
func (k *Kubelet) Refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = err
}

// ForgetPods makes the pod resources API list no pods and no error, as a kubelet does for a moment after it has started.
func (k *Kubelet) ForgetPods(forget bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.blank = forget
}

// FailPodResources makes the pod resources API fail with the error. If it is nil, the API works again.
func (k *Kubelet) FailPodResources(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.failPods = err
}

// registration passes the context of one run of the kubelet to the goroutines that registrations start.
type registration struct {
	pluginapi.UnimplementedRegistrationServer
	k   *Kubelet
	ctx context.Context //nolint:containedctx // The streams outlive the call that starts them.
}

func (r *registration) Register(_ context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) { //nolint:contextcheck // The stream outlives the call that starts it.
	k := r.k
	k.mu.Lock()
	defer k.mu.Unlock()
	k.requests = append(k.requests, request)
	if k.refuse != nil {
		return nil, k.refuse
	}
	conn, err := grpc.NewClient("passthrough:///"+request.GetEndpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return k.Network.Dial(ctx, path.Join(k.Dir, request.GetEndpoint()))
		}))
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(r.ctx)
	e := &endpoint{path: request.GetEndpoint(), client: pluginapi.NewDevicePluginClient(conn), stop: func() { stop(); _ = conn.Close() }}
	if err := k.connect(request.GetResourceName(), e); err != nil {
		e.stop()
		return nil, err
	}
	k.group.Go(func() { k.watch(ctx, request.GetResourceName(), e) })
	return &pluginapi.Empty{}, nil
}

// connect adds a plugin. k.mu is held.
func (k *Kubelet) connect(resource string, e *endpoint) error {
	key := resource
	if !k.Before137 {
		key += " " + e.path
		if k.paths[resource][e.path] != nil {
			delete(k.known, key)
			return fmt.Errorf("device plugin already connected: %s", e.path)
		}
	}
	if k.paths[resource] == nil || k.Before137 {
		k.paths[resource] = map[string]*endpoint{}
	}
	k.known[key], k.endpoints[resource], k.paths[resource][e.path] = e, e, e
	return nil
}

// disconnect is called when the stream of a plugin has ended. k.mu is held.
func (k *Kubelet) disconnect(resource string, e *endpoint) {
	key := resource
	if !k.Before137 {
		key += " " + e.path
	}
	e = k.known[key] // Before 1.37, this may be another plugin.
	if e == nil {
		return
	}
	delete(k.known, key)
	e.stop()
	delete(k.paths[resource], e.path)
	if len(k.paths[resource]) == 0 {
		e.stopped = true
		k.lists[resource] = List{}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(k.paths[resource])) {
		k.endpoints[resource] = k.paths[resource][name]
	}
}

func (k *Kubelet) watch(ctx context.Context, resource string, e *endpoint) {
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.disconnect(resource, e)
		e.stop()
	}()
	if _, err := e.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
		return
	}
	stream, err := e.client.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return
		}
		k.mu.Lock()
		list := List{At: time.Now(), Devices: response.GetDevices()} //nolint:forbidigo // In a bubble the clock is the bubble's.
		k.lists[resource] = list
		k.history[resource] = append(k.history[resource], list)
		k.mu.Unlock()
	}
}

// Drop ends the stream of the plugin of a resource.
func (k *Kubelet) Drop(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.endpoints[resource]; e != nil {
		e.stop()
	}
}

// Requests returns all registrations so far.
func (k *Kubelet) Requests() []*pluginapi.RegisterRequest {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.requests)
}

// History returns all lists that were sent for a resource.
func (k *Kubelet) History(resource string) []List {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.history[resource])
}

// Current returns the last list, which is empty if the plugin's stream has ended.
func (k *Kubelet) Current(resource string) List {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.endpoints[resource]; e != nil && !e.stopped {
		return k.lists[resource]
	}
	return List{}
}

// Allocatable returns how many devices of a resource pods can use, including those in use.
func (k *Kubelet) Allocatable(resource string) int { return k.Current(resource).Healthy() }

// ErrNoRoom is the error for a pod that requests more devices than are free.
var ErrNoRoom = errors.New("not enough devices are free")

// Admit gives n devices of a resource to a pod with one container.
func (k *Kubelet) Admit(ctx context.Context, pod, resource string, n int) (Grant, error) {
	k.mu.Lock()
	e := k.endpoints[resource]
	held := map[string]bool{}
	for _, g := range k.pods {
		if g.Resource == resource {
			for _, id := range g.IDs {
				held[id] = true
			}
		}
	}
	var free []string
	if e != nil && !e.stopped {
		for _, d := range k.lists[resource].Devices {
			if d.GetHealth() == pluginapi.Healthy && !held[d.GetID()] {
				free = append(free, d.GetID())
			}
		}
	}
	k.mu.Unlock()
	if len(free) < n {
		return Grant{}, fmt.Errorf("%d %s: %w", n, resource, ErrNoRoom)
	}
	preferred, err := e.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: free, AllocationSize: int32(n)}},
	})
	if err != nil {
		return Grant{}, err
	}
	return k.Allocate(ctx, pod, resource, preferred.GetContainerResponses()[0].GetDeviceIDs()...)
}

// Allocate gives certain devices to a pod, even if they are not free.
func (k *Kubelet) Allocate(ctx context.Context, pod, resource string, ids ...string) (Grant, error) {
	k.mu.Lock()
	e := k.endpoints[resource]
	k.mu.Unlock()
	if e == nil {
		return Grant{}, fmt.Errorf("no plugin for %s", resource)
	}
	response, err := e.client.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return Grant{}, err
	}
	g := Grant{Resource: resource, IDs: ids, Response: response.GetContainerResponses()[0]}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods[pod] = g
	return g, nil
}

// Delete deletes a pod.
func (k *Kubelet) Delete(pod string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.pods, pod)
}

// List returns which devices pods hold, as the pod resources API does.
func (k *Kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failPods != nil {
		return nil, k.failPods
	}
	// The agent's own pod.
	response := &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{Name: "karve-node", Namespace: "karve-system"}}}
	if k.blank {
		return &podresources.ListPodResourcesResponse{}, nil
	}
	for _, pod := range slices.Sorted(maps.Keys(k.pods)) {
		g := k.pods[pod]
		response.PodResources = append(response.PodResources, &podresources.PodResources{Name: pod, Namespace: "default", Containers: []*podresources.ContainerResources{{
			Name: "main", Devices: []*podresources.ContainerDevices{{ResourceName: g.Resource, DeviceIds: g.IDs}},
		}}})
	}
	return response, nil
}

// GetAllocatableResources returns the healthy devices of all plugins, as the pod resources API does.
func (k *Kubelet) GetAllocatableResources(context.Context, *podresources.AllocatableResourcesRequest) (*podresources.AllocatableResourcesResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failPods != nil {
		return nil, k.failPods
	}
	response := &podresources.AllocatableResourcesResponse{}
	for _, resource := range slices.Sorted(maps.Keys(k.endpoints)) {
		if k.endpoints[resource].stopped {
			continue
		}
		for _, d := range k.lists[resource].Devices {
			if d.GetHealth() == pluginapi.Healthy {
				response.Devices = append(response.Devices, &podresources.ContainerDevices{ResourceName: resource, DeviceIds: []string{d.GetID()}})
			}
		}
	}
	return response, nil
}
