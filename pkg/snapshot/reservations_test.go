package snapshot_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// reserving returns a cluster with a pool of g4dn.xlarge and a reservation of them with free slots.
func reserving(free int64, edits ...func(*karpv1.NodePool)) *facts.Cluster {
	c := Shared()
	Reserve(c, catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge", Free: free, Total: 5})
	edits = append(edits, Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"))
	for _, edit := range edits {
		edit(&c.NodePools[0])
	}
	return c
}

// taking returns a NodeClaim for a slot of the reservation.
func taking(c *facts.Cluster, name, id string, edits ...func(*karpv1.NodeClaim)) karpv1.NodeClaim {
	return Claim(name, &c.NodePools[0], TypeNamed("g4dn.xlarge"), append([]func(*karpv1.NodeClaim){Reserved(id)}, edits...)...)
}

// ended makes a machine one that goes on after the end of its reservation, as Karpenter labels it.
func ended(claim *karpv1.NodeClaim) {
	claim.Labels[karpv1.CapacityTypeLabelKey] = karpv1.CapacityTypeOnDemand
	claim.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelTopologyZone] = "g4dn.xlarge", Zones[0]
}

func TestFreeSlotsAreThoseThatNoClaimTakes(t *testing.T) {
	t.Parallel()
	read := Now.Add(-time.Minute)
	for name, tc := range map[string]struct {
		free, want int64
		claims     []func(*karpv1.NodeClaim)
	}{
		"nobody takes any":                       {free: 2, want: 2},
		"a claim is in flight":                   {free: 2, want: 1, claims: []func(*karpv1.NodeClaim){Reserved("cr-1")}},
		"a machine was counted":                  {free: 2, want: 2, claims: []func(*karpv1.NodeClaim){Launched(read.Add(-time.Minute))}},
		"a machine came after the count":         {free: 2, want: 1, claims: []func(*karpv1.NodeClaim){Launched(read.Add(time.Second))}},
		"a machine came in the second of it":     {free: 2, want: 1, claims: []func(*karpv1.NodeClaim){Launched(read)}},
		"of each":                                {free: 3, want: 1, claims: []func(*karpv1.NodeClaim){Launched(read.Add(-time.Hour)), Launched(Now), Reserved("cr-1")}},
		"more claims than slots, after a lie":    {free: 0, want: 0, claims: []func(*karpv1.NodeClaim){Launched(Now), Reserved("cr-1")}},
		"a claim for another reservation":        {free: 2, want: 2, claims: []func(*karpv1.NodeClaim){Reserved("cr-2")}},
		"a machine that outlives a reservation":  {free: 2, want: 2, claims: []func(*karpv1.NodeClaim){ended}},
		"a canary takes one like any other does": {free: 2, want: 1, claims: []func(*karpv1.NodeClaim){func(c *karpv1.NodeClaim) { c.Labels[v1alpha1.CanaryLabel] = "images" }}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reserving(tc.free)
			for i, edit := range tc.claims {
				claim := taking(c, string(rune('a'+i)), "cr-1", edit)
				if slices.ContainsFunc(claim.Spec.Requirements[4:], func(r karpv1.NodeSelectorRequirementWithMinValues) bool { return r.Values[0] == "cr-2" }) {
					claim.Spec.Requirements = slices.Delete(claim.Spec.Requirements, 3, 4)
				}
				c.NodeClaims = append(c.NodeClaims, claim)
			}
			view := snapshot.Build(c)
			if want := []planner.Stock{{Name: "cr-1", Left: tc.want}}; !slices.Equal(view.Stocks, want) {
				t.Errorf("the stocks are %v, want %v", view.Stocks, want)
			}
		})
	}
}

func TestSlotsOfUncountedReservationsAreNotUsed(t *testing.T) {
	t.Parallel()
	c := reserving(3)
	state := c.NodeClasses[NodeClassRef]
	state.Reservations[0].Free, state.Reservations[0].Total, state.Reservations[0].Read = 0, 0, time.Time{}
	c.NodeClaims = append(c.NodeClaims, taking(c, "a", "cr-1", Launched(Now)))
	if view := snapshot.Build(c); view.Stocks[0].Left != 0 {
		t.Errorf("%d slots are left of a reservation that nobody has counted", view.Stocks[0].Left)
	}
}

