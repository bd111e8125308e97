package manifests

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxPods is the largest total number of pods of all workloads. Each pod is an object in memory.
const maxPods = 200_000

// makePods adds pods to the cluster: those in the files, and those that workloads still need to create.
func (r *reader) makePods() error {
	names, makers := map[string]bool{}, r.makers()
	present := r.existingPods(names)
	claims := 0
	// The pods of StatefulSets come first, because their names are known. The pods of other workloads are numbered, because their names are random.
	slices.SortStableFunc(makers, func(a, b *workload) int { return rankByOrder(a) - rankByOrder(b) })
	for _, w := range makers {
		there := min(w.replicas, present[w.owner()])
		present[w.owner()] -= there
		missing := w.replicas - there
		if len(r.cluster.Pods)+missing > maxPods {
			return fmt.Errorf("%s: it asks for %d pods, and a plan is made for at most %d", w.at, w.replicas, maxPods)
		}
		if claims += missing * len(w.claims); claims > maxClaims {
			return fmt.Errorf("%s: it asks for %d PersistentVolumeClaims, and a plan is made for at most %d", w.at, missing*len(w.claims), maxClaims)
		}
		if missing > 0 {
			r.makePodsOf(w, missing, names)
		}
	}
	return nil
}

// existingPods adds the pods in the files. It returns how many each owner has.
func (r *reader) existingPods(names map[string]bool) map[owner]int {
	present, parents := map[owner]int{}, r.parents()
	for i := range r.workloads {
		w := &r.workloads[i]
		if w.status == nil {
			continue
		}
		pod, refused := r.existing(w)
		names[pod.Namespace+"/"+pod.Name] = true
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		quotas := r.quotas[pod.Namespace]
		switch {
		case refused != "" || len(quotas) == 0 || ended:
		case !isAdmitted(&pod.ObjectMeta, &pod.Spec):
			refused = create(quotas, &pod, quotaUsage(&pod))
		default:
			used := quotaUsage(&pod)
			for _, q := range quotas {
				q.take(&pod, used)
			}
		}
		if refused != "" {
			r.refuse(w, pod.Namespace+"/"+pod.Name, refused)
			continue
		}
		r.cluster.Pods = append(r.cluster.Pods, pod)
		if !ended {
			r.holdGated(w)
		}
		if !ended && pod.DeletionTimestamp == nil {
			for o := range withParents(ownersOf(&pod.ObjectMeta), parents) {
				present[o]++
			}
		}
	}
	return present
}

// makePodsOf adds pods that a workload still needs to create, unless the API server would refuse them.
func (r *reader) makePodsOf(w *workload, missing int, names map[string]bool) {
	pod, refused := r.made(w)
	r.holdGated(w)
	quotas := r.quotas[pod.Namespace]
	var used map[corev1.ResourceName]int64
	if len(quotas) > 0 {
		used = quotaUsage(&pod)
	}
	name := w.object.Name
	if w.set != "" {
		name += "-" + w.set
	}
	for n := w.first; missing > 0; n++ {
		pod.Name = fmt.Sprintf("%s-%d", name, n)
		key := pod.Namespace + "/" + pod.Name
		if names[key] {
			continue
		}
		names[key] = true
		missing--
		why := refused
		if why == "" {
			why = create(quotas, &pod, used)
		}
		if why != "" {
			r.refuse(w, key, why)
			continue
		}
		r.cluster.Pods = append(r.cluster.Pods, withVolumes(pod, w))
	}
}

func (r *reader) holdGated(w *workload) {
	var gates []string
	for _, gate := range w.spec.SchedulingGates {
		gates = append(gates, gate.Name)
	}
	if len(gates) > 0 {
		r.hold(w.kind, &w.object, &w.spec, "scheduling gates "+strings.Join(gates, ", "))
	}
}

// makers returns the workloads that create pods, except those that belong to another workload in the files, such as a ReplicaSet that was exported with its
// Deployment.
func (r *reader) makers() []*workload {
	var makers []*workload
	all, runs := map[owner]bool{}, map[owner]bool{}
	for i := range r.workloads {
		w := &r.workloads[i]
		if w.status != nil {
			continue
		}
		makers = append(makers, w)
		all[w.owner()] = w.kind != "CronJob" // Its Jobs are runs of the past or of now.
		for _, o := range ownersOf(&w.object) {
			runs[o] = runs[o] || w.replicas > 0
		}
	}
	return slices.DeleteFunc(makers, func(w *workload) bool {
		return w.kind == "CronJob" && runs[w.owner()] || slices.ContainsFunc(ownersOf(&w.object), func(o owner) bool { return all[o] })
	})
}

// parents returns the owners in the files of workloads in the files.
func (r *reader) parents() map[owner][]owner {
	parents := map[owner][]owner{}
	for i := range r.workloads {
		if w := &r.workloads[i]; w.status == nil {
			if owners := ownersOf(&w.object); len(owners) > 0 {
				parents[w.owner()] = owners
			}
		}
	}
	return parents
}

func rankByOrder(w *workload) int {
	if w.kind == "StatefulSet" {
		return 0
	}
	return 1
}

// existing returns a pod in the files as it would be in the cluster, or why the API server would refuse it.
func (r *reader) existing(w *workload) (corev1.Pod, string) {
	pod := corev1.Pod{ObjectMeta: w.object, Spec: w.spec, Status: *w.status}
	refused := r.admit(&pod)
	if pod.Spec.NodeName == "" && (pod.Status.Phase == "" || pod.Status.Phase == corev1.PodPending) {
		wait(&pod)
	}
	return pod, refused
}

// made returns a pod that the controller of the workload would create, without a name, or why the API server would refuse it. The pods of a workload share
// its parts, which must not be modified.
func (r *reader) made(w *workload) (corev1.Pod, string) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.object.Namespace, Labels: w.labels, Annotations: w.annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: w.apiVersion, Kind: w.kind, Name: w.object.Name, Controller: new(true)}},
		},
		Spec: w.spec,
	}
	refused := r.admit(&pod)
	wait(&pod)
	return pod, refused
}

// withVolumes returns a pod of a StatefulSet with the volumes of its own PersistentVolumeClaims.
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

// wait makes the pod pending and, unless it has scheduling gates, marks it as unschedulable. Machines are launched only for unschedulable pods.
func wait(pod *corev1.Pod) {
	pod.Status.Phase = corev1.PodPending
	if len(pod.Spec.SchedulingGates) == 0 {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	}
}
