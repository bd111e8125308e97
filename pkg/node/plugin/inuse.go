package plugin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// PodResources reads the kubelet's pod resources API, which lists the devices that pods hold.
type PodResources struct {
	// Socket is the path of the kubelet's socket, usually /var/lib/kubelet/pod-resources/kubelet.sock.
	Socket string
	// Network defaults to Unix.
	Network Network
	// Claimed returns the IDs of the devices that a share of a ResourceClaim holds on a device of a DRA driver. It may be nil.
	Claimed func(driver, namespace, claim, device, shareID string) []string
}

// maxPodResources is the kubelet's own limit for the size of a response, in bytes.
const maxPodResources = 16 << 20

// errNoPods is returned if the kubelet lists no pods, as it does for a moment after it has started. There is always at least the agent's own pod. If the
// empty list were used, the devices of running pods would be withdrawn.
var errNoPods = errors.New("it lists no pods yet, not even this agent's")

// InUse returns the devices that pods hold, by resource.
func (p PodResources) InUse(ctx context.Context) (map[string][]string, error) {
	pods, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, pod := range pods {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				out[devices.GetResourceName()] = append(out[devices.GetResourceName()], devices.GetDeviceIds()...)
			}
		}
	}
	return out, nil
}

// Registered returns the healthy devices of all plugins that the kubelet knows, by resource.
func (p PodResources) Registered(ctx context.Context) (map[string][]string, error) {
	c, done, err := p.client()
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := c.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxPodResources))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", p.Socket, err)
	}
	out := map[string][]string{}
	for _, devices := range response.GetDevices() {
		out[devices.GetResourceName()] = append(out[devices.GetResourceName()], devices.GetDeviceIds()...)
	}
	return out, nil
}

func (p PodResources) client() (podresources.PodResourcesListerClient, func(), error) {
	if p.Network == nil {
		p.Network = Unix{}
	}
	conn, err := dial(p.Network, p.Socket)
	if err != nil {
		return nil, nil, err
	}
	return podresources.NewPodResourcesListerClient(conn), func() { _ = conn.Close() }, nil
}

// Holder is a container that holds devices.
type Holder struct {
	// Pod is the namespace/name of the pod.
	Pod, Container string
	// Devices are the IDs of the devices of all plugins.
	Devices []string
}

// Holders returns the containers that hold devices, in the order in which the kubelet lists them.
func (p PodResources) Holders(ctx context.Context) ([]Holder, error) {
	pods, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	var out []Holder
	for _, pod := range pods {
		seen := map[string]bool{}
		for _, container := range pod.GetContainers() {
			h := Holder{Pod: pod.GetNamespace() + "/" + pod.GetName(), Container: container.GetName()}
			for _, devices := range container.GetDevices() {
				h.Devices = append(h.Devices, devices.GetDeviceIds()...)
			}
			for _, id := range p.claimed(container.GetDynamicResources()) {
				// For each container that has a part of a claim, the kubelet lists the whole claim. Each device of a pod counts once.
				if !seen[id] {
					seen[id] = true
					h.Devices = append(h.Devices, id)
				}
			}
			if len(h.Devices) > 0 {
				out = append(out, h)
			}
		}
	}
	return out, nil
}

// claimed returns the IDs of the devices of ResourceClaims.
func (p PodResources) claimed(claims []*podresources.DynamicResource) []string {
	var ids []string
	if p.Claimed == nil {
		return nil
	}
	for _, c := range claims {
		for _, r := range c.GetClaimResources() {
			ids = append(ids, p.Claimed(r.GetDriverName(), c.GetClaimNamespace(), c.GetClaimName(), r.GetDeviceName(), r.GetShareId())...)
		}
	}
	return ids
}

func (p PodResources) list(ctx context.Context) ([]*podresources.PodResources, error) {
	c, done, err := p.client()
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := c.List(ctx, &podresources.ListPodResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxPodResources))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", p.Socket, err)
	}
	if len(response.GetPodResources()) == 0 {
		return nil, fmt.Errorf("asking %s: %w", p.Socket, errNoPods)
	}
	return response.GetPodResources(), nil
}
