package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	volumehelper "k8s.io/component-helpers/storage/volume"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/nodecontract"
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

// systemPriorities returns the PriorityClasses that every cluster has.
func systemPriorities() map[string]*schedulingv1.PriorityClass {
	all := map[string]*schedulingv1.PriorityClass{}
	for name, value := range map[string]int32{"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000} {
		all[name] = &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	}
	return all
}

// findMissing names the objects that pods with GPUs need and no file has. The plan may be wrong without them.
func (r *reader) findMissing() {
	missing := map[string]bool{}
	for i := range r.workloads {
		w := &r.workloads[i]
		pod := &w.spec
		if !asksGPU(pod) || w.status != nil && isAdmitted(&w.object, pod) {
			continue
		}
		if name := pod.RuntimeClassName; name != nil && !isSet(r.runtimeClasses, *name) {
			missing["RuntimeClass "+*name] = true
		}
		if name := pod.PriorityClassName; name != "" && !isSet(r.priorities, name) {
			missing["PriorityClass "+name] = true
		}
		namespace := namespaceOf(w.object.Namespace)
		if name := pod.ServiceAccountName; name != "" && name != "default" && !isSet(r.seen, id(schema.GroupKind{Kind: "ServiceAccount"}, namespace, name)) {
			missing["ServiceAccount "+namespace+"/"+name] = true
		}
	}
	r.skipped.Missing = slices.Sorted(maps.Keys(missing))
}

// gpushareInMiB is the argument with which gpushare's device plugin serves its memory in MiB.
const gpushareInMiB = "--memory-unit=mib"

// alias makes pods of gpushare and HAMi get slots, as with the chart's memoryAliases, of the first GPUNodeClass that has some.
func (r *reader) alias() {
	var classes []memoryalias.Policy
	for i := range r.cluster.GPUNodeClasses {
		if policy, ok := memoryalias.For(&r.cluster.GPUNodeClasses[i]); ok {
			classes = append(classes, policy)
		}
	}
	if len(classes) == 0 || !slices.ContainsFunc(r.workloads, func(w workload) bool { return memoryalias.In(&w.spec) && !isAdmitted(&w.object, &w.spec) }) {
		return
	}
	policy := slices.MinFunc(classes, func(a, b memoryalias.Policy) int { return strings.Compare(a.GPUNodeClass, b.GPUNodeClass) })
	set := "memoryAliases.gpuNodeClass=" + policy.GPUNodeClass
	policy.MiB = slices.ContainsFunc(r.cluster.DaemonSets, func(ds appsv1.DaemonSet) bool { return servesMiB(&ds.Spec.Template.Spec) })
	if policy.MiB {
		set += ",memoryAliases.gpushareUnit=MiB,node.gpushareUnit=MiB"
	}
	r.aliases = &policy
	r.skipped.Aliased = fmt.Sprintf("pods of gpushare and HAMi get slots of GPUNodeClass %s, as with --set %s of the chart", policy.GPUNodeClass, set)
}

// servesMiB reports whether a pod is one of gpushare's device plugin with memory in MiB.
func servesMiB(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool { return strings.EqualFold(arg, gpushareInMiB) })
	})
}

// readClaims replaces pods that have ResourceClaims for a GPU, as the controller does. It adds the charts' DeviceClasses unless the files define
// classes with their names.
func (r *reader) readClaims() {
	installed := []resourcev1.DeviceClass{claims.DeviceClass(nodecontract.ResourceGPUShared), claims.NVIDIADeviceClass()}
	for i := range r.cluster.GPUNodeClasses {
		if s := &r.cluster.GPUNodeClasses[i].Spec.Sharing; s.Backend == v1alpha1.BackendDRA {
			for _, resource := range s.Resources() {
				installed = append(installed, claims.DeviceClass(resource))
			}
		}
	}
	for _, class := range installed {
		if !slices.ContainsFunc(r.deviceClasses, func(c resourcev1.DeviceClass) bool { return c.Name == class.Name }) {
			r.deviceClasses = append(r.deviceClasses, class)
		}
	}
	pods := make([]*corev1.Pod, len(r.cluster.Pods))
	for i := range r.cluster.Pods {
		pods[i] = &r.cluster.Pods[i]
	}
	objects := claims.New(r.resourceClaims, r.claimTemplates, r.deviceClasses, pods)
	for i, pod := range pods {
		r.cluster.Pods[i] = *objects.On(pod)
	}
}
