package karpenter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	kscheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"karve.sh/karve/pkg/planner"
)

func init() {
	// As the AWS provider does.
	cloudprovider.ReservationIDLabel = "karpenter.k8s.aws/capacity-reservation-id"
	karpv1.WellKnownLabels.Insert(cloudprovider.ReservationIDLabel)
}

// isDiscounted reports whether an offering is a machine on demand at a price up to a limit. Karpenter knows no such prices.
func isDiscounted(o planner.Offering) bool {
	return len(o.Draws) > 0 && o.CapacityType != karpv1.CapacityTypeReserved
}

// offering returns an offering with what is left of its reservation. The ID of a reservation is the name of its stock.
func offering(s planner.Snapshot, o planner.Offering) *cloudprovider.Offering {
	out := &cloudprovider.Offering{Available: o.Unavailable == nil, Price: float64(o.Price), Requirements: kscheduling.NewLabelRequirements(where(o))}
	switch {
	case o.CapacityType == karpv1.CapacityTypeReserved:
		stock := s.Stocks[o.Draws[0].Stock]
		out.ReservationCapacity = int(stock.Left)
		out.Requirements.Add(kscheduling.NewRequirement(cloudprovider.ReservationIDLabel, corev1.NodeSelectorOpIn, stock.Name))
	case len(s.Stocks) > 0:
		out.Requirements.Add(kscheduling.NewRequirement(cloudprovider.ReservationIDLabel, corev1.NodeSelectorOpDoesNotExist))
	}
	return out
}

// rounds is Karpenter's provisioner over several rounds, between which machines are launched.
type rounds struct {
	planner.Snapshot
	world World
	plan  planner.Plan
	// at is the launch on each node, by name.
	at map[string]int
}

// PlanWithReservations plans a snapshot without nodes, some of whose offerings are slots of reservations, as Karpenter's provisioner does: a NodeClaim reserves a slot of each reservation
// that it may use, and pods for which none is left to reserve wait for the next round. Between rounds, each NodeClaim becomes the cheapest machine that it allows,
// and its other slots are free again. It returns the number of rounds, and how long Karpenter took for all of them.
func PlanWithReservations(ctx context.Context, s planner.Snapshot) (planner.Plan, int, time.Duration, error) {
	w, err := fromSnapshot(s, nil)
	if err != nil {
		return planner.Plan{}, 0, 0, err
	}
	s.Stocks = slices.Clone(s.Stocks)
	w.Reserving = true
	r := rounds{Snapshot: s, world: w, at: map[string]int{}}
	var took time.Duration
	for n := 1; ; n++ {
		for i, p := range s.Pools {
			r.world.Types[p.Name] = instanceTypes(r.Snapshot, i)
		}
		results, now, err := r.world.Solve(ctx)
		if err != nil {
			return planner.Plan{}, n, took, err
		}
		took += now
		waiting, err := r.launch(results)
		if err != nil {
			return planner.Plan{}, n, took, err
		}
		if waiting == 0 {
			for pod, err := range results.PodErrors {
				r.plan.Unplaced = append(r.plan.Unplaced, planner.Unplaced{Pod: pod.Namespace + "/" + pod.Name, Refusal: planner.Refusal{Reason: "Karpenter", Message: err.Error()}})
			}
			return r.plan, n, took, nil
		}
		if len(results.NewNodeClaims) == 0 {
			return planner.Plan{}, n, took, fmt.Errorf("%d pods wait for slots of reservations, and nothing is launched", waiting)
		}
	}
}

// launch makes machines of the NodeClaims of a round, and returns how many pods wait for the next one.
func (r *rounds) launch(results scheduling.Results) (waiting int, err error) {
	for _, n := range results.ExistingNodes {
		for _, pod := range n.Pods {
			r.run(pod, n.Name())
		}
	}
	for _, c := range results.NewNodeClaims {
		i, err := r.cheapest(c)
		if err != nil {
			return 0, err
		}
		o := r.Offerings[i]
		planner.Take(r.Stocks, o.Draws)
		name := fmt.Sprintf("machine-%06d", len(r.plan.Launches))
		machine := node(planner.Node{Name: name, Free: o.Free, GPUs: o.GPUs}, o)
		machine.Spec.Taints = []corev1.Taint{{Key: poolTaint, Value: r.Pools[o.Pool].Name, Effect: corev1.TaintEffectNoSchedule}}
		r.world.Nodes = append(r.world.Nodes, machine)
		r.at[name] = len(r.plan.Launches)
		r.plan.Launches = append(r.plan.Launches, planner.Launch{Offering: i})
		r.plan.Price += o.Price
		for _, pod := range c.Pods {
			r.run(pod, name)
		}
	}
	r.world.Pending = nil
	for pod := range results.ReservedOfferingErrors() {
		r.world.Pending = append(r.world.Pending, pod)
	}
	slices.SortFunc(r.world.Pending, func(a, b *corev1.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return len(r.world.Pending), nil
}

// run binds a pod to a machine.
func (r *rounds) run(pod *corev1.Pod, machine string) {
	l := &r.plan.Launches[r.at[machine]]
	l.Pods = append(l.Pods, pod.Namespace+"/"+pod.Name)
	slices.Sort(l.Pods)
	pod = pod.DeepCopy()
	pod.Spec.NodeName, pod.Status.Phase = machine, corev1.PodRunning
	r.world.Running = append(r.world.Running, pod)
}

// cheapest returns the cheapest offering that a NodeClaim allows.
func (r *rounds) cheapest(c *scheduling.NodeClaim) (int, error) {
	types := map[string]bool{}
	for _, it := range c.InstanceTypeOptions {
		types[it.Name] = true
	}
	best, price := -1, planner.MicroUSD(math.MaxInt64)
	for i, o := range r.Offerings {
		if r.Pools[o.Pool].Name != c.NodePoolName || !types[o.InstanceType] || isDiscounted(o) || o.Price >= price {
			continue
		}
		labels := where(o)
		if slot := o.CapacityType == karpv1.CapacityTypeReserved; slot != c.Requirements.Has(cloudprovider.ReservationIDLabel) {
			continue
		} else if slot {
			labels[cloudprovider.ReservationIDLabel] = r.Stocks[o.Draws[0].Stock].Name
			if r.Stocks[o.Draws[0].Stock].Left < 1 {
				continue
			}
		}
		if c.Requirements.IsCompatible(kscheduling.NewLabelRequirements(labels), kscheduling.AllowUndefinedWellKnownLabels) {
			best, price = i, o.Price
		}
	}
	if best < 0 {
		return 0, fmt.Errorf("a claim for %d pods leaves no offering", len(c.Pods))
	}
	return best, nil
}
