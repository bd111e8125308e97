package scheduler

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// Scenario is a cluster with pending pods, and what can be launched for them.
type Scenario struct {
	// Note describes the scenario.
	Note string `json:"note,omitempty"`

	InstanceTypes  []catalog.InstanceType                `json:"instanceTypes"`
	GPUNodeClasses []v1alpha1.GPUNodeClass               `json:"gpuNodeClasses"`
	NodePools      []karpv1.NodePool                     `json:"nodePools"`
	Refused        map[string][]v1alpha1.RefusedOffering `json:"refused,omitempty"`

	NodeClaims []karpv1.NodeClaim `json:"nodeClaims,omitempty"`
	Nodes      []corev1.Node      `json:"nodes,omitempty"`
	Namespaces []corev1.Namespace `json:"namespaces"`
	DaemonSets []appsv1.DaemonSet `json:"daemonSets,omitempty"`
	// Pods are running and pending pods.
	Pods []corev1.Pod `json:"pods"`

	PersistentVolumeClaims []corev1.PersistentVolumeClaim `json:"persistentVolumeClaims,omitempty"`
	PersistentVolumes      []corev1.PersistentVolume      `json:"persistentVolumes,omitempty"`
	StorageClasses         []storagev1.StorageClass       `json:"storageClasses,omitempty"`
	CSINodes               []storagev1.CSINode            `json:"csiNodes,omitempty"`

	// Arrival picks the machine for a claim that leaves a choice.
	Arrival int `json:"arrival,omitempty"`
}

// Cluster returns the scenario as the controller would read it.
func (s *Scenario) Cluster() *facts.Cluster {
	c := snapshottest.Empty()
	c.UseInstanceTypes(s.InstanceTypes)
	c.GPUNodeClasses, c.NodePools = s.GPUNodeClasses, s.NodePools
	c.NodeClaims, c.Nodes, c.DaemonSets, c.Pods = s.NodeClaims, s.Nodes, s.DaemonSets, s.Pods
	c.Refused, c.Namespaces = s.Refused, s.Namespaces
	c.PersistentVolumeClaims, c.PersistentVolumes, c.StorageClasses, c.CSINodes = s.PersistentVolumeClaims, s.PersistentVolumes, s.StorageClasses, s.CSINodes
	return c
}

// Clone returns a deep copy.
func (s *Scenario) Clone() *Scenario {
	data, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("writing a scenario: %v", err))
	}
	clone := &Scenario{}
	if err := json.Unmarshal(data, clone); err != nil {
		panic(fmt.Sprintf("reading a scenario: %v", err))
	}
	return clone
}

// ReadScenario reads the output of [Scenario.YAML].
func ReadScenario(data []byte) (*Scenario, error) {
	s := &Scenario{}
	if err := yaml.UnmarshalStrict(data, s); err != nil {
		return nil, fmt.Errorf("reading a scenario: %w", err)
	}
	return s, nil
}

// YAML writes the scenario without empty fields.
func (s *Scenario) YAML() ([]byte, error) {
	data, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("writing a scenario: %w", err)
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return nil, fmt.Errorf("writing a scenario: %w", err)
	}
	// Drop zero values that nothing reads.
	drop(tree, "daemonSets", "status")
	drop(tree, "nodes", "status", "nodeInfo")
	drop(tree, "nodes", "status", "daemonEndpoints")
	data, err = yaml.Marshal(pruned(tree))
	if err != nil {
		return nil, fmt.Errorf("writing a scenario: %w", err)
	}
	return data, nil
}

// drop removes the field at the path from all elements of a list.
func drop(tree map[string]any, list string, path ...string) {
	elements, _ := tree[list].([]any)
	for _, element := range elements {
		fields, ok := element.(map[string]any)
		for _, key := range path[:len(path)-1] {
			if ok {
				fields, ok = fields[key].(map[string]any)
			}
		}
		if ok {
			delete(fields, path[len(path)-1])
		}
	}
}

// meaningful are fields that differ when empty and when missing: an empty selector selects everything, a missing one nothing.
var meaningful = map[string]bool{"labelSelector": true, "namespaceSelector": true, "emptyDir": true}

// pruned returns a JSON tree without empty fields.
func pruned(tree any) any {
	switch t := tree.(type) {
	case map[string]any:
		for key, value := range t {
			value = pruned(value)
			t[key] = value
			if isNothing(value) && (value == nil || !meaningful[key]) {
				delete(t, key)
			}
		}
	case []any:
		for i := range t {
			t[i] = pruned(t[i])
		}
	}
	return tree
}

func isNothing(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}
