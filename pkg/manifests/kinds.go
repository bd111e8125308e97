package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// kinds are the kinds that are read. Objects of other kinds are skipped.
var kinds = map[schema.GroupKind]kind{
	{Group: v1alpha1.Group, Kind: v1alpha1.Kind}:              {"v1alpha1", false, into((*reader).gpuNodeClass), false},
	{Group: "karpenter.sh", Kind: "NodePool"}:                 {"v1", false, into((*reader).nodePool), false},
	{Group: "karpenter.sh", Kind: "NodeClaim"}:                {"v1", false, listed(func(r *reader) *[]karpv1.NodeClaim { return &r.cluster.NodeClaims }), false},
	{Group: "karpenter.sh", Kind: "NodeOverlay"}:              {"v1alpha1", false, into((*reader).nodeOverlay), false},
	{Kind: "LimitRange"}:                                      {"v1", true, into((*reader).limitRange), false},
	{Kind: "ResourceQuota"}:                                   {"v1", true, into((*reader).resourceQuota), false},
	{Kind: "ReplicationController"}:                           {"v1", true, into((*reader).replicationController), false},
	{Group: "batch", Kind: "CronJob"}:                         {"v1", true, into((*reader).cronJob), false},
	{Group: "node.k8s.io", Kind: "RuntimeClass"}:              {"v1", false, into((*reader).readRuntimeClass), false},
	{Kind: "Node"}:                                            {"v1", false, into((*reader).node), false},
	{Kind: "Pod"}:                                             {"v1", true, into((*reader).pod), false},
	{Group: "apps", Kind: "Deployment"}:                       {"v1", true, into((*reader).deployment), false},
	{Group: "apps", Kind: "ReplicaSet"}:                       {"v1", true, into((*reader).replicaSet), false},
	{Group: "apps", Kind: "StatefulSet"}:                      {"v1", true, into((*reader).statefulSet), false},
	{Group: "apps", Kind: "DaemonSet"}:                        {"v1", true, into((*reader).daemonSet), false},
	{Group: "batch", Kind: "Job"}:                             {"v1", true, into((*reader).job), false},
	{Kind: "Namespace"}:                                       {"v1", false, listed(func(r *reader) *[]corev1.Namespace { return &r.cluster.Namespaces }), false},
	{Kind: "PersistentVolumeClaim"}:                           {"v1", true, into((*reader).persistentVolumeClaim), false},
	{Kind: "PersistentVolume"}:                                {"v1", false, listed(func(r *reader) *[]corev1.PersistentVolume { return &r.cluster.PersistentVolumes }), false},
	{Group: "storage.k8s.io", Kind: "StorageClass"}:           {"v1", false, listed(func(r *reader) *[]storagev1.StorageClass { return &r.cluster.StorageClasses }), false},
	{Group: "storage.k8s.io", Kind: "CSINode"}:                {"v1", false, listed(func(r *reader) *[]storagev1.CSINode { return &r.cluster.CSINodes }), false},
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}:       {"v1", false, into((*reader).priorityClass), false},
	{Group: "resource.k8s.io", Kind: "ResourceClaim"}:         {"v1", true, into((*reader).resourceClaim), false},
	{Group: "resource.k8s.io", Kind: "ResourceClaimTemplate"}: {"v1", true, into((*reader).resourceClaimTemplate), false},
	{Group: "resource.k8s.io", Kind: "DeviceClass"}:           {"v1", false, listed(func(r *reader) *[]resourcev1.DeviceClass { return &r.deviceClasses }), false},
	facts.KubernetesGroups.PodGroupKind():                     {"", true, podGroup, false},
	facts.PluginGroups.PodGroupKind():                         {"", true, podGroup, false},
	facts.VolcanoGroups.PodGroupKind():                        {"", true, podGroup, false},
	facts.KAIGroups.PodGroupKind():                            {"", true, podGroup, false},
}

