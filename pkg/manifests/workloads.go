package manifests

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxPods bounds the pods of all workloads together; each of them is an object in memory.
const maxPods = 200_000

// workload is what makes pods, or a pod itself.
type workload struct {
	kind   string
	object metav1.ObjectMeta
	// labels, annotations and spec are those of its pods.
	labels, annotations map[string]string
	spec                corev1.PodSpec
	// replicas is how many pods there are to be.
	replicas int
	// first is the number of the first pod.
	first int
	// claims are what each pod has a volume of its own of.
	claims []corev1.PersistentVolumeClaim
	// status is that of a pod that was read; nil for those that make pods.
	status *corev1.PodStatus
	at     place
}

// workload takes in what makes pods.
func (r *reader) workload(w workload, template corev1.PodTemplateSpec, replicas *int32, selector *metav1.LabelSelector) error {
	w.object.Namespace = namespaceOf(w.object.Namespace)
	w.labels, w.annotations, w.spec, w.replicas = template.Labels, template.Annotations, template.Spec, 1
	if replicas != nil {
		w.replicas = int(*replicas)
	}
	r.workloads = append(r.workloads, w)
	if w.replicas < 0 {
		return fmt.Errorf("it asks for %d pods", w.replicas)
	}
	if err := validPod(&w.spec); err != nil {
		return fmt.Errorf("the template of its pods: %w", err)
	}
	if w.kind == "Job" {
		return nil // Its selector is written by the API server.
	}
	return validSelector(selector, w.labels)
}

// makePods adds the pods to the cluster: those that were read, and what the workloads lack then.
func (r *reader) makePods() error {
	names, present := map[string]bool{}, map[owner]int{}
	for i := range r.workloads {
		w := &r.workloads[i]
		if w.status == nil {
			continue
		}
		pod := r.existing(w)
		r.cluster.Pods = append(r.cluster.Pods, pod)
		names[pod.Namespace+"/"+pod.Name] = true
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && pod.DeletionTimestamp == nil {
			for _, o := range ownersOf(&pod.ObjectMeta) {
				present[o]++
			}
		}
	}
	makers := r.makers()
	// Pods of StatefulSets have the names that they will have; others are numbered, since what their controllers would draw is not known.
	slices.SortStableFunc(makers, func(a, b *workload) int { return ordered(a) - ordered(b) })
	for _, w := range makers {
		missing := w.replicas - present[w.owner()]
		if len(r.cluster.Pods)+missing > maxPods {
			return fmt.Errorf("%s: it asks for %d pods, and a plan is made for at most %d", w.at, w.replicas, maxPods)
		}
		pod := r.made(w)
		for n := w.first; missing > 0; n++ {
			pod.Name = fmt.Sprintf("%s-%d", w.object.Name, n)
			if key := pod.Namespace + "/" + pod.Name; !names[key] {
				names[key] = true
				r.cluster.Pods = append(r.cluster.Pods, withVolumes(pod, w))
				missing--
			}
		}
	}
	return nil
}

// makers are the workloads that make pods, without those that another one in the files has made: a ReplicaSet exported with its Deployment.
func (r *reader) makers() []*workload {
	var makers []*workload
	all := map[owner]bool{}
	for i := range r.workloads {
		if w := &r.workloads[i]; w.status == nil {
			makers = append(makers, w)
			all[w.owner()] = true
		}
	}
	return slices.DeleteFunc(makers, func(w *workload) bool {
		return slices.ContainsFunc(ownersOf(&w.object), func(o owner) bool { return all[o] })
	})
}

func ordered(w *workload) int {
	if w.kind == "StatefulSet" {
		return 0
	}
	return 1
}

// owner names what makes pods.
type owner struct{ kind, namespace, name string }

func (w *workload) owner() owner { return owner{w.kind, w.object.Namespace, w.object.Name} }

// ownersOf are those who may have made a pod or a ReplicaSet: its controller, and the Deployment whose ReplicaSet that is by the hash in its name.
func ownersOf(object *metav1.ObjectMeta) []owner {
	controller := metav1.GetControllerOfNoCopy(object)
	if controller == nil {
		return nil
	}
	owners := []owner{{controller.Kind, object.Namespace, controller.Name}}
	hash := object.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(controller.Name, "-"+hash); ok && hash != "" && controller.Kind == "ReplicaSet" {
		owners = append(owners, owner{"Deployment", object.Namespace, name})
	}
	return owners
}

// existing is a pod of the files as it would be in the cluster.
func (r *reader) existing(w *workload) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: w.object, Spec: w.spec, Status: *w.status}
	r.admit(&pod)
	if pod.Spec.NodeName == "" && (pod.Status.Phase == "" || pod.Status.Phase == corev1.PodPending) {
		wait(&pod)
	}
	return pod
}

// made is a pod that the workload's controller will make, but for its name. Its parts are shared with the others: nobody changes them.
func (r *reader) made(w *workload) corev1.Pod {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.object.Namespace, Labels: w.labels, Annotations: w.annotations,
			OwnerReferences: []metav1.OwnerReference{{Kind: w.kind, Name: w.object.Name, Controller: new(true)}},
		},
		Spec: w.spec,
	}
	r.admit(&pod)
	wait(&pod)
	return pod
}

// withVolumes is a StatefulSet's pod with the volumes that it has for itself.
func withVolumes(pod corev1.Pod, w *workload) corev1.Pod {
	if len(w.claims) == 0 {
		return pod
	}
	pod.Spec.Volumes = slices.Clone(pod.Spec.Volumes)
	for i := range w.claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: w.claims[i].Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: w.claims[i].Name + "-" + pod.Name},
		}})
	}
	return pod
}

// wait makes a pod one for which the scheduler has found no place: only then is a machine launched for it. Gated pods are not looked at.
func wait(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodPending
	if len(pod.Spec.SchedulingGates) == 0 {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
}
