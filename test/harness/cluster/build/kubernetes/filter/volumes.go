package main

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provision simulates the volume controllers and a driver of zonal disks after a pod was bound: it creates the volumes that waited for the pod, in the
// zone of its node.
func (s *stage) provision(pod *corev1.Pod) error {
	claims := s.factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(pod.Namespace)
	for _, v := range pod.Spec.Volumes {
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = pod.Name + "-" + v.Name
		default:
			continue
		}
		claim, err := claims.Get(name)
		if err != nil {
			return fmt.Errorf("provisioning the volumes of pod %s: %w", nameOf(pod), err)
		}
		if claim.Spec.VolumeName != "" {
			continue
		}
		volume, err := s.volumeFor(claim, pod.Spec.NodeName)
		if err != nil {
			return err
		}
		claim = claim.DeepCopy()
		claim.Spec.VolumeName = volume.Name
		claim.Status.Phase = corev1.ClaimBound
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		claim.ResourceVersion += "1"
		if err := set(s.factory, volume); err != nil {
			return err
		}
		if err := set(s.factory, claim); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) volumeFor(claim *corev1.PersistentVolumeClaim, node string) (*corev1.PersistentVolume, error) {
	info, err := s.Snapshot.NodeInfos().Get(node)
	if err != nil {
		return nil, fmt.Errorf("provisioning %s: %w", claim.Name, err)
	}
	class, err := s.factory.Storage().V1().StorageClasses().Lister().Get(*claim.Spec.StorageClassName)
	if err != nil {
		return nil, fmt.Errorf("provisioning %s: %w", claim.Name, err)
	}
	name := "made-for-" + claim.Namespace + "-" + claim.Name
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:       class.Name,
			AccessModes:            claim.Spec.AccessModes,
			Capacity:               claim.Spec.Resources.Requests,
			ClaimRef:               &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{info.Node().Labels[corev1.LabelTopologyZone]},
				}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}, nil
}
