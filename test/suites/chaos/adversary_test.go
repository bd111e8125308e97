package chaos

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster/simulator"
)

// stand creates the adversary's objects that outlast all faults: pods that can never run, and objects of other components. Its pods that have to run exist
// until the first fault.
func (w *world) stand(ctx context.Context) error {
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant}}}
	for name, value := range priorities {
		objects = append(objects, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: new(corev1.PreemptNever)})
	}
	for i, h := range hostiles {
		pool := pools[i%len(pools)].name
		switch {
		case h.runs:
			objects = append(objects, h.pod(early, pool))
		case !h.fits:
			objects = append(objects, h.pod(standing, pool))
		}
	}
	for i := range 4 {
		objects = append(objects, classOf(early, steady, i))
	}
	for _, o := range append(objects, foreign(standing)...) {
		if err := w.create(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// foreign returns objects of other components: Nodes that claim to be larger than any machine, and NodePools, NodeClaims and classes with dangling references.
func foreign(of string) []client.Object {
	labels := map[string]string{adversaryLabel: of}
	huge := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		huge[name] = resource.MustParse(most)
	}
	var objects []client.Object
	for i, edit := range []func(*corev1.Node){
		func(*corev1.Node) {},
		func(n *corev1.Node) { n.Annotations["kwok.x-k8s.io/node"] = "fake" }, // kwok makes it ready.
		func(n *corev1.Node) { n.Labels[v1alpha1.GPUNodeClassLabel] = steady },
	} {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("foreign-%d-%s", i, of),
				Labels: map[string]string{
					adversaryLabel: of, "nvidia.com/gpu.count": "1099511627776", "nvidia.com/gpu.memory": most, "nvidia.com/gpu.replicas": "1099511627776",
					corev1.LabelInstanceTypeStable: "g4dn.xlarge", corev1.LabelTopologyZone: "us-east-1a", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
				},
				Annotations: map[string]string{
					nodecontract.GPUsAnnotation: "1099511627776", nodecontract.ReplicasPerGPUAnnotation: most, nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared,
					nodecontract.UnusedSinceAnnotation: "{", v1alpha1.IdleSinceAnnotation: "yesterday", v1alpha1.ReplicasShortSinceAnnotation: most,
				},
			},
			Spec:   corev1.NodeSpec{Unschedulable: true},
			Status: corev1.NodeStatus{Capacity: huge, Allocatable: huge},
		}
		edit(n)
		objects = append(objects, n)
	}
	nobody := map[string]any{"group": "example.com", "kind": "Nobody", "name": "nobody"}
	ours := map[string]any{"group": v1alpha1.Group, "kind": v1alpha1.Kind, "name": "nobody-" + of}
	anything := []any{map[string]any{"key": karpv1.CapacityTypeLabelKey, "operator": "Exists"}}
	for name, ref := range map[string]map[string]any{"foreign-": nobody, "broken-": ours} {
		objects = append(objects, object("karpenter.sh/v1", "NodePool", name+of, map[string]any{
			"weight": int64(100), "limits": map[string]any{"cpu": most, "memory": most, v1alpha1.ResourceGPU: most},
			// Pods of a working pool tolerate its taint.
			"template": map[string]any{"spec": map[string]any{
				"nodeClassRef": ref, "requirements": anything, "taints": []any{map[string]any{"key": v1alpha1.ResourceGPUShared, "value": steady, "effect": "NoSchedule"}},
			}},
		}))
	}
	for _, pool := range []string{"foreign-" + of, steady} {
		claim := object("karpenter.sh/v1", "NodeClaim", "foreign-"+pool+"-"+of, map[string]any{
			"nodeClassRef": nobody, "requirements": anything, "resources": map[string]any{"requests": map[string]any{"cpu": most, v1alpha1.ResourceGPUShared: most}},
		})
		claim.SetLabels(map[string]string{karpv1.NodePoolLabelKey: pool})
		objects = append(objects, claim)
	}
	objects = append(objects, &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "nobody-" + of}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef: v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "nobody"},
		Sharing:      v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(128))},
	}})
	for _, o := range objects {
		if o.GetLabels() == nil {
			o.SetLabels(map[string]string{})
		}
		all := o.GetLabels()
		all[adversaryLabel] = labels[adversaryLabel]
		o.SetLabels(all)
	}
	return objects
}

// isAdversarial reports whether an object belongs to the adversary.
func isAdversarial(o client.Object) bool { return o.GetLabels()[adversaryLabel] != "" }

