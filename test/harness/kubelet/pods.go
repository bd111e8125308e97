package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Pod returns a pod of the node's namespace that can run only on the node. It runs the image and requests count of a resource, or nothing if count is 0.
func (n *Node) Pod(name, resourceName string, count int64) *corev1.Pod {
	limits := corev1.ResourceList{}
	if count > 0 {
		limits[corev1.ResourceName(resourceName)] = *resource.NewQuantity(count, resource.DecimalSI)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: n.Namespace(), Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: n.Name()},
			RestartPolicy:                 corev1.RestartPolicyNever,
			EnableServiceLinks:            new(false),
			AutomountServiceAccountToken:  new(false),
			TerminationGracePeriodSeconds: new(int64(5)),
			Containers: []corev1.Container{{
				Name: "main", Image: Image, ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Limits: limits},
			}},
		},
	}
}

// Output returns what a container of a pod has written since its last start.
func (n *Node) Output(pod *corev1.Pod, container string) ([]byte, error) {
	folder := fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID)
	logs, err := filepath.Glob(filepath.Join(n.path("pods"), folder, container, "*.log"))
	if err != nil || len(logs) == 0 {
		return nil, fmt.Errorf("reading the output of %s/%s: it has none", pod.Namespace, pod.Name)
	}
	content, err := os.ReadFile(logs[len(logs)-1])
	if err != nil {
		return nil, fmt.Errorf("reading the output of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	var out bytes.Buffer
	for line := range strings.Lines(string(content)) {
		// "<time> stdout F <line>"; P marks a part of a line.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(fields) < 4 {
			continue
		}
		out.WriteString(fields[3])
		if fields[2] == "F" {
			out.WriteByte('\n')
		}
	}
	return out.Bytes(), nil
}

// Environment returns the environment of the pod's container.
func (n *Node) Environment(pod *corev1.Pod) (map[string]string, error) {
	out, err := n.Output(pod, "main")
	if err != nil {
		return nil, err
	}
	environment := map[string]string{}
	if err := json.Unmarshal(out, &environment); err != nil {
		return nil, fmt.Errorf("reading the environment of %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return environment, nil
}

// Resources connects to the kubelet's pod resources API. The caller closes the connection.
func (n *Node) Resources() (podresources.PodResourcesListerClient, *grpc.ClientConn, error) {
	connection, err := grpc.NewClient("passthrough:///kubelet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", n.PodResourcesSocket())
		}))
	if err != nil {
		return nil, nil, fmt.Errorf("asking the kubelet for resources: %w", err)
	}
	return podresources.NewPodResourcesListerClient(connection), connection, nil
}

// Allocatable returns the number of allocatable devices of a resource, used or not.
func Allocatable(ctx context.Context, lister podresources.PodResourcesListerClient, resourceName string) (int, error) {
	response, err := lister.GetAllocatableResources(ctx, &podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("asking the kubelet for resources: %w", err)
	}
	count := 0
	for _, d := range response.GetDevices() {
		if d.GetResourceName() == resourceName {
			count += len(d.GetDeviceIds())
		}
	}
	return count, nil
}

// Devices returns the devices of resources that pods have, by namespace/name.
func Devices(ctx context.Context, lister podresources.PodResourcesListerClient, resourceNames ...string) (map[string][]string, error) {
	response, err := lister.List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("asking the kubelet for the devices of pods: %w", err)
	}
	out := map[string][]string{}
	for _, pod := range response.GetPodResources() {
		for _, c := range pod.GetContainers() {
			for _, d := range c.GetDevices() {
				if slices.Contains(resourceNames, d.GetResourceName()) {
					key := pod.GetNamespace() + "/" + pod.GetName()
					out[key] = append(out[key], d.GetDeviceIds()...)
				}
			}
		}
	}
	return out, nil
}
