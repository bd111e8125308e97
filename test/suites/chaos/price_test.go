package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	realclock "k8s.io/utils/clock"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	localaws "karve.sh/karve/test/harness/aws"
)

// machinesOf returns a catalog of the cluster's instance types, as in the controller.
func machinesOf(t *testing.T, w *world) cloud.Catalog {
	t.Helper()
	machines := instancetype.New(instancetype.Config{
		Options: instancetype.Options{VMMemoryOverheadPercent: 0.075}, Metrics: metrics.New(prometheus.NewRegistry()), Clock: realclock.RealClock{},
		Load: func(context.Context) (*api.Clients, error) { return api.New(localaws.ClientConfig(w.AWS().URL)), nil },
	})
	go func() { _ = machines.Start(t.Context()) }()
	return machines
}

// bill is the price of the machines per hour, the price of a new plan for the same pods on an empty cluster, and the lower bound for any plan. The plan does
// not use offerings that are refused at present, although such machines may be running.
type bill struct {
	fleet, plan, bound planner.MicroUSD
	// machines and planned list the machines of both, for debugging.
	machines, planned []string
}

func (b bill) String() string {
	return fmt.Sprintf("the machines cost %d micro-USD an hour, a plan for the same pods %d, its bound is %d; there are %s, planned %s",
		b.fleet, b.plan, b.bound, strings.Join(b.machines, ", "), strings.Join(b.planned, ", "))
}

// dear is by how many percent the machines may cost more than the plan.
const dear = 5

func (b bill) problems() []problem {
	if b.fleet*100 > b.plan*(100+dear) {
		return []problem{{"Price", "of all machines", "is too high: " + b.String()}}
	}
	return nil
}

// gather returns the cluster as the controller sees it, without pods that can never run and without objects that are not of the pools.
func (w *world) gather(ctx context.Context, machines cloud.Catalog) (*facts.Cluster, error) {
	g := gather.Gatherer{
		Cached: w.api, Live: w.api, Mapper: w.api.RESTMapper(), Catalog: machines, Ledger: launching.NewLedger(), Clock: realclock.RealClock{}, ReplicasTimeout: time.Minute,
	}
	c, err := g.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	c.NodeClaims = slices.DeleteFunc(c.NodeClaims, func(c karpv1.NodeClaim) bool { return isAdversarial(&c) })
	c.Nodes = slices.DeleteFunc(c.Nodes, func(n corev1.Node) bool { return isAdversarial(&n) })
	c.Pods = slices.DeleteFunc(c.Pods, func(p corev1.Pod) bool { return p.Namespace == tenant && whyUnschedulable(&p) != "" })
	return c, nil
}

func (w *world) bill(ctx context.Context, machines cloud.Catalog) (bill, error) {
	c, err := w.gather(ctx, machines)
	if err != nil {
		return bill{}, err
	}
	var b bill
	for i := range c.NodeClaims {
		price, err := priceOf(&c.NodeClaims[i], c)
		if err != nil {
			return bill{}, err
		}
		b.fleet += price
		instanceType, zone, capacityType := records.ShapeOf(&c.NodeClaims[i])
		b.machines = append(b.machines, machine(instanceType, zone, capacityType, price))
	}
	s := snapshot.Build(afresh(c)).Snapshot
	plan := solve.Plan(s)
	if len(plan.Unplaced) > 0 {
		return bill{}, fmt.Errorf("a plan for all pods has no place for %v", plan.Unplaced[0])
	}
	for _, l := range plan.Launches {
		o := s.Offerings[l.Offering]
		b.planned = append(b.planned, machine(o.InstanceType, o.Zone, o.CapacityType, o.Price))
	}
	b.plan, b.bound = plan.Price, plan.Bound
	slices.Sort(b.machines)
	slices.Sort(b.planned)
	return b, nil
}

func machine(instanceType, zone, capacityType string, price planner.MicroUSD) string {
	return fmt.Sprintf("%s %s %s at %d", capacityType, instanceType, zone, price)
}

// afresh returns the cluster without its machines, with all their pods pending. It closes the breakers, which limit how many machines are launched at once, not
// what they may cost: a breaker that was opened by a machine that is gone stays half-open until another machine is needed.
func afresh(c *facts.Cluster) *facts.Cluster {
	fresh := *c
	fresh.NodeClaims, fresh.Nodes, fresh.Pods, fresh.NodePools = nil, nil, nil, slices.Clone(c.NodePools)
	for i := range fresh.NodePools {
		closeBreaker(&fresh.NodePools[i])
	}
	for i := range c.Pods {
		pod := c.Pods[i].DeepCopy()
		if karpenter.IsTerminal(pod) || !pod.DeletionTimestamp.IsZero() {
			continue
		}
		pod.Spec.NodeName = ""
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable},
		}}
		fresh.Pods = append(fresh.Pods, *pod)
	}
	return &fresh
}

func closeBreaker(np *karpv1.NodePool) {
	np.Status.Conditions = slices.DeleteFunc(slices.Clone(np.Status.Conditions), func(c status.Condition) bool { return c.Type == v1alpha1.ConditionReplicasHealthy })
}

// priceOf returns the price of the machine of a claim.
func priceOf(claim *karpv1.NodeClaim, c *facts.Cluster) (planner.MicroUSD, error) {
	name, zone, capacityType := records.ShapeOf(claim)
	for _, t := range c.InstanceTypes() {
		for _, o := range t.Offerings {
			if t.Name == name && o.Zone == zone && o.CapacityType == capacityType {
				return planner.MicroUSD(o.MicroUSDPerHour), nil
			}
		}
	}
	return 0, fmt.Errorf("NodeClaim %s got a %s %s in %s, which has no price", claim.Name, capacityType, name, zone)
}

func TestFleetMayCostSlightlyMoreThanPlan(t *testing.T) {
	t.Parallel()
	for fleet, want := range map[planner.MicroUSD]int{900_000: 0, 1_050_000: 0, 1_050_001: 1} {
		if got := (bill{fleet: fleet, plan: 1_000_000}).problems(); len(got) != want {
			t.Errorf("at %d: %q", fleet, got)
		}
	}
}

func TestPriceIsKnownWhilePoolIsProbed(t *testing.T) {
	t.Parallel()
	c := snapshottest.Shared()
	c.NodePools[0].StatusConditions().SetUnknownWithReason(v1alpha1.ConditionReplicasHealthy, "Probing", "")
	c.Pods = snapshottest.Pods("web", 11)
	if plan := solve.Plan(snapshot.Build(afresh(c)).Snapshot); len(plan.Unplaced) > 0 || len(plan.Launches) != 2 {
		t.Errorf("%d machines are planned, and not for %v", len(plan.Launches), plan.Unplaced)
	}
}