// withdraw deletes the objects of the adversary with a label value: the number of a fault, standing or early.
func (w *world) withdraw(ctx context.Context, of string) error {
	for _, o := range []client.Object{
		&corev1.Pod{}, &policyv1.PodDisruptionBudget{}, &corev1.Event{}, &karpv1.NodeClaim{}, &karpv1.NodePool{}, &v1alpha1.GPUNodeClass{}, &corev1.Node{},
	} {
		options := []client.DeleteAllOfOption{client.MatchingLabels{adversaryLabel: of}}
		switch o.(type) {
		case *corev1.Pod:
			// No kubelet terminates the pods of Nodes that do not report.
			options = append(options, client.InNamespace(tenant), client.GracePeriodSeconds(0))
		case *policyv1.PodDisruptionBudget:
			options = append(options, client.InNamespace(tenant))
		case *corev1.Event:
			options = append(options, client.InNamespace(metav1.NamespaceDefault))
		}
		if err := w.insist(ctx, func(ctx context.Context) error { return w.api.DeleteAllOf(ctx, o, options...) }); err != nil {
			return fmt.Errorf("deleting the adversary's %T: %w", o, err)
		}
	}
	return nil
}

// createHostilePods creates hostile pods of all kinds for a while: bound to a Node, for the scheduler, and for no scheduler. The running ones keep machines in use as any
// pod does.
func (c *chaos) createHostilePods(ctx context.Context, a act, pool string) (string, error) {
	of := strconv.Itoa(a.number)
	if a.ends {
		return "", c.withdraw(ctx, of)
	}
	objects := []client.Object{&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "all-" + of, Labels: map[string]string{adversaryLabel: of}},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{}},
	}}
	for i := range 10 {
		objects = append(objects, hostiles[(a.pick+i)%len(hostiles)].pod(of, pool))
	}
	nodes, err := c.nodesOf(ctx, pool)
	if err != nil {
		return "", err
	}
	for i, n := range nodes[:min(2, len(nodes))] {
		p := hostile{name: fmt.Sprintf("bound-%d", i), edit: all(requests(corev1.ResourceCPU, "1000"), limits(v1alpha1.ResourceGPUShared, "1000"))}.pod(of, pool)
		p.Spec.Tolerations, p.Spec.NodeName = nil, n.Name
		objects = append(objects, p)
	}
	for _, o := range objects {
		if err := c.create(ctx, o); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf(": %d pods for %s from %s on", len(objects)-1, pool, hostiles[a.pick%len(hostiles)].name), nil
}

