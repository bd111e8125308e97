package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/simulator"
	"karve.sh/karve/test/harness/karve"
)

const (
	usualBudget   = "50%"
	usualIdle     = "3s"
	usualReplicas = 10
)

var (
	// scarce are the types that may be refused, the cheapest of their families.
	scarce = []string{"g4dn.xlarge", "g4dn.2xlarge", "g5.xlarge"}
	// otherBudgets, otherIdle and otherReplicas are settings that a user tries for a while.
	otherBudgets  = []string{"0", "1", "100%"}
	otherIdle     = []string{v1alpha1.IdleNever, "1s", "10s"}
	otherReplicas = []int{8, 12, 20}
	// images are the images that an EC2NodeClass selects, in turn.
	images = []string{"al2023@v20260815", "al2023@v20260801"}
	// skews are the offsets by which the controller's past timestamps are shifted.
	skews = []time.Duration{-time.Hour, -10 * time.Minute, -time.Minute, 20 * time.Second, 5 * time.Minute, time.Hour}
)

// chaos plays a script.
type chaos struct {
	*world
	// victims are the machines and Nodes of the active faults, by the numbers of the faults.
	victims map[int]string
	// turns is how often images and templates were changed.
	turns int
	// liars are the Nodes whose agents lie, and stops end the background actions, by the numbers of the faults.
	liars map[int]string
	// interrupted are the types and zones of interrupted spot machines.
	interrupted map[string]bool
	stops       map[int]func()
}

