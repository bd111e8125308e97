package rollout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// healthyConditions has the conditions of healthy nodes. A canary with a different status in one of them is unhealthy.
var healthyConditions = map[corev1.NodeConditionType]corev1.ConditionStatus{
	corev1.NodeReady: corev1.ConditionTrue, corev1.NodeMemoryPressure: corev1.ConditionFalse, corev1.NodeDiskPressure: corev1.ConditionFalse,
	corev1.NodePIDPressure: corev1.ConditionFalse, corev1.NodeNetworkUnavailable: corev1.ConditionFalse,
	nodecontract.HardwareCondition: corev1.ConditionTrue,
}

// place is an offering for a canary node.
type place struct {
	pool     *snapshot.Pool
	offering *snapshot.Offering
}

// places returns the offerings for a canary node: on-demand before reserved, whose slots are for pods, and before spot, which may be interrupted during the test, and then
// the cheapest first. If there are none, it returns why.
func places(r *v1alpha1.GPUImageRollout, view *snapshot.View, architecture string) ([]place, string) {
	var all []place
	why := map[string]bool{}
	for j := range view.Offerings {
		offering, planned := view.Offerings[j], &view.Snapshot.Offerings[j]
		pool := &view.Pools[planned.Pool]
		if pool.Class.Spec.NodeClassRef != r.Spec.NodeClassRef || offering.Labels[corev1.LabelArchStable] != architecture {
			continue
		}
		if reason := whyClosed(view, planned); reason != "" {
			why[reason] = true
			continue
		}
		all = append(all, place{pool, offering})
	}
	if len(all) == 0 {
		if len(why) == 0 {
			return nil, fmt.Sprintf("no NodePool of %s can launch a machine for %s", referenceText(r.Spec.NodeClassRef), architecture)
		}
		return nil, strings.Join(slices.Sorted(maps.Keys(why)), "; ")
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.offering.MicroUSDPerHour, b.offering.MicroUSDPerHour), strings.Compare(a.offering.Type.Name, b.offering.Type.Name))
	})
	return all, ""
}

func rank(p place) int {
	return slices.Index([]string{karpv1.CapacityTypeSpot, karpv1.CapacityTypeReserved, karpv1.CapacityTypeOnDemand}, p.offering.CapacityType)
}

// whyClosed returns why an offering cannot be launched now, or "" if it can.
func whyClosed(view *snapshot.View, o *planner.Offering) string {
	pool, np := &view.Snapshot.Pools[o.Pool], view.Pools[o.Pool].NodePool
	left, takes := pool.Remaining, o.Physical
	switch {
	case pool.Closed != nil:
		return pool.Closed.Message
	case unhealthy(np) != "":
		return unhealthy(np)
	case o.Unavailable != nil:
		return o.Unavailable.Message
	case takes.MilliCPU > left.MilliCPU || takes.MemoryBytes > left.MemoryBytes || takes.GPUs > left.GPUs || takes.Replicas > left.Replicas || takes.Nodes > left.Nodes:
		return fmt.Sprintf("the limits of NodePool %s leave no room for another machine", np.Name)
	}
	for _, d := range o.Draws {
		if s := view.Stocks[d.Stock]; s.Left < d.Amount {
			return fmt.Sprintf("%s has no room for another machine: end one of its machines, or allow on-demand in NodePool %s", s.Name, np.Name)
		}
	}
	return ""
}

// unhealthy returns a message if a pool's machines do not expose their replicas, whatever their image. Otherwise it returns "".
func unhealthy(np *karpv1.NodePool) string {
	if c := facts.Condition(np.Status.Conditions, v1alpha1.ConditionReplicasHealthy); c != nil && !c.IsTrue() {
		return fmt.Sprintf("machines of NodePool %s do not expose their replicas with the current image either", np.Name)
	}
	return ""
}

// noPlace returns why no canary of the candidate can be launched, by architecture.
func (c *Controller) noPlace(r *v1alpha1.GPUImageRollout, w *world) map[string]rollout.Fault {
	none := map[string]rollout.Fault{}
	view := snapshot.Build(w.cluster)
	for _, architecture := range w.seen.Architectures {
		if c.checkImage(r) == "" {
			none[architecture] = rollout.Fault{Reason: "NoCheckImage", Message: "there is no container image to check GPUs with: set spec.check.image, or the controller's --gpu-check-image"}
			continue
		}
		if _, why := places(r, &view, architecture); why != "" {
			none[architecture] = rollout.Fault{Reason: "NoCanaryMachine", Message: why}
		}
	}
	return none
}

func (c *Controller) checkImage(r *v1alpha1.GPUImageRollout) string {
	return cmp.Or(r.Spec.Check.Image, c.CheckImage)
}

// checkArgs returns the arguments of the check. They are for the agent's image, which is the default image of the check.
func (c *Controller) checkArgs(r *v1alpha1.GPUImageRollout) []string {
	if r.Spec.Check.Image == "" && len(r.Spec.Check.Command) == 0 {
		return []string{nodecontract.CheckCommand}
	}
	return nil
}

