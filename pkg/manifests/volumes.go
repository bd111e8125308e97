package manifests

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	volumehelper "k8s.io/component-helpers/storage/volume"
)

const defaultClass = "storageclass.kubernetes.io/is-default-class"

// makeClaims adds the PersistentVolumeClaims that controllers create, for the pods of StatefulSets and for ephemeral volumes.
func (r *reader) makeClaims() {
	there := map[string]bool{}
	for i := range r.cluster.PersistentVolumeClaims {
		claim := &r.cluster.PersistentVolumeClaims[i]
		there[claim.Namespace+"/"+claim.Name] = true
	}
	add := func(claim corev1.PersistentVolumeClaim) {
		if key := claim.Namespace + "/" + claim.Name; !there[key] {
			there[key] = true
			r.cluster.PersistentVolumeClaims = append(r.cluster.PersistentVolumeClaims, claim)
		}
	}
	templates := map[owner][]corev1.PersistentVolumeClaim{}
	for i := range r.workloads {
		if w := &r.workloads[i]; len(w.claims) > 0 {
			templates[w.owner()] = w.claims
		}
	}
	for i := range r.cluster.Pods {
		pod := &r.cluster.Pods[i]
		for _, o := range ownersOf(&pod.ObjectMeta) {
			for _, template := range templates[o] {
				template.Namespace, template.Name = pod.Namespace, template.Name+"-"+pod.Name
				add(template)
			}
		}
		for _, v := range pod.Spec.Volumes {
			if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
				add(corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
					Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name, Labels: v.Ephemeral.VolumeClaimTemplate.Labels,
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
				}, Spec: v.Ephemeral.VolumeClaimTemplate.Spec})
			}
		}
	}
}

// bindClaims sets the default class of PersistentVolumeClaims, and binds those that name a PersistentVolume in the files.
func (r *reader) bindClaims() {
	byDefault := ""
	for i := range r.cluster.StorageClasses {
		if r.cluster.StorageClasses[i].Annotations[defaultClass] == "true" {
			byDefault = r.cluster.StorageClasses[i].Name
		}
	}
	volumes := map[string]bool{}
	for i := range r.cluster.PersistentVolumes {
		volumes[r.cluster.PersistentVolumes[i].Name] = true
	}
	for i := range r.cluster.PersistentVolumeClaims {
		claim := &r.cluster.PersistentVolumeClaims[i]
		if claim.Spec.StorageClassName == nil && claim.Annotations[corev1.BetaStorageClassAnnotation] == "" && byDefault != "" {
			claim.Spec.StorageClassName = &byDefault
		}
		if volumes[claim.Spec.VolumeName] && claim.Status.Phase != corev1.ClaimLost {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volumehelper.AnnBindCompleted, "yes")
			claim.Status.Phase = corev1.ClaimBound
		}
	}
}

// makeNamespaces adds the missing namespaces of pods, and sets the name label of all namespaces.
func (r *reader) makeNamespaces() {
	there := map[string]bool{}
	for i := range r.cluster.Namespaces {
		there[r.cluster.Namespaces[i].Name] = true
	}
	for i := range r.cluster.Pods {
		if name := r.cluster.Pods[i].Namespace; !there[name] {
			there[name] = true
			r.cluster.Namespaces = append(r.cluster.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	for i := range r.cluster.Namespaces {
		metav1.SetMetaDataLabel(&r.cluster.Namespaces[i].ObjectMeta, corev1.LabelMetadataName, r.cluster.Namespaces[i].Name)
	}
}