// launches plans for pods and returns the capacity of each machine to launch, sorted.
func launches(t *testing.T, c *facts.Cluster) []string {
	t.Helper()
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, l := range plan.Launches {
		o := view.Offerings[l.Offering]
		all = append(all, o.Type.Name+" "+o.Capacity())
		if o.Reservation != "" && len(l.Alternatives) > 0 {
			t.Errorf("a launch for a slot of %s has the alternatives %v", o.Reservation, l.Alternatives)
		}
	}
	slices.Sort(all)
	return all
}

func TestPlanFillsReservationsFirst(t *testing.T) {
	t.Parallel()
	const slot1, slot2, bought = "g4dn.xlarge reserved cr-1", "g4dn.xlarge reserved cr-2", "g4dn.xlarge on-demand"
	all := Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved")
	second := func(c *facts.Cluster) {
		Reserve(c, catalog.Reservation{ID: "cr-2", InstanceType: "g4dn.xlarge", Free: 1, Total: 1})
	}
	for name, tc := range map[string]struct {
		cluster *facts.Cluster
		edit    func(*facts.Cluster)
		want    []string
	}{
		"two are free":                        {reserving(2, all), nil, []string{bought, slot1, slot1}},
		"none is free":                        {reserving(0, all), nil, []string{bought, bought, bought}},
		"of two reservations":                 {reserving(1, all), second, []string{bought, slot1, slot2}},
		"a pool without the requirement":      {reserving(1), nil, []string{bought, bought, slot1}},
		"a pool that allows on-demand only":   {reserving(2, Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand")), nil, []string{bought, bought, bought}},
		"a pool that allows slots only":       {reserving(2, Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "reserved")), nil, []string{slot1, slot1}},
		"a pool that requires a reservation":  {reserving(3, all, Requiring(ReservationLabel, corev1.NodeSelectorOpIn, "cr-2", "cr-3")), second, []string{slot2}},
		"a pool that asks for several values": {reserving(2, all, Requiring(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, Zones...), func(np *karpv1.NodePool) { np.Spec.Template.Spec.Requirements[1].MinValues = new(2) }), nil, []string{bought, bought, bought}},
		"the node class no longer selects it": {reserving(2, all), func(c *facts.Cluster) {
			state := c.NodeClasses[NodeClassRef]
			state.Reservations = nil
			c.NodeClasses[NodeClassRef] = state
		}, []string{bought, bought, bought}},
		"a rule for prices": {reserving(2, all), func(c *facts.Cluster) {
			c.UsePrices(prices.NewBook(nil, []prices.Rule{{Name: "fee", PriceAdjustment: "+5"}}))
		}, []string{bought, slot1, slot1}},
		"one was refused": {reserving(2, all), func(c *facts.Cluster) {
			second(c)
			refuse(c, "cr-1")
		}, []string{bought, bought, slot2}},
		"all of the capacity type were": {reserving(2, all), func(c *facts.Cluster) {
			second(c)
			refuse(c, "")
		}, []string{bought, bought, bought}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.edit != nil {
				tc.edit(tc.cluster)
			}
			tc.cluster.Pods = Pods("web", 3, Asking("cpu", "3", v1alpha1.ResourceGPUShared, "1"))
			if got := launches(t, tc.cluster); !slices.Equal(got, tc.want) {
				t.Errorf("the plan launches %q, want %q", got, tc.want)
			}
		})
	}
}

// refuse makes the cloud refuse the g4dn.xlarge of a reservation, or of all if the ID is "".
func refuse(c *facts.Cluster, id string) {
	c.Refused["gpu-shared"] = append(c.Refused["gpu-shared"], v1alpha1.RefusedOffering{
		InstanceType: "g4dn.xlarge", Zone: Zones[0], CapacityType: karpv1.CapacityTypeReserved, Reservation: id, Reason: v1alpha1.RefusalInsufficientCapacity, Failures: 1,
		NotBefore: metav1.NewTime(Now.Add(time.Minute)),
	})
}

