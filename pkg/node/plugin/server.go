package plugin

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/backoff"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// server serves one resource.
type server struct {
	pluginapi.UnimplementedDevicePluginServer

	m        *Manager
	resource string
	// ids are the devices that are offered. m.mu guards them.
	ids []string
	// started receives when the kubelet has recreated its socket, lost when its stream has ended, and renew when a newer agent has ended.
	started, lost, renew chan struct{}

	mu      sync.Mutex
	list    []*pluginapi.Device
	changed chan struct{} // closed when list is replaced
	streams int
}

func newServer(m *Manager, resource string) *server {
	return &server{m: m, resource: resource, started: make(chan struct{}, 1), lost: make(chan struct{}, 1), renew: make(chan struct{}, 1), changed: make(chan struct{})}
}

// set replaces the list, and reports whether it has changed.
func (s *server) set(list []*pluginapi.Device) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(a, b *pluginapi.Device) bool { return proto.Equal(a, b) }
	if s.list != nil && slices.EqualFunc(s.list, list, same) {
		return false
	}
	s.list = list
	close(s.changed)
	s.changed = make(chan struct{})
	return true
}

func (s *server) current() ([]*pluginapi.Device, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list, s.changed
}

func (s *server) stream(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams += n
	if s.streams == 0 {
		notify(s.lost)
	}
}

func (s *server) streaming() bool { return s.openStreams() > 0 }

func (s *server) openStreams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

func drain(c chan struct{}) {
	select {
	case <-c:
	default:
	}
}

// GetDevicePluginOptions announces that preferred allocations are available.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// ListAndWatch sends the list of devices at first and after each change. The kubelet uses the last list of any plugin of the resource. So an agent
// sends none while a newer one is there, and sends its list again when another agent comes or goes.
func (s *server) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	s.stream(1)
	defer s.stream(-1)
	ctx := stream.Context()
	looks := s.m.config.Clock.NewTicker(lookForAgents)
	defer looks.Stop()
	var sent <-chan struct{} // identifies the list
	before := ""
	for {
		list, changed := s.current()
		var others otherAgents
		if sent != nil { // The kubelet waits for the first list.
			others = s.otherAgents(ctx)
		}
		if others.ended && !others.superseded {
			notify(s.renew)
		}
		if !others.superseded && (sent != changed || others.paths != before) {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
			sent = changed
		}
		before = others.paths
		select {
		case <-changed:
		case <-looks.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// GetPreferredAllocation chooses among the devices that the kubelet has free.
func (s *server) GetPreferredAllocation(ctx context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	response := &pluginapi.PreferredAllocationResponse{}
	_, slot := nodecontract.ParseSlotResource(s.resource)
	packed, score := slot || s.m.packed(), s.m.score() // Large slots need GPUs without small ones.
	for _, r := range request.GetContainerRequests() {
		response.ContainerResponses = append(response.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{
			DeviceIDs: alloc.Preferred(alloc.Request{
				Available: r.GetAvailableDeviceIDs(), MustInclude: r.GetMustIncludeDeviceIDs(), Size: int(r.GetAllocationSize()), Packed: packed,
				Loads: s.m.loads.of(ctx, r.GetAvailableDeviceIDs()), Score: score,
			}),
		})
	}
	return response, nil
}

// Allocate returns the responses for containers with the given devices.
func (s *server) Allocate(ctx context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, r := range request.GetContainerRequests() {
		start := s.m.config.Clock.Now()
		answer, err := s.m.allocate(ctx, s.resource, r.GetDevicesIds())
		if h := s.m.config.Hooks.Allocated; h != nil {
			h(s.resource, r.GetDevicesIds(), s.m.config.Clock.Since(start), err)
		}
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("invalid allocation request for %q: invalid request: %s", s.resource, err))
		}
		response.ContainerResponses = append(response.ContainerResponses, answer)
	}
	return response, nil
}

// PreStartContainer does nothing.
func (s *server) PreStartContainer(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}