// crowd creates many pods for a while, each in a class of its own.
func (c *chaos) crowd(ctx context.Context, a act, pool string) (string, error) {
	of := strconv.Itoa(a.number)
	if a.ends {
		return "", c.withdraw(ctx, of)
	}
	n := 8
	if c.long {
		n = 40
	}
	for i := range n {
		if err := c.create(ctx, classOf(of, pool, i)); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf(": %d pods for %s", n, pool), nil
}

// createForeignObjects creates objects of other components for a while. It also forges events for each new claim, which say that EC2 refused the machine and interrupted it.
func (c *chaos) createForeignObjects(ctx context.Context, a act) (string, error) {
	of := strconv.Itoa(a.number)
	if a.ends {
		c.cease(a.number)
		if err := c.believed(ctx); err != nil {
			return "", err
		}
		return "", c.withdraw(ctx, of)
	}
	for _, o := range foreign(of) {
		if err := c.create(ctx, o); err != nil {
			return "", err
		}
	}
	forgedFor := map[string]bool{}
	c.meanwhile(ctx, a.number, func(ctx context.Context) error {
		p, err := c.picture(ctx)
		if err != nil {
			return err
		}
		for i := range p.claims {
			claim := &p.claims[i]
			for _, reason := range []string{"InsufficientCapacityError", "SpotInterrupted"} {
				if key := string(claim.UID) + reason; !forgedFor[key] {
					forgedFor[key] = true
					if err := c.create(ctx, forged(of, claim, reason, len(forgedFor))); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	return "", nil
}

// believed records a breach for each refusal that the controller believes only because of a forged event.
func (c *chaos) believed(ctx context.Context) error {
	var classes v1alpha1.GPUNodeClassList
	if err := c.insist(ctx, func(ctx context.Context) error { return c.api.List(ctx, &classes) }); err != nil {
		return err
	}
	for i := range classes.Items {
		for _, r := range classes.Items[i].Status.RefusedOfferings {
			forged := r.Reason == v1alpha1.RefusalInsufficientCapacity && !slices.Contains(scarce, r.InstanceType) ||
				r.Reason == v1alpha1.RefusalSpotInterrupted && !c.interrupted[r.InstanceType+" "+r.Zone]
			if forged {
				c.guard.breach("the controller believes a forged event that %s in %s is refused: %s", r.InstanceType, r.Zone, r.Reason)
			}
		}
	}
	return nil
}

// forged returns an event about a claim that a tenant made up.
func forged(of string, claim *karpv1.NodeClaim, reason string, n int) *corev1.Event {
	now := metav1.NewTime(time.Now())
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("forged-%s-%d", of, n), Labels: map[string]string{adversaryLabel: of}},
		InvolvedObject: corev1.ObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID},
		Reason:         reason, Type: corev1.EventTypeWarning, Message: "NodeClaim " + claim.Name + " event: all requested instance types were unavailable during launch",
		Source: corev1.EventSource{Component: "tenant"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// breakMachines makes the machines that a pool gets for a while permanently useless, through a rule of the simulator. It scales up an app so that machines are launched.
func (c *chaos) breakMachines(ctx context.Context, a act, pool, rule string) (string, error) {
	what, err := c.rule(ctx, a, pool, rule)
	if err != nil || a.ends {
		return what, err
	}
	return what, c.grow(ctx, pool)
}

// grow scales an app of a pool to its maximum.
func (c *chaos) grow(ctx context.Context, pool string) error {
	i := slices.IndexFunc(apps, func(a app) bool { return a.pool == pool })
	return c.patch(ctx, apps[i].owner(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, apps[i].most))
}

// killUninitialized kills a kubelet for good after its replicas are there but before its node is initialized. The startup taint of another agent keeps the nodes of a
// pool from being initialized for a while, and at the end one of them stops reporting.
func (c *chaos) killUninitialized(ctx context.Context, a act, pool string) (string, error) {
	what := ": there is none"
	if a.ends {
		nodes, err := c.nodesOf(ctx, pool)
		if err != nil {
			return "", err
		}
		for i := range nodes {
			n := &nodes[i]
			replicas := n.Status.Allocatable[v1alpha1.ResourceGPUShared]
			if n.Labels[karpv1.NodeInitializedLabelKey] == "" && !replicas.IsZero() {
				what = ": " + n.Name
				c.guard.kills(n.Name)
				if err := c.insist(ctx, func(ctx context.Context) error { return c.Machines().Silence(ctx, n.Name) }); err != nil {
					return "", err
				}
				break
			}
		}
		_, err = c.rule(ctx, a, pool, "")
		return what, err
	}
	return c.breakMachines(ctx, a, pool, `{keepTaint: true}`)
}

// debug creates debugger pods for a while, which tolerate everything and have no owner. One runs on any Node, others on the Nodes that come to a pool whose
// machines never get replicas.
func (c *chaos) debug(ctx context.Context, a act, pool string) (string, error) {
	of := strconv.Itoa(a.number)
	if a.ends {
		c.cease(a.number)
		if _, err := c.rule(ctx, a, pool, ""); err != nil {
			return "", err
		}
		return "", c.withdraw(ctx, of)
	}
	i, ok, err := c.machine(ctx, a.pick, func(aws.Instance) bool { return true })
	if err != nil {
		return "", err
	}
	var names []string
	if ok {
		names = append(names, i.PrivateDNS)
	}
	for _, number := range slices.Sorted(maps.Keys(c.victims)) {
		if node := c.victims[number]; strings.HasPrefix(node, "ip-") && len(names) < 2 && !slices.Contains(names, node) {
			names = append(names, node)
		}
	}
	for _, name := range names {
		if err := c.create(ctx, debugger(of, name)); err != nil {
			return "", err
		}
	}
	const broken = 2
	seen := map[string]bool{}
	c.meanwhile(ctx, a.number, func(ctx context.Context) error {
		nodes, err := c.nodesOf(ctx, pool)
		if err != nil {
			return err
		}
		for i := range nodes {
			n := &nodes[i]
			if n.Labels[karpv1.NodeRegisteredLabelKey] == "" || n.Labels[karpv1.NodeInitializedLabelKey] != "" || seen[n.Name] || len(seen) == broken {
				continue
			}
			seen[n.Name] = true
			if err := c.create(ctx, debugger(of, n.Name)); err != nil {
				return err
			}
		}
		return nil
	})
	what, err := c.breakMachines(ctx, a, pool, `{offer: none, forever: true}`)
	return fmt.Sprintf("%s, and on %v", what, names), err
}

// debugger returns a pod as kubectl debug node creates it.
func debugger(of, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: "node-debugger-" + of + "-" + node, Labels: map[string]string{adversaryLabel: of}},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, RestartPolicy: corev1.RestartPolicyNever,
			HostPID: true, HostNetwork: true, Containers: []corev1.Container{{Name: "debugger", Image: "example.com/nothing"}},
			TerminationGracePeriodSeconds: new(int64(1)),
		},
	}
}

// lies are the rules by which agents report wrong numbers of replicas.
var lies = []string{`{offer: 4}`, `{offer: 40}`, `{flap: 1s}`, `{flap: 6s}`, `{offer: 1000000}`}

// memories are the values of GPU memory that a lying agent reports.
var memories = []string{"0", "1", most, "much"}

func TestFalseReportsAreValidAgentOutput(t *testing.T) {
	t.Parallel()
	for _, rule := range lies {
		if _, err := simulator.ParseRules(&corev1.ConfigMap{Data: map[string]string{steady: rule}}); err != nil {
			t.Error(err)
		}
	}
	for _, memory := range memories {
		if wrong := validation.IsValidLabelValue(memory); len(wrong) > 0 {
			t.Errorf("%q is no label: %s", memory, wrong)
		}
	}
}

// reportFalsely makes the agents of a pool report too few, too many or changing numbers of replicas for a while. The agent of one machine also reports a huge number of
// GPUs, whose health flaps all the time.
func (c *chaos) reportFalsely(ctx context.Context, a act, pool string) (string, error) {
	what, err := c.rule(ctx, a, pool, lies[a.pick%len(lies)])
	if err != nil {
		return "", err
	}
	if a.ends {
		c.cease(a.number)
		node := c.liars[a.number]
		if node == "" {
			return what, nil
		}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		if err := c.patch(ctx, n, `{"metadata":{"labels":{"nvidia.com/gpu.count":null,"nvidia.com/gpu.memory":null}}}`); err != nil {
			return "", err
		}
		return what + ", " + node, c.condition(ctx, node, corev1.ConditionTrue)
	}
	nodes, err := c.nodesOf(ctx, pool)
	if err != nil || len(nodes) == 0 {
		return what, err
	}
	node := nodes[a.pick%len(nodes)].Name
	c.liars[a.number] = node
	memory := memories[a.pick%len(memories)]
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	if err := c.patch(ctx, n, fmt.Sprintf(`{"metadata":{"labels":{"nvidia.com/gpu.count":"1099511627776","nvidia.com/gpu.memory":%q}}}`, memory)); err != nil {
		return "", err
	}
	healthy := true
	c.meanwhile(ctx, a.number, func(ctx context.Context) error {
		healthy = !healthy
		is := corev1.ConditionFalse
		if healthy {
			is = corev1.ConditionTrue
		}
		return c.condition(ctx, node, is)
	})
	return fmt.Sprintf("%s: %s, and %s", what, lies[a.pick%len(lies)], node), nil
}

// condition sets the condition of a Node that says whether its GPUs work.
func (c *chaos) condition(ctx context.Context, node string, is corev1.ConditionStatus) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"lastTransitionTime":%q}]}}`, nodecontract.HardwareCondition, is, nodecontract.ReasonHealthy, now)
	return c.insist(ctx, func(ctx context.Context) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		return client.IgnoreNotFound(c.api.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, patch)))
	})
}

// nodesOf returns the Nodes of a pool.
func (c *chaos) nodesOf(ctx context.Context, pool string) ([]corev1.Node, error) {
	p, err := c.picture(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(p.nodes, func(n corev1.Node) bool { return n.Labels[karpv1.NodePoolLabelKey] != pool }), nil
}

// meanwhile calls do twice a second until the fault ends.
func (c *chaos) meanwhile(ctx context.Context, number int, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := do(ctx); err != nil && ctx.Err() == nil {
				c.logf("#%d: %v", number, err)
			}
			_ = smithytime.SleepWithContext(ctx, 500*time.Millisecond)
		}
	}()
	c.stops[number] = func() {
		cancel()
		<-done
	}
}

// cease ends the background action of a fault.
func (c *chaos) cease(number int) {
	if stop := c.stops[number]; stop != nil {
		stop()
		delete(c.stops, number)
	}
}
