package manifests

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// podSet is a pod template of an object, and the number of pods that the object creates of it.
type podSet struct {
	name     string
	template fields
	replicas int
}

// operators return the pods that the controllers of operators create for an object of a kind, or why they are unknown.
var operators = map[schema.GroupKind]func(fields) ([]podSet, error){
	{Group: "jobset.x-k8s.io", Kind: "JobSet"}:                         jobSet,
	{Group: "leaderworkerset.x-k8s.io", Kind: "LeaderWorkerSet"}:       leaderWorkerSet,
	{Group: "ray.io", Kind: "RayCluster"}:                              func(f fields) ([]podSet, error) { return rayCluster(f.object("spec")) },
	{Group: "ray.io", Kind: "RayJob"}:                                  rayJob,
	{Group: "ray.io", Kind: "RayService"}:                              func(f fields) ([]podSet, error) { return rayCluster(f.object("spec", "rayClusterConfig")) },
	{Group: "kubeflow.org", Kind: "PyTorchJob"}:                        trainingJob("pytorchReplicaSpecs"),
	{Group: "kubeflow.org", Kind: "TFJob"}:                             trainingJob("tfReplicaSpecs"),
	{Group: "kubeflow.org", Kind: "MPIJob"}:                            trainingJob("mpiReplicaSpecs"),
	{Group: "kubeflow.org", Kind: "XGBoostJob"}:                        trainingJob("xgbReplicaSpecs"),
	{Group: "kubeflow.org", Kind: "PaddleJob"}:                         trainingJob("paddleReplicaSpecs"),
	{Group: "kubeflow.org", Kind: "JAXJob"}:                            trainingJob("jaxReplicaSpecs"),
	{Group: "batch.volcano.sh", Kind: "Job"}:                           volcanoJob,
	{Group: "serving.kserve.io", Kind: "InferenceService"}:             inferenceService,
	{Group: "serving.knative.dev", Kind: "Service"}:                    knativeService,
	{Group: "argoproj.io", Kind: "Rollout"}:                            rollout,
	{Group: "argoproj.io", Kind: "Workflow"}:                           unknownPods("the steps of a Workflow decide which of its pods run at a time"),
	{Group: "argoproj.io", Kind: "CronWorkflow"}:                       unknownPods("the steps of a Workflow decide which of its pods run at a time"),
	{Group: "keda.sh", Kind: "ScaledJob"}:                              unknownPods("its scaler decides how many Jobs run"),
	{Group: "sparkoperator.k8s.io", Kind: "SparkApplication"}:          unknownPods("Spark's operator makes the templates of its pods"),
	{Group: "sparkoperator.k8s.io", Kind: "ScheduledSparkApplication"}: unknownPods("Spark's operator makes the templates of its pods"),
}

// withoutPods are kinds that have pod templates and create no pods: other objects use the templates, or are their owners.
var withoutPods = []schema.GroupKind{
	{Kind: "PodTemplate"},
	{Group: "apps", Kind: "ControllerRevision"},
	{Group: "trainer.kubeflow.org", Kind: "TrainingRuntime"},
	{Group: "trainer.kubeflow.org", Kind: "ClusterTrainingRuntime"},
	{Group: "serving.kserve.io", Kind: "ServingRuntime"},
	{Group: "serving.kserve.io", Kind: "ClusterServingRuntime"},
	{Group: "argoproj.io", Kind: "WorkflowTemplate"},
	{Group: "argoproj.io", Kind: "ClusterWorkflowTemplate"},
	{Group: "kueue.x-k8s.io", Kind: "Workload"},
	{Group: "serving.knative.dev", Kind: "Revision"},
	{Group: "serving.knative.dev", Kind: "Configuration"},
	{Group: "autoscaling.x-k8s.io", Kind: "ProvisioningRequest"},
}

func unknownPods(why string) func(fields) ([]podSet, error) {
	return func(fields) ([]podSet, error) { return nil, errors.New(why) }
}

func jobSet(f fields) (sets []podSet, _ error) {
	if f.at("spec", "suspend") == true {
		return nil, nil
	}
	for _, job := range f.objects("spec", "replicatedJobs") {
		running := job.count(1, "template", "spec", "parallelism")
		running = min(running, job.count(running, "template", "spec", "completions"))
		sets = append(sets, podSet{job.text("name"), job.object("template", "spec", "template"), job.count(1, "replicas") * running})
	}
	return sets, nil
}

func leaderWorkerSet(f fields) ([]podSet, error) {
	groups, size := f.count(1, "spec", "replicas"), f.count(1, "spec", "leaderWorkerTemplate", "size")
	worker := f.object("spec", "leaderWorkerTemplate", "workerTemplate")
	leader := f.object("spec", "leaderWorkerTemplate", "leaderTemplate")
	if leader == nil {
		leader = worker
	}
	return []podSet{{"leader", leader, groups}, {"worker", worker, groups * max(0, size-1)}}, nil
}

// rayCluster returns the pods of the spec of a RayCluster. Ray's autoscaler begins with the replicas of each group.
func rayCluster(spec fields) ([]podSet, error) {
	if spec == nil || spec.at("suspend") == true {
		return nil, nil
	}
	sets := []podSet{{"head", spec.object("headGroupSpec", "template"), 1}}
	for _, group := range spec.objects("workerGroupSpecs") {
		if group.at("suspend") == true {
			continue
		}
		replicas := max(group.count(group.count(0, "minReplicas"), "replicas"), group.count(0, "minReplicas"))
		sets = append(sets, podSet{group.text("groupName"), group.object("template"), replicas * group.count(1, "numOfHosts")})
	}
	return sets, nil
}