const (
	// firstBackoff is short, because the kubelet creates its socket shortly before it answers, and pods may already wait for devices.
	firstBackoff, lastBackoff = 50 * time.Millisecond, 5 * time.Second
	// streamGrace is how long to wait for the kubelet's stream after the registration. The kubelet forgets a plugin when its stream ends, and does not open
	// it again.
	streamGrace = 10 * time.Second
	// steady is how long a registration must last so that the next one follows without a long backoff.
	steady = 30 * time.Second
	// startedGrace is how long to wait for the stream of a kubelet that has started. Its start may be noticed after the registration.
	startedGrace = 200 * time.Millisecond
	// reopenGrace is how long to wait for the stream of a second server.
	reopenGrace = 2 * time.Second
	// standBack is how often to check a resource that another plugin serves.
	standBack = 10 * time.Second
	// lookForAgents is how often to look for other agents on the node, which are there during an upgrade.
	lookForAgents = 5 * time.Second
	replyTimeout  = 5 * time.Second
)

// run serves and registers until ctx ends. It registers again if the kubelet is lost.
func (s *server) run(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx).WithValues("resource", s.resource)
	retry := backoff.Backoff{First: firstBackoff, Last: lastBackoff}
	since := s.m.config.Clock.Now()
	registered, aside := false, ""
	for ctx.Err() == nil {
		if why := s.otherPlugin(ctx, !registered); why != "" {
			if why != aside {
				log.Info("Standing back", "reason", why)
				s.stoodBack(why)
			}
			aside = why
			s.pause(ctx, standBack)
			continue
		}
		if aside != "" {
			log.Info("The resource is free")
			s.stoodBack("")
			aside, since = "", s.m.config.Clock.Now()
		}
		if registered && s.otherAgents(ctx).superseded {
			s.pause(ctx, lookForAgents)
			continue
		}
		lasted, err := s.serve(logr.NewContext(ctx, log), since, &registered)
		if ctx.Err() != nil {
			return
		}
		if err == nil { // The kubelet has restarted.
			since = s.m.config.Clock.Now()
			retry.Reset()
			continue
		}
		if lasted >= steady {
			retry.Reset()
		}
		in := retry.Next()
		log.Info("Not registered with the kubelet; trying again", "error", err.Error(), "in", in.String())
		restarted := s.pause(ctx, in)
		if restarted {
			retry.Reset()
		}
		if restarted || lasted > 0 {
			since = s.m.config.Clock.Now()
		}
	}
}

// serve listens and registers, and returns when the kubelet has ended its stream or has restarted. It returns no error if the kubelet has restarted.
func (s *server) serve(ctx context.Context, since time.Time, registered *bool) (lasted time.Duration, err error) {
	drain(s.started)
	drain(s.lost)
	drain(s.renew)
	stop, err := s.open(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { stop() }()
	at := s.m.config.Clock.Now()
	*registered = true
	logr.FromContextOrDiscard(ctx).Info("Registered with the kubelet", "took", at.Sub(since).String())
	if h := s.m.config.Hooks.Registered; h != nil {
		h(s.resource, at.Sub(since))
	}
	restarted := false
	grace := streamGrace
	timer := s.m.config.Clock.NewTimer(grace)
	defer timer.Stop()
	for {
		why := ""
		select {
		case <-ctx.Done():
			return s.m.config.Clock.Since(at), ctx.Err()
		case <-s.started:
			// The stream of a kubelet ends with it. If there is one, it is that of the new kubelet.
			if !s.streaming() {
				restarted, grace = true, startedGrace
				timer.Reset(grace)
			}
			continue
		case <-s.renew:
			next, err := s.reopen(ctx, stop)
			if err != nil {
				return s.m.config.Clock.Since(at), err
			}
			stop = next
			continue
		case <-s.lost:
			why = "the kubelet has closed its stream"
		case <-timer.C():
			why = fmt.Sprintf("the kubelet has opened no stream in %s", grace)
		}
		switch {
		case s.streaming():
			restarted = false
		case restarted:
			return s.m.config.Clock.Since(at), nil
		default:
			return s.m.config.Clock.Since(at), errors.New(why)
		}
	}
}

// open listens on a new socket and registers it. stop ends the server.
func (s *server) open(ctx context.Context) (stop func(), err error) {
	socket := s.m.newSocket(s.resource)
	listener, err := s.m.config.Network.Listen(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", socket, err)
	}
	g := grpc.NewServer(grpc.WaitForHandlers(true)) // The streams are those of servers that have not been stopped.
	pluginapi.RegisterDevicePluginServer(g, s)
	var group sync.WaitGroup
	group.Go(func() { _ = g.Serve(listener) }) // It ends with Stop.
	stop = func() {
		g.Stop()
		group.Wait()
	}
	if err := s.register(ctx, path.Base(socket)); err != nil {
		stop()
		return nil, err
	}
	s.removeStale(ctx)
	return stop, nil
}

// reopen registers another socket and ends the former server once the kubelet has a stream of the new one. Kubelets before 1.37 have forgotten the former server
// when a newer agent has ended, and keep its stream open.
func (s *server) reopen(ctx context.Context, former func()) (stop func(), err error) {
	before := s.openStreams()
	stop, err = s.open(ctx)
	if err != nil {
		return nil, err
	}
	logr.FromContextOrDiscard(ctx).Info("Registered again, because a newer agent has ended")
	for deadline := s.m.config.Clock.Now().Add(reopenGrace); s.openStreams() <= before && s.m.config.Clock.Now().Before(deadline) && ctx.Err() == nil; {
		s.m.config.Clock.Sleep(reopenGrace / 100)
	}
	former()
	return stop, nil
}

func (s *server) register(ctx context.Context, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	conn, err := dial(s.m.config.Network, s.m.config.KubeletSocket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: s.resource, Options: options(),
	})
	if err != nil {
		return fmt.Errorf("registering at %s: %w", s.m.config.KubeletSocket, err)
	}
	return nil
}