func TestMachinesCostWhatTheirSlotsDo(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		edit     func(*karpv1.NodeClaim)
		price    int64
		reserves string
	}{
		"in a reservation":        {Launched(Now), 5, "cr-1"},
		"after its end":           {ended, 526_000, ""},
		"one that nobody selects": {func(claim *karpv1.NodeClaim) { claim.Spec.Requirements[3].Values = []string{"cr-9"} }, 526_000, "cr-9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reserving(2)
			c.NodeClaims = append(c.NodeClaims, taking(c, "a", "cr-1", tc.edit))
			m := records.Machines(c)[0]
			if m.MicroUSDPerHour() != tc.price || m.Reservation != tc.reserves {
				t.Errorf("it costs %d and takes a slot of %q, want %d and %q", m.MicroUSDPerHour(), m.Reservation, tc.price, tc.reserves)
			}
		})
	}
}

func TestReservationsOfSeveralNodeClassesAreCountedOnce(t *testing.T) {
	t.Parallel()
	c := reserving(2)
	other := v1alpha1.NodeClassReference{Group: NodeClassRef.Group, Kind: NodeClassRef.Kind, Name: "other"}
	state := c.NodeClasses[NodeClassRef]
	newer := state.Reservations[0]
	newer.Free, newer.Read = 1, Now
	state.Reservations = []catalog.Reservation{newer}
	c.NodeClasses[other] = state
	view := snapshot.Build(c)
	if want := []planner.Stock{{Name: "cr-1", Left: 1}}; !slices.Equal(view.Stocks, want) {
		t.Errorf("the stocks are %v, want %v: those that were counted last", view.Stocks, want)
	}
}

// region is what the test below makes of a cloud: a reservation whose true number of free slots differs from what it says, and NodeClaims.
type region struct {
	cluster *facts.Cluster
	ledger  *launching.Ledger
	// free is the true number of free slots, and said the last answer of the cloud.
	free int64
	said catalog.Reservation
	pods int
}

// round plans and creates NodeClaims.
func (r *region) round(t *rapid.T) {
	r.cluster.Refused = r.ledger.Refused()
	view := snapshot.Build(r.cluster)
	plan := solve.Plan(view.Snapshot)
	if err := check.Plan(view.Snapshot, plan); err != nil {
		t.Fatal(err)
	}
	for _, l := range plan.Launches {
		claim := render.NodeClaim(&view, l, nil)
		claim.CreationTimestamp = metav1.NewTime(r.cluster.Now)
		if slices.ContainsFunc(r.cluster.NodeClaims, func(c karpv1.NodeClaim) bool { return c.Name == claim.Name }) {
			continue // The API server refuses it.
		}
		r.ledger.Await(claim.Name, "", launching.ShapeOf(claim))
		r.cluster.NodeClaims = append(r.cluster.NodeClaims, *claim)
	}
	r.verify(t)
}

// verify fails if more NodeClaims were created since the last answer than it had free slots.
func (r *region) verify(t *rapid.T) {
	var since int64
	for i := range r.cluster.NodeClaims {
		claim := &r.cluster.NodeClaims[i]
		launched := facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched)
		if launching.ShapeOf(claim).Reservation == "cr-1" && (launched == nil || launched.LastTransitionTime.After(r.said.Read)) && claim.CreationTimestamp.After(r.said.Read) {
			since++
		}
	}
	if since > max(0, r.said.Free) {
		t.Fatalf("%d NodeClaims were created for the %d slots of the last answer", since, r.said.Free)
	}
}