// header holds the fields that are read from objects of any kind.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name         string `json:"name"`
		GenerateName string `json:"generateName"`
		Namespace    string `json:"namespace"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

// isObject reports whether a document may be meant as a Kubernetes object, however wrong it is.
func isObject(document []byte) bool {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(document, &fields); err != nil {
		return false
	}
	return fields["apiVersion"] != nil || fields["kind"] != nil || fields["metadata"] != nil
}

// document adds the objects of a document, which is an object or a list of objects, to those to read.
func (r *reader) document(d document) error {
	var h header
	if err := json.Unmarshal(d.json, &h); err != nil {
		return fmt.Errorf("%s: %w", d.place, plainly(err, nil))
	}
	if h.Metadata.Name == "" && h.Metadata.GenerateName != "" {
		r.generated++
		h.Metadata.Name = fmt.Sprint(h.Metadata.GenerateName, r.generated)
		var err error
		if d.json, err = withName(d.json, h.Metadata.Name); err != nil {
			return fmt.Errorf("%s: %w", d.place, err)
		}
	}
	if d.object = h.Kind; h.Metadata.Name != "" {
		d.object += " " + h.Metadata.Name
	}
	if h.APIVersion == "" || h.Kind == "" {
		return fmt.Errorf("%s: it needs apiVersion and kind", d.place)
	}
	group, err := schema.ParseGroupVersion(h.APIVersion)
	if err != nil {
		return fmt.Errorf("%s: apiVersion: %w", d.place, err)
	}
	gk := schema.GroupKind{Group: group.Group, Kind: h.Kind}
	k, known := kinds[gk]
	if err := r.outdated(gk, h, k, d.json); err != nil {
		return fmt.Errorf("%s: %w", d.place, err)
	}
	switch element, isList := listOf(group, h.Kind); {
	case isList && d.item == 0:
		return r.list(d, h.Items, element)
	case !known && h.Metadata.Name == "":
		r.kinds[kindName(gk.Group, gk.Kind)]++
		return nil
	case !known:
		return r.keep(d, other(gk), gk, h)
	case k.version != "" && group.Version != k.version:
		return fmt.Errorf("%s: apiVersion %s is not read: write it as %s", d.place, h.APIVersion, schema.GroupVersion{Group: gk.Group, Version: k.version})
	}
	if h.Metadata.Name == "" {
		return fmt.Errorf("%s: metadata.name is missing", d.place)
	}
	if wrong := validation.IsDNS1123Subdomain(h.Metadata.Name); len(wrong) > 0 {
		return fmt.Errorf("%s: metadata.name: %s", d.place, strings.Join(wrong, ", "))
	}
	return r.keep(d, k, gk, h)
}

// withName returns the object with the name that the API server would generate.
func withName(object []byte, name string) ([]byte, error) {
	var f fields
	if err := json.Unmarshal(object, &f); err != nil {
		return nil, err
	}
	metadata := f.object("metadata")
	metadata["name"] = name
	return json.Marshal(map[string]any(f))
}

// keep adds an object to those to read. It replaces one of an earlier file.
func (r *reader) keep(d document, k kind, gk schema.GroupKind, h header) error {
	namespace := ""
	if k.namespaced {
		namespace = namespaceOf(h.Metadata.Namespace)
	}
	key, o := id(gk, namespace, h.Metadata.Name), object{d, k, gk, len(r.errs)}
	i, twice := r.seen[key]
	if !twice {
		r.seen[key] = len(r.objects)
		r.objects = append(r.objects, o)
		return nil
	}
	before := r.objects[i].place
	if before.file == d.file {
		return fmt.Errorf("%s: it is in %s already", d.place, before)
	}
	r.objects[i] = o
	r.skipped.Replaced = append(r.skipped.Replaced, Replacement{d.object, before.file, d.file})
	return nil
}

// listOf reports whether a kind is a list, and returns the type of its items. The type is empty for a v1 List, which may have items of any kind.
func listOf(group schema.GroupVersion, kind string) (element metav1.TypeMeta, ok bool) {
	name, ok := strings.CutSuffix(kind, "List")
	if !ok {
		return metav1.TypeMeta{}, false
	}
	if name == "" {
		return metav1.TypeMeta{}, true
	}
	item := schema.GroupKind{Group: group.Group, Kind: name}
	_, ok = kinds[item]
	if !ok {
		_, ok = operators[item]
	}
	return metav1.TypeMeta{APIVersion: group.String(), Kind: name}, ok
}

// list adds the objects of a list. In a list of a single kind, items may omit their kind, as those of the API server do.
func (r *reader) list(d document, items []json.RawMessage, element metav1.TypeMeta) error {
	var errs []error
	for i, item := range items {
		at := place{file: d.file, document: d.document, item: i + 1}
		if err := r.left.spend(at, 0); err != nil {
			return err
		}
		if element.Kind != "" {
			item = withKind(item, element)
		}
		errs = append(errs, r.document(document{at, item}))
	}
	return errors.Join(errs...)
}

// withKind returns the object with the kind and apiVersion set. It returns the object unchanged if it has one of them.
func withKind(object json.RawMessage, kind metav1.TypeMeta) json.RawMessage {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil || fields == nil || fields["kind"] != nil || fields["apiVersion"] != nil {
		return object // The caller reports what is wrong.
	}
	fields["apiVersion"], fields["kind"] = fmt.Appendf(nil, "%q", kind.APIVersion), fmt.Appendf(nil, "%q", kind.Kind)
	with, err := json.Marshal(fields)
	if err != nil {
		return object
	}
	return with
}

// into returns a function that decodes an object as the API server does by default. Unknown fields are errors, because most of them are misspelled.
func into[T any](take func(*reader, context.Context, *T, place) error) func(context.Context, *reader, document) error {
	return func(ctx context.Context, r *reader, d document) error {
		if err := unboundedQuantity(d.json); err != nil {
			return err
		}
		object := new(T)
		strict, err := kjson.UnmarshalStrict(d.json, object)
		if err != nil {
			// The error of the standard library names the field.
			return plainly(cmp.Or(json.Unmarshal(d.json, new(T)), err), d.json)
		}
		if err := errors.Join(strict...); err != nil {
			return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return take(r, ctx, object, d.place)
	}
}

// listed returns a function that decodes an object and adds it to a list. The kind has no namespaces.
func listed[T any](to func(*reader) *[]T) func(context.Context, *reader, document) error {
	return into(func(r *reader, _ context.Context, object *T, _ place) error {
		list := to(r)
		*list = append(*list, *object)
		return nil
	})
}

func (r *reader) gpuNodeClass(_ context.Context, class *v1alpha1.GPUNodeClass, _ place) error {
	r.cluster.GPUNodeClasses = append(r.cluster.GPUNodeClasses, *class)
	return validGPUNodeClass(&class.Spec)
}

func (r *reader) nodePool(ctx context.Context, np *karpv1.NodePool, at place) error {
	r.cluster.NodePools, r.pools = append(r.cluster.NodePools, *np), append(r.pools, at)
	if !namedClass(np.Spec.Template.Spec.NodeClassRef) {
		return errors.New("spec.template.spec.nodeClassRef needs group, kind and name")
	}
	return np.RuntimeValidate(ctx)
}

func (r *reader) nodeOverlay(ctx context.Context, overlay *karpv1alpha1.NodeOverlay, _ place) error {
	r.cluster.NodeOverlays = append(r.cluster.NodeOverlays, *overlay)
	return overlay.RuntimeValidate(ctx)
}

// podGroup adds a PodGroup of any API and version. It reads what plans depend on and does not check the rest.
func podGroup(_ context.Context, r *reader, d document) error {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(d.json); err != nil {
		return err
	}
	u.SetNamespace(namespaceOf(u.GetNamespace()))
	g := facts.PodGroupOf(u)
	if r.cluster.PodGroups.All == nil {
		r.cluster.PodGroups = facts.NewPodGroups(nil, nil)
	}
	r.cluster.PodGroups.All[g.Key], r.cluster.PodGroups.Served[g.Key.API] = g, true
	return nil
}

func (r *reader) node(_ context.Context, node *corev1.Node, _ place) error {
	r.cluster.Nodes = append(r.cluster.Nodes, *node)
	return errors.Join(validAmounts("status.allocatable", node.Status.Allocatable), validAmounts("status.capacity", node.Status.Capacity))
}

func (r *reader) pod(_ context.Context, pod *corev1.Pod, at place) error {
	pod.Namespace = namespaceOf(pod.Namespace)
	r.workloads = append(r.workloads, workload{kind: "Pod", object: pod.ObjectMeta, spec: pod.Spec, status: &pod.Status, at: at})
	return validPod(&pod.Spec)
}

func (r *reader) daemonSet(_ context.Context, ds *appsv1.DaemonSet, _ place) error {
	ds.Namespace = namespaceOf(ds.Namespace)
	r.cluster.DaemonSets = append(r.cluster.DaemonSets, *ds)
	return errors.Join(validPod(&ds.Spec.Template.Spec), validSelector(ds.Spec.Selector, ds.Spec.Template.Labels))
}

func (r *reader) deployment(_ context.Context, d *appsv1.Deployment, at place) error {
	return r.workload(workload{kind: "Deployment", object: d.ObjectMeta, at: at}, d.Spec.Template, d.Spec.Replicas, d.Spec.Selector)
}

func (r *reader) replicaSet(_ context.Context, rs *appsv1.ReplicaSet, at place) error {
	return r.workload(workload{kind: "ReplicaSet", object: rs.ObjectMeta, at: at}, rs.Spec.Template, rs.Spec.Replicas, rs.Spec.Selector)
}

func (r *reader) statefulSet(_ context.Context, s *appsv1.StatefulSet, at place) error {
	w := workload{kind: "StatefulSet", object: s.ObjectMeta, claims: s.Spec.VolumeClaimTemplates, at: at}
	if s.Spec.Ordinals != nil {
		w.first = int(s.Spec.Ordinals.Start)
	}
	return r.workload(w, s.Spec.Template, s.Spec.Replicas, s.Spec.Selector)
}

func (r *reader) replicationController(_ context.Context, rc *corev1.ReplicationController, at place) error {
	if rc.Spec.Template == nil {
		return errors.New("spec.template is missing")
	}
	selector := rc.Spec.Selector
	if len(selector) == 0 {
		selector = rc.Spec.Template.Labels
	}
	return r.workload(workload{kind: "ReplicationController", object: rc.ObjectMeta, at: at}, *rc.Spec.Template, rc.Spec.Replicas, &metav1.LabelSelector{MatchLabels: selector})
}

func (r *reader) job(_ context.Context, job *batchv1.Job, at place) error {
	running := podsOf(&job.Spec, job.Status.Succeeded)
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			running = 0
		}
	}
	template := templateOf(&job.Spec, job.Name)
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		r.hold("Job", &job.ObjectMeta, &template.Spec, suspended)
	}
	return r.workload(workload{kind: "Job", apiVersion: batchv1.SchemeGroupVersion.String(), object: job.ObjectMeta, at: at}, template, &running, nil)
}

// cronJob adds the pods of one run.
func (r *reader) cronJob(_ context.Context, cron *batchv1.CronJob, at place) error {
	running, template := podsOf(&cron.Spec.JobTemplate.Spec, 0), templateOf(&cron.Spec.JobTemplate.Spec, cron.Name)
	if cron.Spec.Suspend != nil && *cron.Spec.Suspend {
		running = 0
		r.hold("CronJob", &cron.ObjectMeta, &template.Spec, suspended)
	}
	return r.workload(workload{kind: "CronJob", apiVersion: batchv1.SchemeGroupVersion.String(), object: cron.ObjectMeta, at: at}, template, &running, nil)
}

// podsOf returns how many pods a Job runs at a time.
func podsOf(job *batchv1.JobSpec, succeeded int32) int32 {
	running := int32(1)
	if job.Parallelism != nil {
		running = *job.Parallelism
	}
	if job.Completions != nil {
		running = min(running, max(0, *job.Completions-succeeded))
	}
	if job.Suspend != nil && *job.Suspend {
		return 0
	}
	return running
}

// templateOf returns the template of a Job's pods with the label of the Job.
func templateOf(job *batchv1.JobSpec, name string) corev1.PodTemplateSpec {
	template := *job.Template.DeepCopy()
	if template.Labels == nil {
		template.Labels = map[string]string{}
	}
	template.Labels[batchv1.JobNameLabel] = name
	return template
}

func (r *reader) readRuntimeClass(_ context.Context, class *nodev1.RuntimeClass, _ place) error {
	r.runtimeClasses[class.Name] = class
	return validRuntimeClass(class)
}

func (r *reader) limitRange(_ context.Context, limits *corev1.LimitRange, _ place) error {
	namespace := namespaceOf(limits.Namespace)
	r.limits[namespace] = append(r.limits[namespace], limitRangeOf(limits))
	return validLimits(limits)
}

func (r *reader) resourceQuota(_ context.Context, quota *corev1.ResourceQuota, _ place) error {
	namespace := namespaceOf(quota.Namespace)
	r.quotas[namespace] = append(r.quotas[namespace], quotaOf(quota))
	return validAmounts("spec.hard", quota.Spec.Hard)
}

func (r *reader) priorityClass(_ context.Context, class *schedulingv1.PriorityClass, _ place) error {
	r.priorities[class.Name] = class
	if byDefault := r.priorities[""]; class.GlobalDefault && (byDefault == nil || class.Value < byDefault.Value) {
		r.priorities[""] = class
	}
	return nil
}

func (r *reader) persistentVolumeClaim(_ context.Context, claim *corev1.PersistentVolumeClaim, _ place) error {
	claim.Namespace = namespaceOf(claim.Namespace)
	r.cluster.PersistentVolumeClaims = append(r.cluster.PersistentVolumeClaims, *claim)
	return nil
}

func (r *reader) resourceClaim(_ context.Context, claim *resourcev1.ResourceClaim, _ place) error {
	claim.Namespace = namespaceOf(claim.Namespace)
	r.resourceClaims = append(r.resourceClaims, *claim)
	return nil
}

func (r *reader) resourceClaimTemplate(_ context.Context, template *resourcev1.ResourceClaimTemplate, _ place) error {
	template.Namespace = namespaceOf(template.Namespace)
	r.claimTemplates = append(r.claimTemplates, *template)
	return nil
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

// outdated returns an error for an object of Karpenter's in an older version than that of today, or of a kind that it no longer has.
func (r *reader) outdated(gk schema.GroupKind, h header, k kind, object []byte) error {
	version := cmp.Or(k.version, nodeClassVersions[gk])
	if gv, _ := schema.ParseGroupVersion(h.APIVersion); gv.Version == version {
		return nil
	}
	var f fields
	if err := json.Unmarshal(object, &f); err != nil {
		return err
	}
	return replaced(gk, h.APIVersion, version, f)
}
