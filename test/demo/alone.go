package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/awslabs/operatorpkg/status"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster/simulator"
)

// alonePool is the NodePool that Karpenter provisions by itself. Its taint keeps Karve's pods off. Karve ignores the pool because it references the
// cloud's node class.
const (
	alonePool  = "karpenter-alone"
	aloneTaint = "example.com/karpenter-alone"
)

// createKarpenterPool creates a pool for Karpenter with the same machines as Karve's pool. It configures the same number of replicas per GPU for Karpenter
// and for the simulated device plugin. It returns when Karpenter has accepted all of it.
func (d *demo) createKarpenterPool(ctx context.Context, pool *karpv1.NodePool, class *v1alpha1.GPUNodeClass) error {
	replicas := int64(*class.Spec.Sharing.Replicas)
	clients, err := kubernetes.NewForConfig(d.cluster.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	err = simulator.Configure(ctx, clients, map[string]string{
		alonePool: fmt.Sprintf("{replicasPerGPU: %d, resource: %s}", replicas, d.resource),
	})
	if err != nil {
		return err
	}
	if err := d.client.Create(ctx, stockPool(pool, class)); err != nil {
		return fmt.Errorf("creating NodePool %s: %w", alonePool, err)
	}
	overlays, descriptions := d.overlays(replicas)
	for _, o := range overlays {
		if err := d.client.Create(ctx, o); err != nil {
			return fmt.Errorf("creating NodeOverlay %s: %w", o.Name, err)
		}
	}
	for _, o := range overlays {
		if err := d.untilReady(ctx, o, func() []status.Condition { return o.Status.Conditions }); err != nil {
			return err
		}
	}
	alone := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: alonePool}}
	if err := d.untilReady(ctx, alone, func() []status.Condition { return alone.Status.Conditions }); err != nil {
		return err
	}
	d.print("for later, Karpenter alone: NodePool %s over the same machines, and NodeOverlays: %s", alonePool, strings.Join(descriptions, ", "))
	return nil
}

// stockPool returns Karve's pool as a stock NodePool: the same requirements, and nothing that would make the comparison unfair. It removes empty
// machines as soon as Karve does, and no others, so that its price is that of the provisioned machines.
func stockPool(pool *karpv1.NodePool, class *v1alpha1.GPUNodeClass) *karpv1.NodePool {
	ref := class.Spec.NodeClassRef
	alone := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: alonePool}, Spec: *pool.Spec.DeepCopy()}
	alone.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: ref.Group, Kind: ref.Kind, Name: ref.Name}
	alone.Spec.Template.Spec.Taints = append(alone.Spec.Template.Spec.Taints, corev1.Taint{Key: aloneTaint, Effect: corev1.TaintEffectNoSchedule})
	// Karpenter would count replicas as GPUs.
	alone.Spec.Limits = nil
	alone.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	alone.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration(class.Spec.Consolidation.IdleAfter)
	return alone
}

// gpuCountLabel is the label by which NodeOverlays select machines.
const gpuCountLabel = "karpenter.k8s.aws/instance-gpu-count"

// overlays returns NodeOverlays that tell Karpenter how many replicas a machine has, one per number of GPUs.
func (d *demo) overlays(replicas int64) (overlays []*karpv1alpha1.NodeOverlay, descriptions []string) {
	counts := map[int64]bool{}
	for _, t := range d.types {
		counts[t.GPU.Count] = true
	}
	for _, gpus := range slices.Sorted(maps.Keys(counts)) {
		overlays = append(overlays, &karpv1alpha1.NodeOverlay{
			ObjectMeta: metav1.ObjectMeta{Name: alonePool + "-" + strconv.FormatInt(gpus, 10)},
			Spec: karpv1alpha1.NodeOverlaySpec{
				Requirements: []karpv1alpha1.NodeSelectorRequirement{
					{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{alonePool}},
					{Key: gpuCountLabel, Operator: corev1.NodeSelectorOpIn, Values: []string{strconv.FormatInt(gpus, 10)}},
				},
				Capacity: corev1.ResourceList{d.resource: *resource.NewQuantity(gpus*replicas, resource.DecimalSI)},
			},
		})
		descriptions = append(descriptions, fmt.Sprintf("%s → %d", plural(int(gpus), "GPU"), gpus*replicas))
	}
	return overlays, descriptions
}

// aloneDeployment returns the same Deployment for Karpenter's pool.
func aloneDeployment(of *appsv1.Deployment) *appsv1.Deployment {
	alone := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: alonePool}, Spec: *of.Spec.DeepCopy()}
	labels := map[string]string{"app": alonePool}
	alone.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	alone.Spec.Template.Labels = labels
	pod := &alone.Spec.Template.Spec
	pod.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: alonePool}
	pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: aloneTaint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	return alone
}

// untilReady polls an object until its condition Ready is true.
func (d *demo) untilReady(ctx context.Context, o client.Object, conditions func() []status.Condition) error {
	return poll(ctx, func() (bool, string, error) {
		if err := d.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return false, "", fmt.Errorf("reading %s: %w", o.GetName(), err)
		}
		var why []string
		for _, c := range conditions() {
			if c.Type == status.ConditionReady && c.IsTrue() && c.ObservedGeneration == o.GetGeneration() {
				return true, "", nil
			}
			if !c.IsTrue() {
				why = append(why, fmt.Sprintf("%s is %s, %s: %s", c.Type, c.Status, c.Reason, c.Message))
			}
		}
		kind := fmt.Sprintf("%T", o)
		return false, fmt.Sprintf("%s %s is not Ready: %s", kind[strings.LastIndex(kind, ".")+1:], o.GetName(), strings.Join(why, "; ")), nil
	})
}
