package manifests

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/snapshot/facts"
)

type reader struct {
	left      budget
	cluster   *facts.Cluster
	workloads []workload
	// pools are the places of the cluster's NodePools, at the same indices.
	pools []place
	// resourceClaims, claimTemplates and deviceClasses are the objects that determine the pods' claims for GPUs.
	resourceClaims []resourcev1.ResourceClaim
	claimTemplates []resourcev1.ResourceClaimTemplate
	deviceClasses  []resourcev1.DeviceClass
	// objects are the objects to read, and seen has the index of each, keyed by id.
	objects []object
	seen    map[string]int
	// generated counts the objects whose names the API server would generate.
	generated int
	// priorities are the PriorityClasses by name. The key "" is the default.
	priorities     map[string]*schedulingv1.PriorityClass
	runtimeClasses map[string]*nodev1.RuntimeClass
	limits         map[string][]limitRange
	quotas         map[string][]*quota
	// trainJobs use the runtimes, which are keyed by kind and name.
	trainJobs []trainJob
	// aliases gives pods of gpushare and HAMi slots. It is nil if no GPUNodeClass has slots.
	aliases  *memoryalias.Policy
	runtimes map[string]fields
	skipped  Skipped
	// with has the names of the files with objects.
	with map[string]bool
	// kinds counts the skipped objects by kind, unknown those of unknown kinds, and effects those of kinds with an effect.
	kinds            map[string]int
	unknown, effects map[schema.GroupKind]int
	// errs has an entry for each document, in the order of the files.
	errs []error
}

// object is an object to read. slot is the index of its document in the errors.
type object struct {
	document
	kind kind
	of   schema.GroupKind
	slot int
}

// kind is a kind of object that plans depend on.
type kind struct {
	// version is the version that is read, or "" for any.
	version    string
	namespaced bool
	read       func(ctx context.Context, r *reader, d document) error
	// late reports whether objects of the kind are read after all others.
	late bool
}

// trainJob is a TrainJob, whose pods are those of its runtime.
type trainJob struct {
	object metav1.ObjectMeta
	fields fields
	at     place
}

// Skipped is what the cluster lacks of the files.
type Skipped struct {
	// Kinds are the kinds that no plan depends on, sorted by name. Unknown are those of which nothing is known.
	Kinds, Unknown []KindCount
	// Effects are the kinds that plans depend on in a way that is not planned, sorted by name.
	Effects []Effect
	// Unplanned are the objects that run pods with GPUs, but not in the cluster.
	Unplanned []Unplanned
	// Held are the objects whose pods with GPUs do not wait for machines yet, and why, such as Job default/train (suspended).
	Held []string
	// Found are the objects of unknown kinds whose pods are those of their pod templates.
	Found []string
	// Refused are the pods that the API server would not create, and that are not in the cluster.
	Refused []Refused
	// Missing are the objects that pods with GPUs name and no file has, such as RuntimeClass nvidia, sorted.
	Missing []string
	// Unused are fields of node classes that change machines in an unknown way, such as EC2NodeClass gpu: spec.networkInterfaces.
	Unused []string
	// NodeClasses are the node classes of the cloud in the files that GPUNodeClasses or NodePools name, and Unnamed the others.
	NodeClasses map[v1alpha1.NodeClassReference]*unstructured.Unstructured
	Unnamed     []string
	// Aliased says which slots the pods of gpushare and HAMi got, or is "".
	Aliased string
	// NotObjects are the names of files that were found in directories and contain documents that are not Kubernetes objects, such as an IAM policy.
	NotObjects []string
	// Replaced are the objects that a later file defines again.
	Replaced []Replacement
}

// KindCount is the number of documents of a kind.
type KindCount struct {
	// Kind is the kind with its group, for example "ConfigMap" or "Certificate.cert-manager.io".
	Kind  string
	Count int
}

// Effect names objects of a kind that may change what is right for the cluster, and are not part of the plan.
type Effect struct {
	KindCount

	Effect string
}

// Unplanned is an object that runs pods with GPUs, of which there is none in the plan.
type Unplanned struct {
	// Object is the kind, namespace and name. Why is why its pods are unknown.
	Object, Why string
}

// Refused are pods of an object that the API server would not create, for one reason.
type Refused struct {
	// Object is the kind, namespace and name of the object that would create them.
	Object string
	Pods   []string
	Why    string
}

// Replacement is an object that two files define. As in kubectl apply, the later one counts.
type Replacement struct {
	// Object is the kind and name of the object. First and Last are the names of the files.
	Object, First, Last string
}

// hold records an object whose pods with GPUs do not wait for machines yet.
func (r *reader) hold(kind string, object *metav1.ObjectMeta, spec *corev1.PodSpec, why string) {
	if asksGPU(spec) {
		r.skipped.Held = append(r.skipped.Held, fmt.Sprintf("%s %s/%s (%s)", kind, namespaceOf(object.Namespace), object.Name, why))
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

func (r *reader) notObject(file string) {
	if !slices.Contains(r.skipped.NotObjects, file) {
		r.skipped.NotObjects = append(r.skipped.NotObjects, file)
	}
}

func kindName(group, kind string) string {
	if group == "" {
		return kind
	}
	return kind + "." + group
}

func id(kind schema.GroupKind, namespace, name string) string {
	return fmt.Sprintf("%s %s/%s", kind, namespace, name)
}

func namespaceOf(namespace string) string {
	if namespace == "" {
		return corev1.NamespaceDefault
	}
	return namespace
}

func isSet[K comparable, V any](m map[K]V, key K) bool {
	_, ok := m[key]
	return ok
}

func namedClass(ref *karpv1.NodeClassReference) bool {
	return ref != nil && ref.Group != "" && ref.Kind != "" && ref.Name != ""
}

// suspended is why a Job has no pods yet.
const suspended = "suspended"