// otherPlugin returns who else serves the resource, or "" if no one does, or another agent. The Node is read only before the first registration, because after it
// the Node shows the devices of this plugin.
func (s *server) otherPlugin(ctx context.Context, first bool) string {
	if socket := s.m.nvidiaSocket(s.resource); s.m.config.Network.Exists(socket) {
		if answers(ctx, s.m.config.Network, socket) {
			return answersAt(socket)
		}
		return "" // It was left by a plugin that has ended, whose devices the Node still shows.
	}
	if !first || s.m.config.Allocatable == nil || s.m.isAgents(s.resource) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, inUseTimeout)
	defer cancel()
	all, err := s.m.config.Allocatable.Allocatable(ctx)
	if err != nil {
		logr.FromContextOrDiscard(ctx).Info("Not known whether the Node has the resource already; going on", "resource", s.resource, "error", err.Error())
		return ""
	}
	if n := all[s.resource]; n > 0 {
		return nodeHas(n, s.resource)
	}
	return ""
}

func (s *server) stoodBack(why string) {
	if h := s.m.config.Hooks.StoodBack; h != nil {
		h(s.resource, why)
	}
}

// pause waits for d or until the kubelet restarts, and reports whether it has restarted.
func (s *server) pause(ctx context.Context, d time.Duration) bool {
	timer := s.m.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	case <-s.started:
		return true
	}
	return false
}

// score returns a function that rates the connection of two GPUs, by UUID, or nil if the scores are unknown.
func (m *Manager) score() func(a, b string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	scores := m.scores
	if scores == nil {
		return nil
	}
	return func(a, b string) int { return scores[[2]string{a, b}] }
}

func (m *Manager) packed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.settings.AllocationPolicy == sharing.PolicyPacked
}

// otherAgents are those that serve a resource beside this one, during an upgrade.
type otherAgents struct {
	// superseded reports whether one of them is newer, or NVIDIA's plugin serves the resource.
	superseded bool
	// ended reports whether a newer one has ended since the last call.
	ended bool
	// paths are their sockets, to notice a change.
	paths string
}

// otherAgents returns the other agents that serve the resource. It removes the sockets of those that have ended.
func (s *server) otherAgents(ctx context.Context) otherAgents {
	var found otherAgents
	for _, other := range s.m.agentSockets(s.resource) {
		if other.start == s.m.start {
			continue
		}
		newer := other.start > s.m.start
		if answers(ctx, s.m.config.Network, other.path) {
			found.superseded = found.superseded || newer
			found.paths += other.path + "\n"
			continue
		}
		s.m.removeIfStale(ctx, other.path)
		found.ended = found.ended || newer && !s.m.config.Network.Exists(other.path) // It may only hang.
	}
	if socket := s.m.nvidiaSocket(s.resource); s.m.config.Network.Exists(socket) && answers(ctx, s.m.config.Network, socket) {
		found.superseded = true // The kubelet must not get two lists.
	}
	return found
}

// removeStale removes the sockets for the resource that nobody serves. It keeps one that somebody holds open, even if they do not answer. An agent that has not yet
// begun to listen on its new socket may lose it, and tries again on another one.
func (s *server) removeStale(ctx context.Context) {
	for _, other := range s.m.agentSockets(s.resource) {
		s.m.removeIfStale(ctx, other.path)
	}
}
