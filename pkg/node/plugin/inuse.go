package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"karve.sh/karve/pkg/node/alloc"
)

// PodResources asks the kubelet's pod resources API which devices pods hold.
type PodResources struct {
	// Socket is the kubelet's, usually /var/lib/kubelet/pod-resources/kubelet.sock.
	Socket string
	// Network is Unix if nil.
	Network Network
}

// maxPodResources is the kubelet's own bound on what it answers.
const maxPodResources = 16 << 20

// errNoPods: for a moment after its start the kubelet answers that there are no pods, and to believe it would be to withdraw devices from pods
// that hold them. There is always one: the agent's own.
var errNoPods = errors.New("it lists no pods yet, not even this agent's")

// InUse lists the devices by resource.
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

// Registered lists the healthy devices of all plugins that the kubelet knows, by resource.
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
	conn, err := client(p.Network, p.Socket)
	if err != nil {
		return nil, nil, err
	}
	return podresources.NewPodResourcesListerClient(conn), func() { _ = conn.Close() }, nil
}

// Holders lists the GPUs, by UUID and once each, of which pods hold replicas, by namespace/name of the pod. Devices of other plugins have no UUID and are taken as they are.
func (p PodResources) Holders(ctx context.Context) (map[string][]string, error) {
	pods, err := p.list(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for _, pod := range pods {
		name := pod.GetNamespace() + "/" + pod.GetName()
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				for _, id := range devices.GetDeviceIds() {
					if uuid := alloc.UUID(id); !slices.Contains(out[name], uuid) {
						out[name] = append(out[name], uuid)
					}
				}
			}
		}
	}
	return out, nil
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