// answer makes the cloud launch, refuse or leave alone each NodeClaim that waits, by what is truly free.
func (r *region) answer(t *rapid.T) {
	r.cluster.NodeClaims = slices.DeleteFunc(r.cluster.NodeClaims, func(claim karpv1.NodeClaim) bool { return r.refuses(t, &claim) })
	for i := range r.cluster.NodeClaims {
		claim := &r.cluster.NodeClaims[i]
		if facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched) != nil || !rapid.Bool().Draw(t, "launched") {
			continue
		}
		if launching.ShapeOf(claim).Reservation != "" {
			if r.free == 0 {
				continue
			}
			r.free--
		}
		Launched(r.cluster.Now)(claim)
		r.ledger.Launched(claim.Name, "gpu-shared", "g4dn.xlarge", Zones[0], launching.ShapeOf(claim).CapacityType, r.cluster.Now)
	}
	if r.free < 0 {
		t.Fatalf("%d slots are left", r.free)
	}
}

// refuses reports whether the cloud refuses a NodeClaim, because no slot is free for it.
func (r *region) refuses(t *rapid.T, claim *karpv1.NodeClaim) bool {
	shape := launching.ShapeOf(claim)
	if shape.Reservation == "" || r.free > 0 || facts.Condition(claim.Status.Conditions, karpv1.ConditionTypeLaunched) != nil || !rapid.Bool().Draw(t, "refused") {
		return false
	}
	for _, refusal := range launching.Attribute(shape, "all requested instance types were unavailable during launch", launching.Cloud{}) {
		r.ledger.Refuse("gpu-shared", refusal, r.cluster.Now)
	}
	r.ledger.Gone(claim.Name)
	return true
}

// read makes the cloud say how many slots are free, which is a lie now and then.
func (r *region) read(t *rapid.T) {
	r.said.Read, r.said.Free = r.cluster.Now, max(0, r.free+rapid.SampledFrom([]int64{0, 0, 0, -2, -1, 1, 3}).Draw(t, "lie"))
	state := r.cluster.NodeClasses[NodeClassRef]
	state.Reservations = []catalog.Reservation{r.said}
	r.cluster.NodeClasses[NodeClassRef] = state
}

func TestNeverMoreClaimsThanSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		free := int64(rapid.IntRange(0, 4).Draw(t, "free"))
		r := &region{cluster: reserving(free), ledger: launching.NewLedger(), free: free}
		r.said = r.cluster.NodeClasses[NodeClassRef].Reservations[0]
		for range rapid.IntRange(2, 8).Draw(t, "rounds") {
			more := Pods("p"+string(rune('a'+r.pods)), rapid.IntRange(0, 3).Draw(t, "pods"), Asking("cpu", "3", v1alpha1.ResourceGPUShared, "1"))
			r.pods++
			r.cluster.Pods = append(r.cluster.Pods, more...)
			r.round(t)
			r.cluster.Now = r.cluster.Now.Add(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second)
			r.answer(t)
			if rapid.Bool().Draw(t, "counted") {
				r.cluster.Now = r.cluster.Now.Add(time.Duration(rapid.IntRange(0, 5).Draw(t, "later")) * time.Second)
				r.read(t)
			}
		}
	})
}

