package manifests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// irrelevant are the groups, and the kinds by group, that change neither pods nor machines.
var irrelevant = struct {
	groups []string
	kinds  map[string][]string
}{
	groups: []string{
		"apiextensions.k8s.io", "apiregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "cert-manager.io", "certificates.k8s.io", "cilium.io",
		"coordination.k8s.io", "discovery.k8s.io", "eksctl.io", "events.k8s.io", "external-secrets.io", "flowcontrol.apiserver.k8s.io", "gateway.networking.k8s.io",
		"monitoring.coreos.com", "networking.istio.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "security.istio.io", "snapshot.storage.k8s.io",
		"source.toolkit.fluxcd.io", "kustomize.config.k8s.io", "traefik.io",
	},
	kinds: map[string][]string{
		"":                             {"ConfigMap", "Secret", "Service", "ServiceAccount", "Endpoints", "Event", "Binding"},
		"storage.k8s.io":               {"CSIDriver", "VolumeAttachment", "CSIStorageCapacity", "VolumeAttributesClass"},
		v1alpha1.Group:                 {"GPUImageRollout"},
		"kueue.x-k8s.io":               {"LocalQueue", "WorkloadPriorityClass", "AdmissionCheck", "ProvisioningRequestConfig", "MultiKueueCluster", "MultiKueueConfig", "Topology"},
		"admissionregistration.k8s.io": {"ValidatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"},
	},
}

// effects are kinds that change which pods there are or what they request, in a way that is not part of the plan.
var effects = map[schema.GroupKind]string{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}:                       scales,
	{Group: "keda.sh", Kind: "ScaledObject"}:                                      scales,
	{Group: "autoscaling.k8s.io", Kind: "VerticalPodAutoscaler"}:                  "changes what pods request",
	{Group: "admissionregistration.k8s.io", Kind: "MutatingWebhookConfiguration"}: "may change pods",
	{Group: "admissionregistration.k8s.io", Kind: "MutatingAdmissionPolicy"}:      "may change pods",
	{Group: "kyverno.io", Kind: "ClusterPolicy"}:                                  "may change pods",
	{Group: "kyverno.io", Kind: "Policy"}:                                         "may change pods",
	{Group: "kueue.x-k8s.io", Kind: "ClusterQueue"}:                               "may hold pods back",
	{Group: "kueue.x-k8s.io", Kind: "ResourceFlavor"}:                             "may add node selectors and tolerations to pods",
	{Group: "scheduling.volcano.sh", Kind: "Queue"}:                               "may hold pods back",
	{Group: "autoscaling.x-k8s.io", Kind: "CapacityBuffer"}:                       "keeps capacity free",
	{Group: "resource.k8s.io", Kind: "DeviceTaintRule"}:                           "keeps pods off devices of nodes",
	{Group: "resource.k8s.io", Kind: "ResourceSlice"}:                             "describes the devices of nodes",
}

const scales = "sets the number of pods: the plan has that of the workload"

func isNodeClass(gk schema.GroupKind) bool {
	return slices.ContainsFunc(clouds.All, func(p *cloud.Provider) bool { return p.NodeClass == gk })
}

func isIrrelevant(gk schema.GroupKind) bool {
	return slices.Contains(irrelevant.groups, gk.Group) || slices.Contains(irrelevant.kinds[gk.Group], gk.Kind)
}

// other returns how objects are read whose kind has no type of its own.
func other(gk schema.GroupKind) kind {
	return kind{namespaced: true, late: true, read: func(_ context.Context, r *reader, d document) error {
		if err := unboundedQuantity(d.json); err != nil {
			return err
		}
		var f fields
		if err := json.Unmarshal(d.json, &f); err != nil {
			return plainly(err, d.json)
		}
		return r.other(gk, f, d.place)
	}}
}

// other reads an object whose kind has no type of its own: the pods that an operator creates for it, or those of its pod templates.
func (r *reader) other(gk schema.GroupKind, f fields, at place) error {
	object := metav1.ObjectMeta{Name: f.text("metadata", "name"), Namespace: namespaceOf(f.text("metadata", "namespace")), OwnerReferences: ownersIn(f)}
	name := fmt.Sprintf("%s %s/%s", kindName(gk.Group, gk.Kind), object.Namespace, object.Name)
	ref := v1alpha1.NodeClassReference{Group: gk.Group, Kind: gk.Kind, Name: object.Name}
	effect := effects[gk]
	switch pods, known := operators[gk]; {
	case isSet(r.cluster.NodeClasses, ref):
		r.skipped.NodeClasses[ref] = &unstructured.Unstructured{Object: f}
		return nil
	case gk.Group == trainer && gk.Kind == "TrainJob":
		r.trainJobs = append(r.trainJobs, trainJob{object, f, at})
		return nil
	case gk.Group == trainer:
		r.runtimes[gk.Kind+"/"+object.Name] = f
		r.kinds[kindName(gk.Group, gk.Kind)]++
		return nil
	case known:
		sets, err := pods(f)
		if err != nil {
			r.unplanned(name, f, err)
			return nil
		}
		if len(sets) == 0 && mentionsGPU(map[string]any(f)) {
			r.skipped.Held = append(r.skipped.Held, name+" (no pods of its own now)")
		}
		return r.podSets(gk, object, sets, at)
	case effect != "":
		r.effects[gk]++
		return nil
	case isNodeClass(gk):
		r.skipped.Unnamed = append(r.skipped.Unnamed, gk.Kind+" "+object.Name)
		return nil
	case isIrrelevant(gk) || slices.Contains(withoutPods, gk):
		r.kinds[kindName(gk.Group, gk.Kind)]++
		return nil
	}
	sets := podSetsFound(f)
	if err := r.podSets(gk, object, sets, at); len(sets) == 0 || err != nil {
		if !r.unplanned(name, f, errors.New("its kind is unknown, and it has no pod template")) {
			r.unknown[gk]++
		}
		return nil
	}
	r.skipped.Found = append(r.skipped.Found, name)
	return nil
}

