package plugin

import (
	"context"
	"net"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/mig"
)

// InUse lists the devices that the kubelet knows, by resource.
type InUse interface {
	// InUse returns the devices that pods hold, and Registered those of all plugins.
	InUse(ctx context.Context) (map[string][]string, error)
	Registered(ctx context.Context) (map[string][]string, error)
}

// UsageReader reads the usage of a GPU.
type UsageReader interface {
	Usage(uuid string) (gpu.Usage, error)
}

// Allocatable reads how much of each resource the Node has according to the API server, for resources that are counted in devices.
type Allocatable interface {
	Allocatable(ctx context.Context) (map[string]int64, error)
}

// Network connects to the kubelet, with Unix sockets, or in memory for tests.
type Network interface {
	Listen(ctx context.Context, path string) (net.Listener, error)
	Dial(ctx context.Context, path string) (net.Conn, error)
	// Exists reports whether there is a socket, even if no one serves it.
	Exists(path string) bool
	// List returns the names of the sockets in a directory.
	List(dir string) []string
	// Remove removes a socket. If that fails, the socket stays.
	Remove(path string)
	// Created returns a channel that receives whenever the socket is created, until ctx ends.
	Created(ctx context.Context, path string) <-chan struct{}
}

// Hooks are called for events of the plugin. Each of them may be nil, and must return quickly.
type Hooks struct {
	// Registered is called when the kubelet has accepted a resource. took is the time since the agent started to register it.
	Registered func(resource string, took time.Duration)
	// Allocated is called when a container was given its devices, or with the error.
	Allocated func(resource string, devices []string, took time.Duration, err error)
	// Applied is called when a configuration was applied, or with the error. After an error, the previous configuration stays in force.
	Applied func(took time.Duration, err error)
	// StoodBack is called when someone else serves the resource, or its GPUs under another name. why is "" when that has ended.
	StoodBack func(resource, why string)
	// Others is called when someone else begins to serve the GPUs of the machine, with who that is, and with "" when that has ended.
	Others func(why string)
	// Listed is called with the numbers of devices that are sent to the kubelet.
	Listed func(resource string, healthy, unhealthy int)
}

// Config configures a Manager. Only KubeletSocket is required.
type Config struct {
	// KubeletSocket is the socket for registrations. The sockets of plugins are in the same directory.
	KubeletSocket string
	Network       Network
	InUse         InUse
	Usage         UsageReader
	Allocatable   Allocatable
	// CDIMissing returns an error if the container runtime does not know all of the CDI devices.
	CDIMissing func(devices []string) error
	// MPSDir is the directory on the node with the pipes of MPS daemons.
	MPSDir string
	// MPSWritablePipes lets containers write to that directory.
	MPSWritablePipes bool
	// GPUShareMiB gives containers with slots gpushare's variables in MiB and not in GiB.
	GPUShareMiB bool
	// Stated returns the GPU needs that the pod being admitted states, for a container with a number of devices of a resource. It may be nil. It is only
	// called for GPUs that are shared with MPS.
	Stated func(ctx context.Context, resource string, devices int) Stated
	// Capabilities has the device files of MIG instances.
	Capabilities mig.Capabilities
	// Exists reports whether a device file exists.
	Exists func(path string) bool
	// Links returns the connections of the GPUs, by which a container's GPUs are chosen. It may be nil.
	Links func() ([]gpu.Link, error)
	Hooks Hooks
	Clock clock.WithTicker
}

// Stated is the GPU needs that a pod states. A value of 0 is unknown.
type Stated struct {
	// MemoryMiB is device memory in MiB. ThreadPercent is the share of the GPU's threads.
	MemoryMiB, ThreadPercent int64
}
