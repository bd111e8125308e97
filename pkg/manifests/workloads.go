package manifests

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxPods is the largest total number of pods of all workloads. Each pod is an object in memory.
const maxPods = 200_000

// workload is an object that creates pods, or a pod.
type workload struct {
	kind string
	// apiVersion is that of the kind. It is "" for kinds on which no decision depends.
	apiVersion string
	object     metav1.ObjectMeta
	// set is the name of the pods among those of the object, if it has several pod templates.
	set                 string
	labels, annotations map[string]string
	spec                corev1.PodSpec
	replicas            int
	// first is the ordinal of the first pod.
	first int
	// claims are the templates of the PersistentVolumeClaims that each pod gets.
	claims []corev1.PersistentVolumeClaim
	// status is the status of a pod that was read. It is nil for workloads that create pods.
	status *corev1.PodStatus
	at     place
}

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
	if w.kind == "Job" || w.kind == "CronJob" {
		return nil // The API server sets the selector of a Job.
	}
	return validSelector(selector, w.labels)
}

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

// refuse records a pod that the API server would not create. Pods without GPUs are not part of plans.
func (r *reader) refuse(w *workload, pod, why string) {
	if !asksGPU(&w.spec) {
		return
	}
	object := fmt.Sprintf("%s %s/%s", w.kind, w.object.Namespace, w.object.Name)
	if n := len(r.skipped.Refused); n > 0 && r.skipped.Refused[n-1].Object == object && r.skipped.Refused[n-1].Why == why {
		r.skipped.Refused[n-1].Pods = append(r.skipped.Refused[n-1].Pods, pod)
		return
	}
	r.skipped.Refused = append(r.skipped.Refused, Refused{object, []string{pod}, why})
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

// withParents returns owners and the owners of these, each once.
func withParents(owners []owner, parents map[owner][]owner) map[owner]bool {
	all := map[owner]bool{}
	for len(owners) > 0 {
		o := owners[0]
		owners = owners[1:]
		if !all[o] {
			all[o] = true
			owners = append(slices.Clone(owners), parents[o]...)
		}
	}
	return all
}

func rankByOrder(w *workload) int {
	if w.kind == "StatefulSet" {
		return 0
	}
	return 1
}

// owner identifies a workload that creates pods.
type owner struct{ kind, namespace, name string }

func (w *workload) owner() owner { return owner{w.kind, w.object.Namespace, w.object.Name} }

// ownersOf returns the possible owners of a pod or ReplicaSet: its controller, and the Deployment of a ReplicaSet, which is known from the hash in its
// name.
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