// play performs the acts of a script, each at its time, or as soon as the act before it is done.
func (c *chaos) play(ctx context.Context, acts []act) error {
	began := time.Now()
	for _, a := range acts {
		if err := smithytime.SleepWithContext(ctx, time.Until(began.Add(a.at))); err != nil {
			return err
		}
		what, err := c.perform(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
		c.logf("%s%s", a, what)
	}
	return nil
}

// perform performs an act and returns what it acted on.
func (c *chaos) perform(ctx context.Context, a act) (string, error) {
	pool := pools[a.pick%len(pools)].name
	switch a.fault {
	case killController:
		return c.kill(ctx, a.pick, func(context.Context) (string, error) { return "", nil })
	case skewClock:
		return c.kill(ctx, a.pick, func(ctx context.Context) (string, error) { return c.skew(ctx, skews[a.pick%len(skews)]) })
	case restartAPIServer:
		return c.restartAPIServer(ctx, time.Duration(a.pick%3000)*time.Millisecond)
	case refuseType:
		return c.refuse(a)
	case throttleEC2:
		return c.ec2Fault(a, c.AWS().Throttle)
	case interruptSpot:
		return c.interrupt(ctx, a)
	case stopMachine:
		return c.stop(ctx, a)
	case silenceKubelet:
		return c.silence(ctx, a)
	case crashAgents:
		return c.rule(ctx, a, pool, `{offer: none}`)
	case delayAgents:
		return c.rule(ctx, a, pool, `{delay: 8s}`)
	case cutEC2:
		return c.ec2Fault(a, c.AWS().Cut)
	case hangEC2:
		return c.ec2Fault(a, c.AWS().Hang)
	case besetTenant:
		return c.createHostilePods(ctx, a, pool)
	case crowdTenant:
		return c.crowd(ctx, a, pool)
	case meddleOthers:
		return c.createForeignObjects(ctx, a)
	case keepTaint:
		return c.breakMachines(ctx, a, pool, `{keepTaint: true, forever: true}`)
	case dieYoung:
		return c.killUninitialized(ctx, a, pool)
	case debugNodes:
		return c.debug(ctx, a, pool)
	case lieOfReplicas:
		return c.reportFalsely(ctx, a, pool)
	case editBudget:
		budget := otherBudgets[a.pick%len(otherBudgets)]
		if a.ends {
			budget = usualBudget
		}
		return ": " + pool + " " + budget, c.budget(ctx, pool, budget)
	case editClass:
		idle, replicas := otherIdle[a.pick%len(otherIdle)], otherReplicas[a.pick/7%len(otherReplicas)]
		if a.ends {
			idle, replicas = usualIdle, usualReplicas
		}
		return fmt.Sprintf(": %s %d replicas, idle after %s", pool, replicas, idle), c.class(ctx, pool, idle, replicas)
	case drift:
		c.turns++
		np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
		return fmt.Sprintf(": %s generation %d", pool, c.turns), c.patch(ctx, np, fmt.Sprintf(`{"spec":{"template":{"metadata":{"labels":{%q:"%d"}}}}}`, generationLabel, c.turns))
	case changeImage:
		c.turns++
		image := images[c.turns%len(images)]
		return ": " + pool + " " + image, c.patch(ctx, object("karpenter.k8s.aws/v1", "EC2NodeClass", pool, nil), fmt.Sprintf(`{"spec":{"amiSelectorTerms":[{"alias":%q}]}}`, image))
	}
	return "", fmt.Errorf("nobody knows how to do that")
}

// kill kills a controller, calls meanwhile, and starts the controller again.
func (c *chaos) kill(ctx context.Context, pick int, meanwhile func(context.Context) (string, error)) (string, error) {
	c.lives.Lock()
	defer c.lives.Unlock()
	name := c.controllers[pick%len(c.controllers)].Name
	if err := c.KillComponent(name); err != nil {
		return ": " + err.Error(), nil // It has just ended by itself.
	}
	what, err := meanwhile(ctx)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(": %s%s", name, what), c.insist(ctx, func(ctx context.Context) error { return c.StartComponent(ctx, name) })
}

// times are the annotations that hold timestamps of the controller.
var times = []string{
	v1alpha1.IdleSinceAnnotation, v1alpha1.DisruptingSinceAnnotation, v1alpha1.ReplacingSinceAnnotation, v1alpha1.ReplaceAfterAnnotation,
	v1alpha1.ReplicasShortSinceAnnotation, v1alpha1.ReplicasRaisedAnnotation, v1alpha1.ReplicasReadySinceAnnotation,
}

// skew shifts all timestamps that the controller has written: in annotations, refusals, breakers and its lease.
func (c *chaos) skew(ctx context.Context, by time.Duration) (string, error) {
	moved := 0
	var nodes corev1.NodeList
	var claims karpv1.NodeClaimList
	var classes v1alpha1.GPUNodeClassList
	var nodePools karpv1.NodePoolList
	for _, list := range []client.ObjectList{&nodes, &claims, &classes, &nodePools} {
		if err := c.insist(ctx, func(ctx context.Context) error { return c.api.List(ctx, list) }); err != nil {
			return "", err
		}
	}
	var objects []client.Object
	for i := range nodes.Items {
		objects = append(objects, &nodes.Items[i])
	}
	for i := range claims.Items {
		objects = append(objects, &claims.Items[i])
	}
	for _, o := range objects {
		if later := shifted(o.GetAnnotations(), by); len(later) > 0 {
			moved += len(later)
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": later}})
			if err != nil {
				return "", err
			}
			if err := c.patch(ctx, o, string(patch)); err != nil {
				return "", err
			}
		}
	}
	for i := range classes.Items {
		class := &classes.Items[i]
		for j := range class.Status.RefusedOfferings {
			r := &class.Status.RefusedOfferings[j]
			r.NotBefore = metav1.NewTime(r.NotBefore.Add(by))
			moved++
		}
		if err := c.insist(ctx, func(ctx context.Context) error { return unlessChanged(c.api.Status().Update(ctx, class)) }); err != nil {
			return "", err
		}
	}
	for i := range nodePools.Items {
		np := &nodePools.Items[i]
		for j := range np.Status.Conditions {
			if condition := &np.Status.Conditions[j]; condition.Type == v1alpha1.ConditionReplicasHealthy {
				condition.LastTransitionTime = metav1.NewTime(condition.LastTransitionTime.Add(by))
				moved++
			}
		}
		if err := c.insist(ctx, func(ctx context.Context) error { return unlessChanged(c.api.Status().Update(ctx, np)) }); err != nil {
			return "", err
		}
	}
	lease := &coordinationv1.Lease{}
	err := c.insist(ctx, func(ctx context.Context) error {
		return client.IgnoreNotFound(c.api.Get(ctx, client.ObjectKey{Namespace: karve.Namespace, Name: "karve"}, lease))
	})
	if err != nil {
		return "", err
	}
	if lease.Spec.RenewTime != nil {
		moved++
		lease.Spec.RenewTime = new(metav1.NewMicroTime(lease.Spec.RenewTime.Add(by)))
		if err := c.insist(ctx, func(ctx context.Context) error { return unlessChanged(c.api.Update(ctx, lease)) }); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf(", %d times moved by %s", moved, by), nil
}

// unlessChanged ignores conflicts: an object that was changed meanwhile has a new timestamp.
func unlessChanged(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// shifted returns the timestamps among the annotations, shifted.
func shifted(annotations map[string]string, by time.Duration) map[string]string {
	later := map[string]string{}
	for _, key := range times {
		if at, err := time.Parse(time.RFC3339, annotations[key]); err == nil {
			later[key] = at.Add(by).UTC().Format(time.RFC3339)
		}
	}
	return later
}

func (c *chaos) restartAPIServer(ctx context.Context, away time.Duration) (string, error) {
	if err := c.KillComponent(cluster.APIServer); err != nil {
		return "", err
	}
	if err := smithytime.SleepWithContext(ctx, away); err != nil {
		return "", err
	}
	return fmt.Sprintf(": away for %s", away), c.insist(ctx, func(ctx context.Context) error { return c.StartComponent(ctx, cluster.APIServer) })
}

func (c *chaos) refuse(a act) (string, error) {
	r := aws.Refusal{Type: scarce[a.pick%len(scarce)]}
	if a.ends {
		c.AWS().Allow(r)
	} else {
		c.AWS().Refuse(r)
	}
	return ": " + r.Type, nil
}

// ec2Fault begins or ends a fault of all EC2 calls.
func (c *chaos) ec2Fault(a act, begin func(names ...string)) (string, error) {
	if a.ends {
		c.AWS().Heal("EC2")
	} else {
		begin("EC2")
	}
	return "", nil
}

// machine picks one of the wanted running machines that have a Node. ok is false if there is none.
func (c *chaos) machine(ctx context.Context, pick int, wanted func(aws.Instance) bool) (aws.Instance, bool, error) {
	p, err := c.picture(ctx)
	if err != nil {
		return aws.Instance{}, false, err
	}
	node := map[string]bool{}
	for i := range p.nodes {
		node[p.nodes[i].Spec.ProviderID] = true
	}
	some := slices.DeleteFunc(p.instances, func(i aws.Instance) bool { return i.State != aws.Running || !node[i.ProviderID()] || !wanted(i) })
	if len(some) == 0 {
		return aws.Instance{}, false, nil
	}
	return some[pick%len(some)], true, nil
}

// interrupt sends a spot interruption notice. At the end of the fault it terminates the machine, whether or not pods still run on it.
func (c *chaos) interrupt(ctx context.Context, a act) (string, error) {
	if a.ends {
		id := c.victims[a.number]
		if id == "" {
			return ": none", nil
		}
		for _, i := range c.AWS().Instances() {
			if i.ID == id && i.State == aws.Running {
				c.guard.kills(i.PrivateDNS)
			}
		}
		c.AWS().Terminate(id)
		return ": " + id, nil
	}
	i, ok, err := c.machine(ctx, a.pick, func(i aws.Instance) bool { return i.CapacityType == karpv1.CapacityTypeSpot })
	if err != nil || !ok {
		return ": there is none", err
	}
	c.victims[a.number] = i.ID
	c.interrupted[i.Type+" "+i.Zone] = true
	return ": " + i.ID + " " + i.PrivateDNS, c.AWS().Interrupt(i.ID, aws.SpotInterruption)
}

func (c *chaos) stop(ctx context.Context, a act) (string, error) {
	i, ok, err := c.machine(ctx, a.pick, func(aws.Instance) bool { return true })
	if err != nil || !ok {
		return ": there is none", err
	}
	c.guard.kills(i.PrivateDNS)
	c.AWS().Terminate(i.ID)
	return ": " + i.ID + " " + i.PrivateDNS, nil
}

func (c *chaos) silence(ctx context.Context, a act) (string, error) {
	if a.ends {
		node := c.victims[a.number]
		if node == "" {
			return ": none", nil
		}
		err := c.insist(ctx, func(ctx context.Context) error { return c.Machines().Speak(ctx, node) })
		c.guard.recovers(node, time.Now())
		return ": " + node, err
	}
	i, ok, err := c.machine(ctx, a.pick, func(aws.Instance) bool { return true })
	if err != nil || !ok {
		return ": there is none", err
	}
	c.victims[a.number] = i.PrivateDNS
	c.guard.kills(i.PrivateDNS)
	return ": " + i.PrivateDNS, c.insist(ctx, func(ctx context.Context) error { return c.Machines().Silence(ctx, i.PrivateDNS) })
}

// rule sets how the simulator's agents behave, until the fault ends.
func (c *chaos) rule(ctx context.Context, a act, pool, rule string) (string, error) {
	c.rules[pool] = rule
	if a.ends {
		delete(c.rules, pool)
	}
	return ": " + pool, c.insist(ctx, func(ctx context.Context) error {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: simulator.ConfigMapNamespace, Name: simulator.ConfigMapName}, Data: maps.Clone(c.rules)}
		err := c.api.Update(ctx, cm)
		if apierrors.IsNotFound(err) {
			cm.ResourceVersion = ""
			err = c.api.Create(ctx, cm)
		}
		return err
	})
}

func (c *chaos) budget(ctx context.Context, pool, nodes string) error {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	return c.patch(ctx, np, fmt.Sprintf(`{"spec":{"disruption":{"budgets":[{"nodes":%q}]}}}`, nodes))
}

func (c *chaos) class(ctx context.Context, pool, idle string, replicas int) error {
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	return c.patch(ctx, class, fmt.Sprintf(`{"spec":{"sharing":{"replicas":%d},"consolidation":{"idleAfter":%q}}}`, replicas, idle))
}

// retry clears all backoffs, as a user may: after a clock skew they may last longer than the test. It also sets the budgets to 100 %: a budget that allows one
// of two machines never lets two be merged into one.
func (c *chaos) retry(ctx context.Context) error {
	for _, p := range pools {
		if err := c.budget(ctx, p.name, "100%"); err != nil {
			return err
		}
	}
	var claims karpv1.NodeClaimList
	if err := c.insist(ctx, func(ctx context.Context) error { return c.api.List(ctx, &claims) }); err != nil {
		return err
	}
	for i := range claims.Items {
		if err := c.patch(ctx, &claims.Items[i], fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, v1alpha1.ReplaceAfterAnnotation)); err != nil {
			return err
		}
	}
	return nil
}

// heal restores the defaults, in case faults ended in another order than they began.
func (c *chaos) heal(ctx context.Context) error {
	for _, name := range scarce {
		c.AWS().Allow(aws.Refusal{Type: name})
	}
	c.AWS().Heal()
	for number := range maps.Clone(c.stops) {
		c.cease(number)
	}
	for _, p := range pools {
		if _, err := c.rule(ctx, act{ends: true}, p.name, ""); err != nil {
			return err
		}
		if err := c.budget(ctx, p.name, usualBudget); err != nil {
			return err
		}
		if err := c.class(ctx, p.name, usualIdle, usualReplicas); err != nil {
			return err
		}
	}
	for _, node := range c.victims {
		if strings.HasPrefix(node, "ip-") {
			if err := c.insist(ctx, func(ctx context.Context) error { return c.Machines().Speak(ctx, node) }); err != nil {
				return err
			}
		}
	}
	return nil
}
