package main

import (
	"bytes"
	"crypto/sha256"
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Most of a pod is environment, mounts, probes and the status of its containers.
var (
	// ofContainer are image, command, args, workingDir, env, volumeMounts, probes, lifecycle, terminationMessage, imagePullPolicy, securityContext, stdin,
	// tty, envFrom, volumeDevices and resizePolicy.
	ofContainer = fieldsOf(2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
	// ofVolume are all sources but persistentVolumeClaim and ephemeral.
	ofVolume = omitted{2: fieldsOf(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30)}
	// ofContainerStatus are all fields but the name and the state.
	ofContainerStatus = fieldsOf(3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
	ofPods            = omitted{
		1: metadata,
		2: {1: ofVolume, 2: ofContainer, 16: nil, 17: nil, 20: ofContainer, 34: nil},                // hostname, subdomain, ephemeralContainers
		3: {5: nil, 6: nil, 8: ofContainerStatus, 10: ofContainerStatus, 12: nil, 13: nil, 16: nil}, // IP addresses, ephemeralContainerStatuses
	}
)

// podReader decodes pods. Of a pod with a node, without a GPU, or too large, it keeps what the controller keeps: only for other pods does explain need more.
// The pods of a workload have the same spec except for their node, so it decodes each spec once, and equal parts of pods share memory.
type podReader struct {
	trim func(any) (any, error)
	// specs has the specs without a node, by the hash of their bytes.
	specs map[[sha256.Size]byte]*sharedSpec
	// less, spec and status are reused for each pod.
	less, spec, status []byte
}

// sharedSpec is the spec of pods, without a node.
type sharedSpec struct {
	corev1.PodSpec
	// metrics is the number of the container port with that name, or 0 without one.
	metrics int32
	// cut names the parts that are too large and were left out.
	cut string
}

// wholeBytes is an encoded size of pods of which the controller certainly keeps all parts that it reads.
const wholeBytes = 512

func newPodReader() *podReader {
	return &podReader{trim: gather.Trim(), specs: map[[sha256.Size]byte]*sharedSpec{}}
}

// The numbers of the fields of a pod, of its spec, of a volume and of its status.
const (
	podMetadata, podSpec, podStatus  = 1, 2, 3
	specVolume, specNodeName         = 1, 10
	volumeSource                     = 2
	statusCondition, statusContainer = 2, 8
)

// decode decodes a pod. If the pod has a node, it also returns the number of its port for metrics.
func (r *podReader) decode(message []byte) (pod *corev1.Pod, metrics int32, err error) {
	if r.less, err = ofPods.from(r.less[:0], message); err != nil {
		return nil, 0, err
	}
	pod = &corev1.Pod{}
	var spec, status []byte
	err = eachField(r.less, func(number protowire.Number, _, value []byte) error {
		switch number {
		case podMetadata:
			return pod.ObjectMeta.Unmarshal(value)
		case podStatus:
			status = value
		case podSpec:
			spec = value
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if pod.Spec.NodeName, err = r.split(spec); err != nil {
		return nil, 0, err
	}
	if pod.Spec.NodeName == "" {
		return pod, 0, errors.Join(pod.Status.Unmarshal(status), pod.Spec.Unmarshal(spec), r.pending(pod, len(r.less)))
	}
	if err := r.bound(&pod.Status, status); err != nil {
		return nil, 0, err
	}
	shared, err := r.shared()
	if err != nil {
		return nil, 0, err
	}
	pod.Spec.ResourceClaims = shared.ResourceClaims // What is kept of the status depends on them.
	if _, err = r.trim(pod); err != nil {
		return nil, 0, err
	}
	node := pod.Spec.NodeName // It now shares memory with other pods.
	pod.Spec = shared.PodSpec
	pod.Spec.NodeName = node
	if shared.cut != "" {
		cut := shared.cut
		if labels := pod.Annotations[facts.CutAnnotation]; labels != "" {
			cut = labels + " and " + cut
		}
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, facts.CutAnnotation, cut)
	}
	return pod, shared.metrics, nil
}

// pending trims a pod without a node of which explain tells nothing, or that the controller does not keep in full.
func (r *podReader) pending(pod *corev1.Pod, size int) error {
	if facts.IsForeign(pod) && len(pod.Spec.ResourceClaims) == 0 {
		_, err := r.trim(pod)
		return err
	}
	if size <= wholeBytes {
		return nil
	}
	kept := pod.DeepCopy()
	_, err := r.trim(kept)
	if facts.TooLarge(kept) != "" {
		*pod = *kept
	}
	return err
}

// bound decodes the parts of the status of a pod with a node that the controller keeps: the conditions that are false, and the container statuses if
// the pod has succeeded.
func (r *podReader) bound(status *corev1.PodStatus, message []byte) error {
	r.status = r.status[:0]
	succeeded := bytes.Contains(message, []byte(corev1.PodSucceeded))
	err := eachField(message, func(number protowire.Number, field, value []byte) error {
		switch number {
		case statusCondition:
			if !bytes.Contains(value, []byte(corev1.ConditionFalse)) {
				return nil
			}
		case statusContainer:
			if !succeeded {
				return nil
			}
		}
		r.status = append(r.status, field...)
		return nil
	})
	if err != nil {
		return err
	}
	return status.Unmarshal(r.status)
}

// shared returns the shared spec for the bytes in r.spec.
func (r *podReader) shared() (*sharedSpec, error) {
	key := sha256.Sum256(r.spec)
	if known := r.specs[key]; known != nil {
		return known, nil
	}
	var pod corev1.Pod
	if err := pod.Spec.Unmarshal(r.spec); err != nil {
		return nil, err
	}
	s := &sharedSpec{}
	for i := range pod.Spec.Containers {
		for _, p := range pod.Spec.Containers[i].Ports {
			if p.Name == "metrics" {
				s.metrics = p.ContainerPort
			}
		}
	}
	_, err := r.trim(&pod)
	s.PodSpec, s.cut = pod.Spec, pod.Annotations[facts.CutAnnotation]
	r.specs[key] = s
	return s, err
}

// split returns the node of an encoded spec. It sets r.spec to the rest, without volumes that have no source left: their names have random parts.
func (r *podReader) split(spec []byte) (node string, err error) {
	r.spec = r.spec[:0]
	err = eachField(spec, func(number protowire.Number, field, value []byte) error {
		switch {
		case number == specNodeName:
			node = string(value)
		case number == specVolume && !hasSource(value):
		default:
			r.spec = append(r.spec, field...)
		}
		return nil
	})
	return node, err
}

func hasSource(volume []byte) (has bool) {
	_ = eachField(volume, func(number protowire.Number, _, value []byte) error { // It was read before.
		has = has || number == volumeSource && len(value) > 0
		return nil
	})
	return has
}
