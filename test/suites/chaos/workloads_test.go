package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// app is a Deployment or StatefulSet with a PodDisruptionBudget that requires fewer pods than it ever has.
type app struct {
	name, pool  string
	stateful    bool
	least, most int32
	budget      int
	cpu, memory string
	gpuMemory   string
}

var apps = []app{
	{name: "web", pool: steady, least: 4, most: 16, budget: 3, cpu: "300m", memory: "1Gi"},
	{name: "large", pool: steady, least: 2, most: 4, budget: 1, cpu: "1500m", memory: "5Gi"},
	{name: "state", pool: steady, stateful: true, least: 2, most: 4, budget: 1, cpu: "500m", memory: "1Gi"},
	{name: "api", pool: spot, least: 4, most: 14, budget: 2, cpu: "500m", memory: "2Gi"},
	{name: "model", pool: spot, least: 2, most: 6, budget: 1, cpu: "300m", memory: "1Gi", gpuMemory: "4Gi"},
}

func budgets() map[string]int {
	all := map[string]int{}
	for _, a := range apps {
		all[a.name] = a.budget
	}
	return all
}

func (a app) template() corev1.PodTemplateSpec {
	t := podTemplate(a.name, a.pool, a.cpu, a.memory)
	if a.gpuMemory != "" {
		t.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: a.gpuMemory}
	}
	return t
}

func podTemplate(name, pool, cpu, memory string) corev1.PodTemplateSpec {
	// Replaces the default of five minutes, to keep the test short.
	const soon = 5
	away := func(key string) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(soon))}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{
				{Key: v1alpha1.ResourceGPUShared, Value: pool, Effect: corev1.TaintEffectNoSchedule}, away(corev1.TaintNodeNotReady), away(corev1.TaintNodeUnreachable),
			},
			Containers: []corev1.Container{{Name: "main", Image: "example.com/nothing", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)},
				Limits:   corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("1")},
			}}},
			TerminationGracePeriodSeconds: new(int64(1)),
		},
	}
}

func (a app) objects() []client.Object {
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.name}}
	meta := metav1.ObjectMeta{Namespace: namespace, Name: a.name}
	var owner client.Object = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &a.least, Selector: labels, Template: a.template()}}
	if a.stateful {
		owner = &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &a.least, Selector: labels, Template: a.template()}}
	}
	return []client.Object{owner, &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: new(intstr.FromInt(a.budget)), Selector: labels,
	}}}
}

func (a app) owner() client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: a.name}
	if a.stateful {
		return &appsv1.StatefulSet{ObjectMeta: meta}
	}
	return &appsv1.Deployment{ObjectMeta: meta}
}

func job(n int, pool string, completions int32) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("job-%d", n)}
	t := podTemplate(meta.Name, pool, "1", "2Gi")
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	// A pod that is lost with its node is not a failure of the Job.
	ignore := []batchv1.PodFailurePolicyRule{{
		Action:          batchv1.PodFailurePolicyActionIgnore,
		OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
	}}
	return &batchv1.Job{ObjectMeta: meta, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: new(min(completions, 3)), Template: t, PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: ignore},
	}}
}

// begin creates all apps.
func (w *world) begin(ctx context.Context) error {
	for _, a := range apps {
		for _, o := range a.objects() {
			if err := w.create(ctx, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// churn scales apps, and creates Jobs and groups, until the time is over.
func (w *world) churn(ctx context.Context, random *rand.Rand, until time.Time) error {
	jobs := 0
	for time.Now().Before(until) {
		if random.IntN(4) == 0 {
			jobs++
			completions := 2 + random.Int32N(5)
			w.logf("job-%d wants %d completions", jobs, completions)
			if err := w.create(ctx, job(jobs, pools[random.IntN(len(pools))].name, completions)); err != nil {
				return err
			}
		} else if random.IntN(4) == 0 {
			if err := w.assemble(ctx, pools[random.IntN(len(pools))].name, 4+random.Int32N(22)); err != nil {
				return err
			}
		} else {
			a := apps[random.IntN(len(apps))]
			n := a.least + random.Int32N(a.most-a.least+1)
			w.logf("%s wants %d pods", a.name, n)
			if err := w.patch(ctx, a.owner(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, n)); err != nil {
				return err
			}
		}
		if err := smithytime.SleepWithContext(ctx, time.Second+time.Duration(random.Int64N(int64(4*time.Second)))); err != nil {
			return err
		}
	}
	return nil
}
