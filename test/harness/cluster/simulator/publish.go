package simulator

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/test/harness/nvidiadra"
)

// The labels of GPU nodes with what their GPUs are.
const (
	gpuNameLabel   = "karpenter.k8s.aws/instance-gpu-name"
	gpuMemoryLabel = "karpenter.k8s.aws/instance-gpu-memory"
)

// devicesOf returns the GPUs of a node, or the MIG instances that were promised of them, given the replicas of each GPU.
func devicesOf(node *corev1.Node, replicas []int64) []dra.Device {
	memory, _ := strconv.ParseInt(node.Labels[gpuMemoryLabel], 10, 64)            // Without the label, the memory is not known.
	mig, _ := nodecontract.ParseMIG(node.Annotations[nodecontract.MIGAnnotation]) // Karve has written it.
	var devices []dra.Device
	assigned, _ := mig.Assign(len(replicas), func(int) map[string]int64 { return nil }) // Karve promises as many GPUs as there are.
	for i, n := range replicas {
		d := dra.Device{Resource: node.Annotations[nodecontract.ResourceAnnotation], GPU: sharing.GPU{
			Device:   gpu.Device{UUID: fmt.Sprintf("GPU-%s-%d", node.UID, i), Index: i, Product: node.Labels[gpuNameLabel], MemoryMiB: memory, NUMANode: -1, Minor: i},
			Replicas: int(n),
		}}
		switch {
		case mig.Mixed() && i < len(assigned):
			for _, of := range assigned[i] {
				for range of.Count {
					d.Instance = &gpu.Instance{UUID: fmt.Sprintf("MIG-%s-%d", node.UID, len(devices)), Index: len(devices), Profile: of.Profile, MemoryMiB: of.MemoryMiB}
					d.Resource, d.Replicas = profiles.SharedResource(of.Profile, mig.PerInstance()), int(mig.PerInstance())
					devices = append(devices, d)
				}
			}
			continue
		case mig.Count == 0:
			devices = append(devices, d)
			continue
		}
		for j := range min(mig.Count, n) {
			d.Instance, d.Replicas = &gpu.Instance{UUID: fmt.Sprintf("MIG-%s-%d-%d", node.UID, i, j), Index: int(j), Profile: mig.Profile, MemoryMiB: mig.MemoryMiB}, int(max(1, n/mig.Count))
			devices = append(devices, d)
		}
	}
	return devices
}

// publish makes the ResourceSlice of a node have these replicas for each GPU, as the agent does, and removes it without any.
func (s *Simulator) publish(ctx context.Context, node *corev1.Node, replicas []int64) error {
	api := &nodeapi.Client{Server: s.server, Name: node.Name, HTTP: s.http}
	have, err := api.Slices(ctx, nodecontract.DRADriver)
	if err != nil {
		return err
	}
	var want *nodeapi.ResourceSlice
	if len(replicas) > 0 {
		slice, err := dra.SliceOf(nodeapi.Metadata{Name: node.Name, UID: string(node.UID)}, gpu.Driver{}, devicesOf(node, replicas))
		if err != nil {
			return err
		}
		want = &slice
	}
	change := dra.ChangeTo(want, have)
	if change.Write != nil {
		if _, err := api.WriteSlice(ctx, *change.Write); err != nil {
			return err
		}
	}
	for _, name := range change.Remove {
		if err := api.DeleteSlice(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// publishNVIDIA makes NVIDIA's driver publish the GPUs of a node with a number of shares of each, or without shares if it is 1. Without any GPU, there is no slice.
func (s *Simulator) publishNVIDIA(ctx context.Context, node *corev1.Node, shares []int64) error {
	if len(shares) == 0 {
		err := s.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + nvidiadra.Driver + ",spec.nodeName=" + node.Name})
		if err != nil {
			return fmt.Errorf("removing the ResourceSlice of node %s: %w", node.Name, err)
		}
		return nil
	}
	var gpus []gpu.Device
	for _, d := range devicesOf(node, shares) {
		gpus = append(gpus, d.Device)
	}
	of := "disabled"
	if shares[0] > 1 {
		of = strconv.FormatInt(shares[0], 10)
	}
	slice := nvidiadra.Slice(node.Name, of, gpus...)
	slice.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	if _, err := s.client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("publishing the GPUs of node %s: %w", node.Name, err)
	}
	return nil
}
