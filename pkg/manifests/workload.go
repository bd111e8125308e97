package manifests

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/memoryalias"
)

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

func (w *workload) owner() owner { return owner{w.kind, w.object.Namespace, w.object.Name} }

// owner identifies a workload that creates pods.
type owner struct{ kind, namespace, name string }

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

// asksGPU reports whether a pod requests GPUs, as a resource, as a claim, or as memory of gpushare or HAMi.
func asksGPU(spec *corev1.PodSpec) bool {
	return len(spec.ResourceClaims) > 0 || claims.RequestsGPU(spec) || memoryalias.In(spec)
}

// isAdmitted reports whether a pod was read from a cluster, so that its spec is as the API server has admitted it.
func isAdmitted(object *metav1.ObjectMeta, spec *corev1.PodSpec) bool {
	return spec.NodeName != "" || object.UID != "" || object.ResourceVersion != ""
}