// unplanned records an object that runs pods that are not known. It returns false if the object mentions no GPUs.
func (r *reader) unplanned(name string, f fields, why error) bool {
	if !mentionsGPU(map[string]any(f)) {
		return false
	}
	r.skipped.Unplanned = append(r.skipped.Unplanned, Unplanned{name, why.Error()})
	return true
}

// podSets adds a workload for each pod template of an object.
func (r *reader) podSets(gk schema.GroupKind, object metav1.ObjectMeta, sets []podSet, at place) error {
	var added []workload
	for _, set := range sets {
		if set.replicas == 0 {
			continue
		}
		template, err := set.podTemplate()
		if err == nil {
			err = validPod(&template.Spec)
		}
		if err != nil {
			return fmt.Errorf("the template of its pods (%s): %w", set.name, err)
		}
		if set.replicas < 0 {
			return fmt.Errorf("it asks for %d pods (%s)", set.replicas, set.name)
		}
		w := workload{kind: gk.Kind, object: object, set: set.name, replicas: set.replicas, at: at}
		w.labels, w.annotations, w.spec = template.Labels, template.Annotations, template.Spec
		added = append(added, w)
	}
	r.workloads = append(r.workloads, added...)
	return nil
}

func ownersIn(f fields) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	for _, o := range f.objects("metadata", "ownerReferences") {
		controls := o.at("controller") == true
		owners = append(owners, metav1.OwnerReference{Kind: o.text("kind"), Name: o.text("name"), Controller: &controls})
	}
	return owners
}

const trainer = "trainer.kubeflow.org"

// planTrainJobs adds the pods of the TrainJobs. It needs all runtimes.
func (r *reader) planTrainJobs() []error {
	var errs []error
	for _, job := range r.trainJobs {
		name := fmt.Sprintf("TrainJob.%s %s/%s", trainer, job.object.Namespace, job.object.Name)
		if job.fields.at("spec", "suspend") == true {
			r.skipped.Held = append(r.skipped.Held, name+" ("+suspended+")")
			continue
		}
		kind := job.fields.text("spec", "runtimeRef", "kind")
		if kind == "" {
			kind = "ClusterTrainingRuntime"
		}
		runtime, ok := r.runtimes[kind+"/"+job.fields.text("spec", "runtimeRef", "name")]
		if !ok {
			r.skipped.Unplanned = append(r.skipped.Unplanned, Unplanned{name, fmt.Sprintf("its pods are those of %s %s, which is not in the files", kind, job.fields.text("spec", "runtimeRef", "name"))})
			continue
		}
		if err := r.podSets(schema.GroupKind{Group: trainer, Kind: "TrainJob"}, job.object, trainingPods(job.fields, runtime), job.at); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", job.at, err))
		}
	}
	return errs
}

// trainingPods returns the pods of a TrainJob: those of its runtime's JobSet, with the number and the resources of the job for the trainer.
func trainingPods(job, runtime fields) (sets []podSet) {
	nodes := job.count(runtime.count(1, "spec", "mlPolicy", "numNodes"), "spec", "trainer", "numNodes")
	for _, replicated := range runtime.objects("spec", "template", "spec", "replicatedJobs") {
		set := podSet{replicated.text("name"), replicated.object("template", "spec", "template"), replicated.count(1, "replicas")}
		if replicated.text("template", "metadata", "labels", "trainer.kubeflow.org/trainjob-ancestor-step") == "trainer" || set.name == "node" {
			set.replicas = nodes
			set.template = withResources(set.template, job.at("spec", "trainer", "resourcesPerNode"))
		}
		sets = append(sets, set)
	}
	return sets
}

// withResources returns a pod template whose container node, or only container, has the resources.
func withResources(template fields, resources any) fields {
	containers := template.objects("spec", "containers")
	if resources == nil || template == nil {
		return template
	}
	changed := make([]any, 0, len(containers))
	for _, c := range containers {
		if c.text("name") == "node" || len(containers) == 1 {
			with := maps.Clone(c)
			with["resources"] = resources
			c = with
		}
		changed = append(changed, map[string]any(c))
	}
	spec := fields{}
	maps.Copy(spec, template.object("spec"))
	spec["containers"] = changed
	return fields{"metadata": template.at("metadata"), "spec": map[string]any(spec)}
}
