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

// stand creates what the adversary leaves in the cluster while everything else happens: pods that can never run, and objects of others. Its pods that have to run are
// there until the first fault.
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

// foreign are objects of others: Nodes that claim to be more than any machine is, and NodePools, NodeClaims and classes that lead nowhere.
func foreign(of string) []client.Object {
	labels := map[string]string{adversaryLabel: of}
	huge := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, v1alpha1.ResourceGPUShared, v1alpha1.ResourceGPU} {
		huge[name] = resource.MustParse(most)
	}
	var objects []client.Object
	for i, edit := range []func(*corev1.Node){
		func(*corev1.Node) {},
		func(n *corev1.Node) { n.Annotations["kwok.x-k8s.io/node"] = "fake" }, // It becomes ready.
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
			// Pods of a pool that works tolerate it.
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

// adversarys says whether an object is the adversary's.
func adversarys(o client.Object) bool { return o.GetLabels()[adversaryLabel] != "" }

// withdraw deletes what the adversary created for a fault, or what stands.
func (w *world) withdraw(ctx context.Context, of string) error {
	for _, o := range []client.Object{
		&corev1.Pod{}, &policyv1.PodDisruptionBudget{}, &corev1.Event{}, &karpv1.NodeClaim{}, &karpv1.NodePool{}, &v1alpha1.GPUNodeClass{}, &corev1.Node{},
	} {
		options := []client.DeleteAllOfOption{client.MatchingLabels{adversaryLabel: of}}
		switch o.(type) {
		case *corev1.Pod:
			// Nobody ends pods on Nodes that are not heard of.
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

// beset creates hostile pods of all kinds for a while: by the Node, by the scheduler, and for nobody. Those that run hold machines as any pod does.
func (c *chaos) beset(ctx context.Context, a act, pool string) (string, error) {
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

// crowd creates many pods for a while that are each of a class of their own.
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

// meddle creates objects of others for a while, and tells of every machine of ours, as it is made, that EC2 refused it and took it back.
func (c *chaos) meddle(ctx context.Context, a act) (string, error) {
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
	told := map[string]bool{}
	c.meanwhile(ctx, a.number, func(ctx context.Context) error {
		p, err := c.picture(ctx)
		if err != nil {
			return err
		}
		for i := range p.claims {
			claim := &p.claims[i]
			for _, reason := range []string{"InsufficientCapacityError", "SpotInterrupted"} {
				if key := string(claim.UID) + reason; !told[key] {
					told[key] = true
					if err := c.create(ctx, forged(of, claim, reason, len(told))); err != nil {
						return err
					}
				}
			}
		}
		return nil
	})
	return "", nil
}

// believed notes what the controller takes for refused by EC2 that only a tenant said was.
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
				c.guard.breach("the controller believes a tenant that %s in %s is refused: %s", r.InstanceType, r.Zone, r.Reason)
			}
		}
	}
	return nil
}

// forged is an event that a tenant made up about a machine.
func forged(of string, claim *karpv1.NodeClaim, reason string, n int) *corev1.Event {
	now := metav1.NewTime(time.Now())
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("forged-%s-%d", of, n), Labels: map[string]string{adversaryLabel: of}},
		InvolvedObject: corev1.ObjectReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID},
		Reason:         reason, Type: corev1.EventTypeWarning, Message: "NodeClaim " + claim.Name + " event: all requested instance types were unavailable during launch",
		Source: corev1.EventSource{Component: "tenant"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
}

// lame has the machines that a pool gets for a while be of no use for ever, by a rule of the simulator's. Some pods are asked for, so that machines come.
func (c *chaos) lame(ctx context.Context, a act, pool, rule string) (string, error) {
	what, err := c.rule(ctx, a, pool, rule)
	if err != nil || a.ends {
		return what, err
	}
	return what, c.grow(ctx, pool)
}

// grow has an app of a pool want as many pods as it ever does.
func (c *chaos) grow(ctx context.Context, pool string) error {
	i := slices.IndexFunc(apps, func(a app) bool { return a.pool == pool })
	return c.patch(ctx, apps[i].owner(), fmt.Sprintf(`{"spec":{"replicas":%d}}`, apps[i].most))
}

// dieYoung has a kubelet die for good whose replicas are there and whose machine has not started: another agent keeps the machines of a pool from starting for a
// while, and at the end one of them is never heard of again.
func (c *chaos) dieYoung(ctx context.Context, a act, pool string) (string, error) {
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
	return c.lame(ctx, a, pool, `{keepTaint: true}`)
}

// debug has somebody look at Nodes for a while, with a pod on each that tolerates everything and that nothing owns: on any Node, and on all that come to a pool while
// its machines never get replicas.
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
	what, err := c.lame(ctx, a, pool, `{offer: none, forever: true}`)
	return fmt.Sprintf("%s, and on %v", what, names), err
}

// debugger is a pod such as kubectl debug node makes.
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

// lies are what agents say of the replicas of a pool's nodes.
var lies = []string{`{offer: 4}`, `{offer: 40}`, `{flap: 1s}`, `{flap: 6s}`, `{offer: 1000000}`}

// memories are what one of them says of the memory of its GPUs.
var memories = []string{"0", "1", most, "much"}

func TestLiesAreSuchAsAnAgentCanTell(t *testing.T) {
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

// lie has the agents of a pool say for a while that there are fewer or more replicas than there are, or now these and now those; and those of one machine that it has
// GPUs without number, which fail and recover all the time.
func (c *chaos) lie(ctx context.Context, a act, pool string) (string, error) {
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

// condition has a Node say whether its GPUs work.
func (c *chaos) condition(ctx context.Context, node string, is corev1.ConditionStatus) error {
	now := time.Now().UTC().Format(time.RFC3339)
	patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":%q,"lastTransitionTime":%q}]}}`, nodecontract.HardwareCondition, is, nodecontract.ReasonHealthy, now)
	return c.insist(ctx, func(ctx context.Context) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		return client.IgnoreNotFound(c.api.Status().Patch(ctx, n, client.RawPatch(types.StrategicMergePatchType, patch)))
	})
}

// nodesOf are the Nodes of a pool.
func (c *chaos) nodesOf(ctx context.Context, pool string) ([]corev1.Node, error) {
	p, err := c.picture(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(p.nodes, func(n corev1.Node) bool { return n.Labels[karpv1.NodePoolLabelKey] != pool }), nil
}

// meanwhile does something twice a second until the fault ends.
func (c *chaos) meanwhile(ctx context.Context, number int, do func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := do(ctx); err != nil && ctx.Err() == nil {
				c.tell("#%d: %v", number, err)
			}
			_ = pause(ctx, 500*time.Millisecond)
		}
	}()
	c.stops[number] = func() {
		cancel()
		<-done
	}
}

// cease ends what happens meanwhile.
func (c *chaos) cease(number int) {
	if stop := c.stops[number]; stop != nil {
		stop()
		delete(c.stops, number)
	}
}
