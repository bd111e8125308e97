package gpus

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
)

// Promise writes to the Node what its agent is to do, as the controller does: the backend, and replicas per GPU of nvidia.com/gpu.shared. For the backend DRA it creates
// the DeviceClass of the chart.
func (m *Machine) Promise(ctx context.Context, backend string, replicas int) error {
	return m.PromiseOf(ctx, backend, nodecontract.ResourceGPUShared, replicas, nodecontract.MIG{})
}

// PromiseOf promises replicas of a resource, on GPUs that are divided as given.
func (m *Machine) PromiseOf(ctx context.Context, backend, resource string, replicas int, mig nodecontract.MIG) error {
	annotations := map[string]string{nodecontract.ResourceAnnotation: resource, nodecontract.ReplicasPerGPUAnnotation: strconv.Itoa(replicas)}
	if !mig.IsZero() {
		annotations[nodecontract.MIGAnnotation] = mig.String()
	}
	if backend == nodecontract.BackendDRA {
		annotations[nodecontract.BackendAnnotation] = backend
		class := claims.DeviceClass(resource)
		_, err := m.Node.Client().ResourceV1().DeviceClasses().Create(ctx, &class, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating the DeviceClass: %w", err)
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return fmt.Errorf("promising replicas: %w", err)
	}
	if _, err := m.Node.Client().CoreV1().Nodes().Patch(ctx, m.Node.Name(), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("promising replicas: %w", err)
	}
	return nil
}
