package manifests_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/manifests"
)

// template is a pod template with a GPU.
const template = "{metadata: {labels: {app: x}}, spec: {" + podSpec + "}}"

func object(apiVersion, kind, spec string) string {
	return fmt.Sprintf("\napiVersion: %s\nkind: %s\nmetadata: {name: o, namespace: ml}\nspec: %s\n", apiVersion, kind, strings.ReplaceAll(spec, "TEMPLATE", template))
}

func TestPodsOfOperatorsAreFound(t *testing.T) {
	t.Parallel()
	ray := "{headGroupSpec: {template: TEMPLATE}, workerGroupSpecs: [{groupName: a, replicas: 2, numOfHosts: 2, template: TEMPLATE}, {groupName: b, minReplicas: 1, template: TEMPLATE}]}"
	torch := "{pytorchReplicaSpecs: {Master: {template: TEMPLATE}, Worker: {replicas: 3, template: TEMPLATE}}"
	runtime := object("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", `{mlPolicy: {numNodes: 1}, template: {spec: {replicatedJobs: [
  {name: dataset, template: {spec: {template: {spec: {containers: [{name: c}]}}}}}, {name: node, template: {spec: {template: TEMPLATE}}}]}}}`)
	for name, c := range map[string]struct {
		text string
		// want is how many pods with GPUs there are.
		want int
	}{
		"a JobSet": {object("jobset.x-k8s.io/v1alpha2", "JobSet", "{replicatedJobs: [{name: driver, template: {spec: {template: TEMPLATE}}}, "+
			"{name: workers, replicas: 2, template: {spec: {parallelism: 4, completions: 3, template: TEMPLATE}}}]}"), 7},
		"a suspended JobSet":                    {object("jobset.x-k8s.io/v1alpha2", "JobSet", "{suspend: true, replicatedJobs: [{name: a, template: {spec: {template: TEMPLATE}}}]}"), 0},
		"a LeaderWorkerSet":                     {object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "{replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: TEMPLATE}}"), 8},
		"a LeaderWorkerSet with leaders":        {object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "{leaderWorkerTemplate: {size: 3, leaderTemplate: TEMPLATE, workerTemplate: TEMPLATE}}"), 3},
		"a RayCluster":                          {object("ray.io/v1", "RayCluster", ray), 6},
		"a RayJob":                              {object("ray.io/v1", "RayJob", "{entrypoint: x, rayClusterSpec: "+ray+"}"), 6},
		"a RayJob on a cluster that exists":     {object("ray.io/v1", "RayJob", "{clusterSelector: {a: b}}"), 0},
		"a RayService":                          {object("ray.io/v1", "RayService", "{rayClusterConfig: "+ray+"}"), 6},
		"a PyTorchJob":                          {object("kubeflow.org/v1", "PyTorchJob", torch+"}"), 4},
		"a suspended PyTorchJob":                {object("kubeflow.org/v1", "PyTorchJob", torch+", runPolicy: {suspend: true}}"), 0},
		"a TFJob":                               {object("kubeflow.org/v1", "TFJob", "{tfReplicaSpecs: {Worker: {replicas: 2, template: TEMPLATE}}}"), 2},
		"an MPIJob":                             {object("kubeflow.org/v2beta1", "MPIJob", "{mpiReplicaSpecs: {Launcher: {replicas: 1, template: TEMPLATE}, Worker: {replicas: 2, template: TEMPLATE}}}"), 3},
		"a TrainJob":                            {runtime + "---" + object("trainer.kubeflow.org/v1alpha1", "TrainJob", "{runtimeRef: {name: o}, trainer: {numNodes: 3, resourcesPerNode: {limits: {nvidia.com/gpu.shared: 1}}}}"), 3},
		"a Job of Volcano":                      {object("batch.volcano.sh/v1alpha1", "Job", "{minAvailable: 3, tasks: [{name: a, replicas: 3, template: TEMPLATE}, {name: b, template: TEMPLATE}]}"), 4},
		"an InferenceService":                   {object("serving.kserve.io/v1beta1", "InferenceService", "{predictor: {minReplicas: 2, tolerations: [{operator: Exists}], model: {modelFormat: {name: x}, resources: {limits: {nvidia.com/gpu.shared: 1}}}}}"), 2},
		"an InferenceService with a container":  {object("serving.kserve.io/v1beta1", "InferenceService", "{predictor: {"+podSpec+"}, transformer: {containers: [{name: c}]}}"), 1},
		"a Service of Knative":                  {object("serving.knative.dev/v1", "Service", "{template: {metadata: {annotations: {autoscaling.knative.dev/min-scale: '3'}}, spec: {"+podSpec+"}}}"), 3},
		"a Rollout of Argo":                     {object("argoproj.io/v1alpha1", "Rollout", "{replicas: 4, selector: {}, template: TEMPLATE}"), 4},
		"an unknown kind with a template":       {object("example.com/v1", "Farm", "{template: TEMPLATE}"), 1},
		"an unknown kind with several":          {object("example.com/v1", "Farm", "{replicas: 2, pools: [{numWorkers: 3, podTemplate: TEMPLATE}, {podTemplate: TEMPLATE}]}"), 8},
		"an unknown kind with none to run":      {object("example.com/v1", "Farm", "{replicas: 0, template: TEMPLATE}"), 0},
		"a list of RayClusters":                 {"apiVersion: ray.io/v1\nkind: RayClusterList\nitems:\n- metadata: {name: a}\n  spec: " + strings.ReplaceAll(ray, "TEMPLATE", template) + "\n", 6},
		"a template that others use":            {strings.Replace(object("v1", "PodTemplate", "TEMPLATE"), "spec:", "template:", 1), 0},
		"a copy of the pods of a Job for Kueue": {object("kueue.x-k8s.io/v1beta1", "Workload", "{podSets: [{name: main, count: 3, template: TEMPLATE}]}"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := waiting(read(t, c.text)); len(got) != c.want {
				t.Errorf("%d pods, want %d: %v", len(got), c.want, got)
			}
		})
	}
}