// canary returns the state of the canary that the status names.
func (c *Controller) canary(ctx context.Context, r *v1alpha1.GPUImageRollout, w *world) (rollout.Canary, error) {
	var seen rollout.Canary
	name := r.Status.Canary.Name
	class := &unstructured.Unstructured{}
	class.SetGroupVersionKind(w.class.object.GroupVersionKind())
	switch err := c.Live.Get(ctx, client.ObjectKey{Name: name}, class); {
	case apierrors.IsNotFound(err):
		seen.ClassMessage = "it is not there yet"
	case err != nil:
		return seen, fmt.Errorf("reading %s %s: %w", class.GetKind(), name, err)
	default:
		state := facts.NodeClassStateOf(class)
		seen.ClassReady, seen.ClassMessage = state.Ready, state.Message
	}
	for _, m := range records.Canaries(w.cluster) {
		if m.Claim.Name == name && m.Claim.DeletionTimestamp.IsZero() {
			seeMachine(&seen, &m, w.cluster)
		}
	}
	pod := &corev1.Pod{}
	switch err := c.Live.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, pod); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return seen, fmt.Errorf("reading pod %s/%s: %w", c.Namespace, name, err)
	default:
		seen.Check, seen.CheckMessage = checkOf(pod)
	}
	return seen, nil
}

func seeMachine(seen *rollout.Canary, m *records.Machine, cluster *facts.Cluster) {
	seen.Claimed, seen.Image = true, m.Claim.Status.ImageID
	switch launched := facts.Condition(m.Claim.Status.Conditions, karpv1.ConditionTypeLaunched); {
	case launched.IsTrue():
		seen.Launched = &launched.LastTransitionTime.Time
	case launched != nil && launched.Reason != "AwaitingReconciliation":
		seen.LaunchError = fmt.Sprintf("%s: %s", launched.Reason, launched.Message)
	}
	seen.Resource, seen.Promised = string(m.Promise.Resource), m.Promise.Replicas()
	for i := range cluster.NodePools {
		if cluster.NodePools[i].Name == m.Pool() {
			seen.PoolUnwell = unhealthy(&cluster.NodePools[i])
		}
	}
	if !m.Registered() {
		return
	}
	seen.Node, seen.Exposed = m.Node.Name, m.Exposed()
	for _, c := range m.Node.Status.Conditions {
		if want, judged := healthyConditions[c.Type]; judged && c.Status != want {
			seen.Unwell = fmt.Sprintf("its condition %s is %s: %s %s", c.Type, c.Status, c.Reason, c.Message)
		}
	}
}

// unstartable lists the waiting reasons that the container causes, and not the machine.
var unstartable = []string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"}

func checkOf(pod *corev1.Pod) (rollout.Check, string) {
	message := pod.Status.Message
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.State.Terminated != nil:
			message = fmt.Sprintf("exit status %d %s %s", s.State.Terminated.ExitCode, s.State.Terminated.Reason, s.State.Terminated.Message)
		case s.State.Waiting != nil && slices.Contains(unstartable, s.State.Waiting.Reason):
			return rollout.CheckUnstartable, s.State.Waiting.Reason + ": " + s.State.Waiting.Message
		case s.State.Waiting != nil:
			message = s.State.Waiting.Reason + ": " + s.State.Waiting.Message
		}
	}
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		return rollout.CheckPassed, ""
	case corev1.PodFailed:
		return rollout.CheckFailed, strings.TrimSpace(cmp.Or(message, pod.Status.Reason, "see the log of the pod"))
	default:
		return rollout.CheckRunning, strings.TrimSpace(cmp.Or(message, "the pod has not ended"))
	}
}

// claim returns the canary's NodeClaim. After an inconclusive canary it uses another offering, if there is one.
func (c *Controller) claim(r *v1alpha1.GPUImageRollout, w *world) (*karpv1.NodeClaim, error) {
	canary, view := r.Status.Canary, snapshot.Build(w.cluster)
	all, why := places(r, &view, canary.Architecture)
	if len(all) == 0 {
		return nil, fmt.Errorf("launching the canary node of GPUImageRollout %s: %s", r.Name, why)
	}
	p := all[int(r.Status.Candidate.Attempts)%len(all)]
	claim := render.Canary(p.pool, p.offering, r, canary.Name, lifetime(r))
	claim.OwnerReferences = owned(r)
	return claim, nil
}

// lifetime returns how long a canary may be needed, with a margin.
func lifetime(r *v1alpha1.GPUImageRollout) time.Duration {
	const margin = time.Hour
	soak, _ := time.ParseDuration(r.Spec.Soak)
	test, _ := time.ParseDuration(r.Spec.CanaryTimeout)
	return soak + test + margin
}

// nobody is a user and group ID that owns nothing.
const nobody int64 = 65532

// checkPod returns a pod that requests one replica of the canary node and succeeds if its GPU works. It meets the restricted pod security standard.
func (c *Controller) checkPod(r *v1alpha1.GPUImageRollout, w *world) *corev1.Pod {
	canary := r.Status.Canary
	limit := w.seen.Now
	if canary.Launched != nil {
		timeout, _ := time.ParseDuration(r.Spec.CanaryTimeout)
		limit = canary.Launched.Add(timeout)
	}
	requests := render.CheckRequests()
	one := resource.MustParse("1")
	name := corev1.ResourceName(w.seen.Canary.Resource)
	requests[name] = one
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: canary.Name, OwnerReferences: owned(r),
			Labels: map[string]string{v1alpha1.CanaryLabel: r.Name, "app.kubernetes.io/name": "karve-gpu-check"},
		},
		Spec: corev1.PodSpec{
			NodeSelector:                 map[string]string{v1alpha1.CanaryLabel: r.Name},
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: new(false),
			EnableServiceLinks:           new(false),
			ActiveDeadlineSeconds:        new(max(int64(limit.Sub(w.seen.Now).Seconds()), 1)),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(nobody), RunAsGroup: new(nobody),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "check", Image: c.checkImage(r), Command: r.Spec.Check.Command, Args: c.checkArgs(r),
				Resources: corev1.ResourceRequirements{Requests: requests, Limits: corev1.ResourceList{name: one}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
			}},
		},
	}
}