func TestNothingIsLaunchedIntoWhatEndsSoon(t *testing.T) {
	t.Parallel()
	const slot, bought = "g4dn.xlarge reserved cr-1", "g4dn.xlarge on-demand"
	limited := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = &seconds }
	}
	hour := func(n int) time.Time { return Now.Add(time.Duration(n) * time.Hour) }
	late := Now.Add(snapshot.LastLaunch)
	for name, tc := range map[string]struct {
		leaves, end time.Time
		pod         func(*corev1.Pod)
		want        string
	}{
		"a block":                            {hour(2), hour(3), nil, slot},
		"a block that ends soon":             {late, hour(2), nil, bought},
		"a block that ends a little later":   {late.Add(time.Second), hour(2), nil, slot},
		"a reservation without an end":       {time.Time{}, time.Time{}, nil, slot},
		"a reservation with an end":          {time.Time{}, hour(1), nil, slot},
		"a reservation that ends soon":       {time.Time{}, late, nil, bought},
		"a pod that ends before its block":   {hour(2), hour(3), limited(7200), slot},
		"a pod that ends after its block":    {hour(2), hour(3), limited(7201), bought},
		"a pod that outlives a reservation":  {time.Time{}, hour(1), limited(7201), slot},
		"a pod with an extremely long limit": {hour(2), hour(3), limited(1 << 62), bought},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reserving(1)
			state := c.NodeClasses[NodeClassRef]
			state.Reservations[0].Leaves, state.Reservations[0].End = tc.leaves, tc.end
			c.Pods = Pods("web", 1)
			if tc.pod != nil {
				tc.pod(&c.Pods[0])
			}
			if got := launches(t, c); !slices.Equal(got, []string{tc.want}) {
				t.Errorf("the plan launches %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPodsOfOneShapeMayRunForDifferentTimes(t *testing.T) {
	t.Parallel()
	c := reserving(1, Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "reserved"))
	c.NodeClasses[NodeClassRef].Reservations[0].Leaves = Now.Add(2 * time.Hour)
	c.Pods = Pods("web", 2)
	c.Pods[0].Spec.ActiveDeadlineSeconds, c.Pods[1].Spec.ActiveDeadlineSeconds = new(int64(3600)), new(int64(86400))
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Pod != "default/web-001" {
		t.Fatalf("launches %v, unplaced %v", plan.Launches, plan.Unplaced)
	}
	want := "may run for 24h0m0s (activeDeadlineSeconds), and the machines of capacity block cr-1 leave at 2026-03-01T14:00:00Z: lower it, or allow other capacity"
	if u := plan.Unplaced[0]; u.Reason != planner.ReasonUnavailable || u.Message != want {
		t.Errorf("%s: %q, want %q", u.Reason, u.Message, want)
	}
}

func TestPodWithoutADeadlineHasTheReasonOfTheBlock(t *testing.T) {
	t.Parallel()
	c := reserving(1, Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "reserved"))
	c.NodeClasses[NodeClassRef].Reservations[0].Leaves, c.NodeClasses[NodeClassRef].Reservations[0].End = Now.Add(-time.Minute), Now.Add(39*time.Minute)
	c.Pods = Pods("web", 1)
	plan := solve.Plan(snapshot.Build(c).Snapshot)
	if len(plan.Unplaced) != 1 || !strings.Contains(plan.Unplaced[0].Message, "capacity block cr-1 ends at 2026-03-01T12:39:00Z") {
		t.Errorf("launches %v, unplaced %v", plan.Launches, plan.Unplaced)
	}
}

func TestPodsSelectReservations(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		key, value string
		want       []string
	}{
		"by id":                 {ReservationLabel, "cr-2", []string{"g4dn.xlarge reserved cr-2"}},
		"by an id that is gone": {ReservationLabel, "cr-9", nil},
		"any":                   {karpv1.CapacityTypeLabelKey, "reserved", []string{"g4dn.xlarge reserved cr-1"}},
		"none":                  {karpv1.CapacityTypeLabelKey, "on-demand", []string{"g4dn.xlarge on-demand"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reserving(1)
			Reserve(c, catalog.Reservation{ID: "cr-2", InstanceType: "g4dn.xlarge", Free: 1, Total: 1})
			c.Pods = Pods("web", 1, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{tc.key: tc.value} })
			if got := launches(t, c); !slices.Equal(got, tc.want) {
				t.Errorf("the plan launches %q, want %q", got, tc.want)
			}
		})
	}
}

func TestVacatedReservationsHaveTheSlotsOfOurMachines(t *testing.T) {
	t.Parallel()
	c := reserving(2)
	c.NodeClaims = append(c.NodeClaims, taking(c, "counted", "cr-1", Launched(Now.Add(-time.Hour))), taking(c, "flies", "cr-1"))
	if got := records.Vacated(c)[NodeClassRef].Reservations[0].Free; got != 3 {
		t.Errorf("%d slots are free without our machines, want 3", got)
	}
	if got := c.NodeClasses[NodeClassRef].Reservations[0].Free; got != 2 {
		t.Errorf("%d slots are free with them, want 2 as before", got)
	}
}