func TestPodsThatCannotBeKnownAreNamed(t *testing.T) {
	t.Parallel()
	_, skipped, err := manifests.Read(t.Context(), files(
		object("argoproj.io/v1alpha1", "Workflow", "{templates: [{name: a, container: {image: x, resources: {limits: {nvidia.com/gpu.shared: 1}}}}]}"),
		strings.Replace(object("argoproj.io/v1alpha1", "Workflow", "{templates: [{name: a, container: {image: x}}]}"), "name: o", "name: cpu", 1),
		object("example.com/v1", "Engine", "{resources: {requests: {nvidia.com/gpu: 1}}}"),
		object("trainer.kubeflow.org/v1alpha1", "TrainJob", "{runtimeRef: {name: torch}}"),
		object("example.com/v1", "Farm", "{template: TEMPLATE}"),
		object("autoscaling/v2", "HorizontalPodAutoscaler", "{maxReplicas: 3}"),
		object("v1", "ConfigMap", "{}"),
	))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]manifests.Unplanned{
		{Object: "Workflow.argoproj.io ml/o", Why: "the steps of a Workflow decide which of its pods run at a time"},
		{Object: "Engine.example.com ml/o", Why: "its kind is unknown, and it has no pod template"},
		{Object: "TrainJob.trainer.kubeflow.org ml/o", Why: "its pods are those of ClusterTrainingRuntime torch, which is not in the files"},
	}, skipped.Unplanned); diff != "" {
		t.Errorf("unplanned (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Farm.example.com ml/o"}, skipped.Found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if len(skipped.Effects) != 1 || skipped.Effects[0].Kind != "HorizontalPodAutoscaler.autoscaling" || len(skipped.Kinds) != 1 || skipped.Kinds[0].Kind != "ConfigMap" {
		t.Errorf("effects %v, kinds %v", skipped.Effects, skipped.Kinds)
	}
}

func TestPodsThatDoNotWaitYetAreNamed(t *testing.T) {
	t.Parallel()
	gated := "{schedulingGates: [{name: a}, {name: b}], " + podSpec + "}"
	_, skipped, err := manifests.Read(t.Context(), files(
		strings.Replace(object("batch/v1", "Job", "{suspend: true, template: TEMPLATE}"), "name: o", "generateName: train-", 1),
		strings.Replace(object("batch/v1", "Job", "{suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}}"), "name: o", "name: cpu", 1),
		strings.Replace(object("batch/v1", "Job", "{suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 0}}}]}}}"), "name: o", "name: zero", 1),
		object("batch/v1", "CronJob", "{suspend: true, schedule: '* * * * *', jobTemplate: {spec: {template: TEMPLATE}}}"),
		object("jobset.x-k8s.io/v1alpha2", "JobSet", "{suspend: true, replicatedJobs: [{name: a, template: {spec: {template: TEMPLATE}}}]}"),
		object("apps/v1", "ReplicaSet", "{replicas: 2, selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: "+gated+"}}"),
		object("v1", "Pod", gated),
	))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		"Job ml/train-1 (suspended)", "CronJob ml/o (suspended)", "JobSet.jobset.x-k8s.io ml/o (no pods of its own now)",
		"Pod ml/o (scheduling gates a, b)", "ReplicaSet ml/o (scheduling gates a, b)",
	}, skipped.Held); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A pod template of an operator that is no pod is an error, as in a Deployment.