func rayJob(f fields) ([]podSet, error) {
	if f.at("spec", "suspend") == true {
		return nil, nil
	}
	if len(f.object("spec", "clusterSelector")) > 0 {
		return nil, nil // It runs on a RayCluster that exists.
	}
	return rayCluster(f.object("spec", "rayClusterSpec"))
}

// trainingJob returns the pods of a Job of Kubeflow's training operator, which has them in a field.
func trainingJob(field string) func(fields) ([]podSet, error) {
	return func(f fields) (sets []podSet, _ error) {
		if f.at("spec", "runPolicy", "suspend") == true {
			return nil, nil
		}
		roles := f.object("spec", field)
		for _, role := range slices.Sorted(maps.Keys(roles)) {
			sets = append(sets, podSet{strings.ToLower(role), roles.object(role, "template"), roles.count(1, role, "replicas")})
		}
		return sets, nil
	}
}

func volcanoJob(f fields) (sets []podSet, _ error) {
	for _, task := range f.objects("spec", "tasks") {
		sets = append(sets, podSet{task.text("name"), task.object("template"), task.count(1, "replicas")})
	}
	return sets, nil
}

// inferenceService returns the pods of the components of KServe's InferenceService, which have the fields of a pod. The container of a model has the fields
// of a container and others.
func inferenceService(f fields) (sets []podSet, _ error) {
	for _, name := range []string{"predictor", "transformer", "explainer"} {
		c := f.object("spec", name)
		if c == nil {
			continue
		}
		replicas := max(c.count(1, "minReplicas"), 1)
		sets = append(sets, podSet{name, fields{"spec": map[string]any(withModel(c))}, replicas})
		if workers := c.object("workerSpec"); workers != nil {
			size := workers.count(2, "pipelineParallelSize")
			sets = append(sets, podSet{name + "-worker", fields{"spec": map[string]any(withModel(workers))}, replicas * max(1, size-1)})
		}
	}
	return sets, nil
}

// frameworks are the fields of a predictor that stand for its container.
var frameworks = []string{"model", "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "huggingface", "pmml", "lightgbm", "paddle"}

// withModel returns the spec of a pod with the container of its model.
func withModel(component fields) fields {
	spec := fields{}
	maps.Copy(spec, component)
	containers, _ := component["containers"].([]any)
	for _, framework := range frameworks {
		if model := component.object(framework); model != nil {
			container := map[string]any{"name": "kserve-container"}
			for _, key := range []string{"image", "resources", "env", "ports", "volumeMounts"} {
				if v, ok := model[key]; ok {
					container[key] = v
				}
			}
			containers = append(slices.Clone(containers), container)
		}
		delete(spec, framework)
	}
	spec["containers"] = containers
	return spec
}

// minScale is the annotation with the number of pods of a Knative Service that run without requests.
const minScale = "autoscaling.knative.dev/min-scale"

func knativeService(f fields) ([]podSet, error) {
	replicas := 1
	for _, key := range []string{minScale, "autoscaling.knative.dev/minScale"} {
		if n := 0; f.text("spec", "template", "metadata", "annotations", key) != "" {
			if _, err := fmt.Sscan(f.text("spec", "template", "metadata", "annotations", key), &n); err == nil {
				replicas = max(1, min(n, math.MaxInt32))
			}
		}
	}
	return []podSet{{"", f.object("spec", "template"), replicas}}, nil
}

func rollout(f fields) ([]podSet, error) {
	if f.object("spec", "workloadRef") != nil {
		return nil, nil // The Deployment that it names has the template.
	}
	return []podSet{{"", f.object("spec", "template"), f.count(1, "spec", "replicas")}}, nil
}

// counts are the fields by which an unknown kind may state how many pods it creates of the templates beside and below them.
var counts = []string{"replicas", "parallelism", "numNodes", "numWorkers", "minReplicas"}

// podSetsFound returns the pod templates of an object of an unknown kind. They have the number of pods that the fields beside and above them state.
func podSetsFound(f fields) []podSet {
	var sets []podSet
	var walk func(path string, v any, replicas int)
	walk = func(path string, v any, replicas int) {
		switch v := v.(type) {
		case map[string]any:
			of := fields(v)
			if list, ok := of.at("spec", "containers").([]any); ok && len(list) > 0 && path != "" {
				sets = append(sets, podSet{strings.Trim(path, "-"), of, replicas})
				return
			}
			for _, key := range counts {
				if n, ok := v[key].(float64); ok && n >= 0 {
					replicas = int(min(math.MaxInt32, float64(replicas)*n))
					break
				}
			}
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if key != "status" && key != "metadata" {
					walk(path+"-"+strings.ToLower(key), v[key], replicas)
				}
			}
		case []any:
			for i, item := range v {
				walk(fmt.Sprintf("%s-%d", path, i), item, replicas)
			}
		}
	}
	walk("", map[string]any(f), 1)
	return sets
}

func (s *podSet) podTemplate() (corev1.PodTemplateSpec, error) {
	var t corev1.PodTemplateSpec
	if s.template == nil {
		return t, errors.New("it has no pod template")
	}
	text, err := json.Marshal(map[string]any(s.template))
	if err != nil {
		return t, err
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return t, plainly(err, text)
	}
	return t, nil
}