func TestReadersPlanWithWhatTheControllerPublished(t *testing.T) {
	t.Parallel()
	c := reserving(1, Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved"))
	c.Pods = Pods("web", 3, Asking("cpu", "3", v1alpha1.ResourceGPUShared, "1"))
	c.NodeClaims = append(c.NodeClaims, taking(c, "a", "cr-1", Launched(Now.Add(-2*time.Minute))))
	want := launches(t, c)

	state := c.NodeClasses[NodeClassRef]
	encoded, err := published.Encode(published.Catalog{NodeClassRef: {InstanceTypes: state.InstanceTypes, Reservations: state.Reservations}})
	if err != nil {
		t.Fatal(err)
	}
	read, err := published.Decode(encoded)
	if err != nil {
		t.Fatal(err)
	}
	state = facts.NodeClassState{Ready: true}
	state.Learn(read[NodeClassRef])
	c.NodeClasses[NodeClassRef] = state
	if got := launches(t, c); !slices.Equal(got, want) || !slices.Contains(got, "g4dn.xlarge reserved cr-1") {
		t.Errorf("readers plan %q, and the controller %q", got, want)
	}
}

func TestRuleWithTheNameOfAReservationIsHarmless(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]prices.UpTo{"machines": {Machines: new(int64(3))}, "dollars": {USDPerHour: "1000"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reserving(2)
			c.UsePrices(prices.NewBook(nil, []prices.Rule{{Name: "cr-1", PriceAdjustment: "-50%", UpTo: &limit}}))
			c.Pods = Pods("web", 50)
			got := launches(t, c)
			into := slices.DeleteFunc(slices.Clone(got), func(l string) bool { return l != "g4dn.xlarge reserved cr-1" })
			if len(got) != 5 || len(into) > 2 {
				t.Errorf("the plan launches %q, for 5 machines of which 2 are slots", got)
			}
		})
	}
}

// Reservations that lie and rules that nobody means leave a plan that loses no pod and draws no more than is left.
func TestPlansSurviveCountsAndRulesThatLie(t *testing.T) {
	t.Parallel()
	all := Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand", "reserved")
	count := rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, 3, math.MaxInt32, math.MaxInt64})
	rapid.Check(t, func(t *rapid.T) {
		c := reserving(count.Draw(t, "free"), all)
		c.NodeClasses[NodeClassRef].Reservations[0].Total = count.Draw(t, "total")
		for i := range rapid.IntRange(0, 2).Draw(t, "more reservations") {
			Reserve(c, catalog.Reservation{ID: fmt.Sprint("cr-", rapid.IntRange(1, 2).Draw(t, "ID")), InstanceType: "g4dn.xlarge", Free: count.Draw(t, "free"), Total: int64(i)})
		}
		var rules []prices.Rule
		for i := range rapid.SampledFrom([]int{0, 1, 3, 2000}).Draw(t, "rules") {
			r := prices.Rule{Name: fmt.Sprint("rule-", i), PriceAdjustment: rapid.SampledFrom([]string{"-100%", "-28%", "-1000000000", "+0.000001", "-0"}).Draw(t, "adjustment")}
			if i < 20 && rapid.Bool().Draw(t, "limited") {
				r.UpTo = &prices.UpTo{Machines: new(int64(rapid.SampledFrom([]int{-1, 0, 1, prices.MaxUpTo}).Draw(t, "machines")))}
			}
			rules = append(rules, r)
		}
		c.UsePrices(prices.NewBook(nil, rules))
		for i := range rapid.IntRange(0, 2).Draw(t, "running") {
			c.NodeClaims = append(c.NodeClaims, taking(c, fmt.Sprint("claim-", i), "cr-1", Launched(Now)))
		}
		c.Pods = Pods("web", 9, Asking("cpu", "3", v1alpha1.ResourceGPUShared, "1"))
		view := snapshot.Build(c)
		if err := planner.Validate(view.Snapshot); err != nil {
			t.Fatal(err)
		}
		plan := solve.Plan(view.Snapshot)
		if err := check.Plan(view.Snapshot, plan); err != nil {
			t.Fatal(err)
		}
		if len(plan.Unplaced) > 0 {
			t.Fatalf("%d pods have no place: %s", len(plan.Unplaced), plan.Unplaced[0].Message)
		}
	})
}
