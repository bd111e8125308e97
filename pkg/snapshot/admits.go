package snapshot

import (
	"errors"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// Reasons why a node does not admit a pod, besides those of [View.Admits].
var (
	// ErrVolumeElsewhere reports that a volume of a pod is not available on a node.
	ErrVolumeElsewhere = errors.New("a volume of the pod cannot be had there")
	// ErrReplicaMemory reports that a replica of a node has less device memory than a pod states.
	ErrReplicaMemory = errors.New("a replica has too little device memory")
	// ErrClaim reports that no GPU of a node can satisfy the ResourceClaim of a pod.
	ErrClaim = errors.New("no GPU satisfies the ResourceClaim")
)

// AdmitsOn returns why a node of the snapshot does not admit a pod by its resource, taints, labels, volumes and GPUs. It returns nil if it does, whether
// or not it has room.
func (v *View) AdmitsOn(node int, pod *corev1.Pod) error {
	demand, room := records.DemandOf(pod), &v.rooms[node]
	gpu, _ := facts.GPUResource(pod)
	memory, _ := facts.GPUMemory(pod) // A pod that states an invalid amount is blocked.
	if !room.exposes(gpu, demand.Requests) {
		return OtherResourceError{Offers: room.resources(), Wants: gpu}
	}
	if err := demand.Refusal(room.taints, room.nodeName, room.nodeLabels()); err != nil {
		return err
	}
	if volumes := records.StorageOf(v.cluster).Of(pod); volumes != nil && volumes.Problem == "" {
		if demand.Places = volumes.Places; demand.Refusal(room.taints, room.nodeName, room.nodeLabels()) != nil {
			return ErrVolumeElsewhere
		}
	}
	if limit := room.replicaMemory(); limit > 0 && memory > limit {
		return ErrReplicaMemory
	}
	if room.whyUnfit(claims.Of(pod)) != "" {
		return ErrClaim
	}
	for _, key := range topologyKeys(pod) {
		if _, ok := room.labels[key]; !ok && key != corev1.LabelHostname {
			return NoTopologyError{key}
		}
	}
	return nil
}

// topologyKeys returns the labels that a node needs for the topology spread constraints and pod affinity that a pod requires.
func topologyKeys(pod *corev1.Pod) []string {
	var keys []string
	for _, c := range pod.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			keys = append(keys, c.TopologyKey)
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		for _, term := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			keys = append(keys, term.TopologyKey)
		}
	}
	return keys
}

// NoTopologyError reports that a node lacks a label that a topology spread constraint or a pod affinity of a pod needs.
type NoTopologyError struct{ Key string }

func (e NoTopologyError) Error() string { return "there is no label " + e.Key }

// Admits returns why none of the offerings of a pool admits a pod by its resource, taints, labels and volumes. It returns nil if one does, whether or
// not it is large enough. If a change of the pod could help, the error is an [OtherResourceError] or a [NotAdmittedError].
func (v *View) Admits(pool *Pool, pod *corev1.Pod) error {
	demand := records.DemandOf(pod)
	gpu, _ := facts.GPUResource(pod)
	if volumes := records.StorageOf(v.cluster).Of(pod); volumes != nil && volumes.Problem == "" {
		demand.Places = volumes.Places
	}
	_, err := pool.admittingOfferings(&demand, gpu)
	return err
}

// KarpenterPool returns the name of the first of Karpenter's own NodePools that could serve a pod, or "" if there is none.
func (v *View) KarpenterPool(pod *corev1.Pod) string {
	gpu, _ := facts.GPUResource(pod)
	return karpenterPoolServing(func() []karpenterPool { return karpenterPoolsOf(v.cluster) }, pod, gpu, claims.Of(pod))
}