func TestErrorsInTemplatesOfOperatorsAreReported(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"{replicas: -1, leaderWorkerTemplate: {size: 1, workerTemplate: TEMPLATE}}":                                                     "it asks for -1 pods (leader)",
		"{leaderWorkerTemplate: {size: 1}}":                                                                                             "the template of its pods (leader): it has no pod template",
		"{leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]}}}}":       "nvidia.com/gpu has a request but no limit",
		"{leaderWorkerTemplate: {workerTemplate: {spec: {containers: [{name: c, resources: {limits: {memory: \"1e-2000000000\"}}}]}}}}": "has an exponent beyond 30",
		"{replicas: 2000000000, leaderWorkerTemplate: {size: 2000000000, workerTemplate: TEMPLATE}}":                                    "a plan is made for at most 200000",
	} {
		_, _, err := manifests.Read(t.Context(), files(object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "a.yaml, document 1, LeaderWorkerSet o: ") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Pods and Jobs that were exported with the object that owns them count once.
func TestExportedPodsOfOperatorsCountOnce(t *testing.T) {
	t.Parallel()
	owned := func(kind, name, spec, by, owner string) string {
		return fmt.Sprintf("\napiVersion: v1\nkind: %s\nmetadata: {name: %s, namespace: ml, ownerReferences: [{apiVersion: x, kind: %s, name: %s, uid: u, controller: true}]}\nspec: {%s}\n", kind, name, by, owner, spec)
	}
	set := object("jobset.x-k8s.io/v1alpha2", "JobSet", "{replicatedJobs: [{name: a, replicas: 2, template: {spec: {parallelism: 2, template: TEMPLATE}}}]}")
	job := strings.Replace(owned("Job", "o-a-0", "parallelism: 2, template: "+template, "JobSet", "o"), "apiVersion: v1", "apiVersion: batch/v1", 1)
	pod := owned("Pod", "o-a-0-0-x", "nodeName: there, "+podSpec, "Job", "o-a-0")
	if got := waiting(read(t, set, job, pod)); len(got) != 3 {
		t.Errorf("%v", got)
	}
	ray := object("ray.io/v1", "RayCluster", "{headGroupSpec: {template: TEMPLATE}, workerGroupSpecs: [{groupName: a, replicas: 2, template: TEMPLATE}]}")
	if got := waiting(read(t, ray, owned("Pod", "o-head-x", "nodeName: there, "+podSpec, "RayCluster", "o"))); len(got) != 2 {
		t.Errorf("beside a head: %v", got)
	}
	cron := strings.Replace(made("batch/v1", "CronJob", "nightly", "schedule: '0 3 * * *', jobTemplate: {spec: {parallelism: 5, template: TEMPLATE}}"), ", template: {metadata: {labels: {app: x}}, spec: {"+podSpec+"}}}", "}", 1)
	cron = strings.ReplaceAll(strings.Replace(cron, "name: nightly", "name: nightly, namespace: ml", 1), "TEMPLATE", template)
	if got := waiting(read(t, cron)); len(got) != 5 {
		t.Errorf("a run: %v", got)
	}
	run := strings.Replace(owned("Job", "nightly-1", "parallelism: 5, completions: 5, template: "+template, "CronJob", "nightly"), "apiVersion: v1", "apiVersion: batch/v1", 1)
	if got := waiting(read(t, cron, run)); len(got) != 5 || got[0] != "ml/nightly-1-0" {
		t.Errorf("the run of now: %v", got)
	}
	if got := waiting(read(t, cron, run+"status: {succeeded: 5}\n")); len(got) != 5 || got[0] != "ml/nightly-0" {
		t.Errorf("after a run: %v", got)
	}
}
