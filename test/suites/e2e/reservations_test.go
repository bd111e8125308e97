package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
)

// counted is how long Karpenter and Karve may take until they know a change of reservations. Each asks EC2 once a minute, and one may wait for the other.
const counted = 3 * time.Minute

// sceneTag is the tag by which a scene's node class selects its reservations.
const sceneTag = "example.com/scene"

// reserve adds reservations to the region, which the scene's node class selects, and returns their IDs.
func (w *world) reserve(name string, reservations ...aws.Reservation) []string {
	var ids []string
	for _, r := range reservations {
		r.Tags = map[string]string{sceneTag: name}
		ids = append(ids, w.AWS().Reserve(r).ID)
	}
	return ids
}

// selectsReservations makes a node class select the reservations of a scene.
func selectsReservations(name string) func(spec map[string]any) {
	return func(spec map[string]any) {
		spec["capacityReservationSelectorTerms"] = []any{map[string]any{"tags": map[string]any{sceneTag: name}}}
	}
}

// t4s returns an open reservation of machines of the cheapest type.
func t4s(zone string, slots int) aws.Reservation {
	return aws.Reservation{Type: cheapest, Zone: "us-east-1" + zone, Total: slots}
}

// with returns a reservation with a change.
func with(r aws.Reservation, change func(*aws.Reservation)) aws.Reservation {
	change(&r)
	return r
}

// change changes a reservation.
func (s *scene) change(id string, change func(*aws.Reservation)) {
	s.t.Helper()
	if err := s.AWS().ChangeReservation(id, change); err != nil {
		s.t.Fatal(err)
	}
}

// reservedPool creates a GPUNodeClass and a NodePool for machines of the cheapest type, reserved or on demand, with changes. It waits until the pool is ready.
func (s *scene) reservedPool(idleAfter string, requirements map[string]string, change ...func(*v1alpha1.GPUNodeClassSpec)) {
	s.t.Helper()
	s.class(idleAfter, change...)
	wanted := map[string]string{corev1.LabelInstanceTypeStable: cheapest, "karpenter.k8s.aws/instance-family": "", karpv1.CapacityTypeLabelKey: "reserved,on-demand"}
	maps.Copy(wanted, requirements)
	s.pool(poolOptions{requirements: wanted})
	s.untilCondition(s.name, "Ready", "True")
}

// instances returns the machines of the scene's pool that were ever launched.
func (s *scene) instances() []aws.Instance {
	return slices.DeleteFunc(s.AWS().Instances(), func(i aws.Instance) bool { return i.Tags[karpv1.NodePoolLabelKey] != s.name })
}

// placed returns how many machines of the scene's pool there are, by their reservation, or by their capacity type if they have none.
func (s *scene) placed() map[string]int {
	placed := map[string]int{}
	for _, i := range s.instances() {
		if i.State == aws.Pending || i.State == aws.Running {
			placed[or(i.Reservation, i.CapacityType)]++
		}
	}
	return placed
}

// untilPlaced waits until all n pods run, on exactly these machines.
func (s *scene) untilPlaced(n int, want map[string]int) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("%d pods run on machines in %v", n, want), func() (bool, string) {
		running, placed := s.running(), s.placed()
		return running == n && len(s.pods()) == n && maps.Equal(placed, want), fmt.Sprintf("%d run, on %v", running, placed)
	})
}

// staysPlaced fails if the machines change within the time.
func (s *scene) staysPlaced(during time.Duration, want map[string]int) {
	s.t.Helper()
	s.stays(during, fmt.Sprintf("the machines are those in %v", want), func() (bool, string) {
		placed := s.placed()
		return maps.Equal(placed, want), fmt.Sprint(placed)
	})
}

// checkReservedClaims checks what all NodeClaims for reservations ask for: one slot, and nothing that the cloud could launch instead.
func (s *scene) checkReservedClaims() {
	s.t.Helper()
	var list karpv1.NodeClaimList
	s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: s.name})
	for i := range list.Items {
		values := map[string][]string{}
		for _, r := range list.Items[i].Spec.Requirements {
			if r.Operator == corev1.NodeSelectorOpIn {
				values[r.Key] = append(values[r.Key], r.Values...)
			}
		}
		if !slices.Contains(values[karpv1.CapacityTypeLabelKey], karpv1.CapacityTypeReserved) {
			continue
		}
		for _, key := range []string{karpv1.CapacityTypeLabelKey, ec2v1.LabelCapacityReservationID, corev1.LabelInstanceTypeStable, corev1.LabelTopologyZone} {
			if len(values[key]) != 1 {
				s.t.Errorf("NodeClaim %s for a reservation has %s in %v, want one value", list.Items[i].Name, key, values[key])
			}
		}
	}
}

// untilRefused waits until the class records the refusal of a reservation.
func (s *scene) untilRefused(id string) {
	s.t.Helper()
	s.until(enough, "GPUNodeClass "+s.name+" remembers the refusal of "+id, func() (bool, string) {
		refused := s.refused(cheapest)
		return slices.ContainsFunc(refused, func(r v1alpha1.RefusedOffering) bool { return r.Reservation == id }), fmt.Sprintf("%+v", refused)
	})
}

// reservedCase is a scene with reservations, pods that each need a tenth of a machine, and where the machines for them have to be.
type reservedCase struct {
	name         string
	short        bool // make test runs it
	reservations []aws.Reservation
	requirements map[string]string
	pods         int32
	change       []func(*corev1.PodSpec)
	// want are the machines by the index of their reservation, or -1 on demand.
	want map[int]int
	then func(s *scene, ids []string)
}

const ondemand = -1

var reservedCases = []reservedCase{
	{
		name: "three-and-forty-pods", short: true,
		reservations: []aws.Reservation{t4s("a", 1), t4s("b", 1), with(t4s("a", 1), func(r *aws.Reservation) { r.Kind = aws.Targeted })},
		pods:         40, want: map[int]int{0: 1, 1: 1, 2: 1, ondemand: 1},
		then: func(s *scene, _ []string) {
			if sum := total(alive(s.claims())); sum < 526_000 || sum > 526_100 {
				s.t.Errorf("the plan cost %d micro-USD an hour, want one %s and slots that cost nothing more", sum, cheapest)
			}
		},
	},
	{
		name: "full", reservations: []aws.Reservation{with(t4s("a", 2), func(r *aws.Reservation) { r.Elsewhere = 2 })},
		pods: 10, want: map[int]int{ondemand: 1},
	},
	{
		name: "no-slots-at-all", reservations: []aws.Reservation{t4s("a", 0)},
		pods: 10, want: map[int]int{ondemand: 1},
	},
	{
		// EC2 says that the slots are free, which another account takes at that moment.
		name: "taken-by-another-account", short: true,
		reservations: []aws.Reservation{
			with(t4s("a", 2), func(r *aws.Reservation) { r.Owner, r.Elsewhere, r.Claimed = "111111111111", 2, new(2) }), t4s("a", 1),
		},
		pods: 20, want: map[int]int{1: 1, ondemand: 1},
		then: func(s *scene, ids []string) { s.untilRefused(ids[0]) },
	},
	{
		name: "lies", reservations: []aws.Reservation{with(t4s("b", 1), func(r *aws.Reservation) { r.Claimed = new(3) })},
		pods: 30, want: map[int]int{0: 1, ondemand: 2},
		then: func(s *scene, _ []string) {
			if n := len(s.claims()); n > 8 { // Refused launches are claims too.
				s.t.Errorf("%d claims for 3 machines:\n%s", n, lines(s.claims()))
			}
		},
	},
	{
		name: "not-allowed", reservations: []aws.Reservation{t4s("a", 1)}, requirements: map[string]string{karpv1.CapacityTypeLabelKey: "on-demand"},
		pods: 10, want: map[int]int{ondemand: 1},
	},
	{
		name: "other-types-first", reservations: []aws.Reservation{{Type: "g4dn.2xlarge", Zone: "us-east-1a", Total: 1}, {Type: "g4dn.12xlarge", Zone: "us-east-1b", Total: 1}},
		requirements: map[string]string{corev1.LabelInstanceTypeStable: "g4dn.xlarge,g4dn.2xlarge,g4dn.12xlarge"},
		pods:         10, want: map[int]int{0: 1}, // the smaller slot, and not a machine that costs
	},
	{
		name: "zone-of-pod", reservations: []aws.Reservation{t4s("a", 1), t4s("b", 1)},
		pods: 10, change: []func(*corev1.PodSpec){selects(corev1.LabelTopologyZone, "us-east-1b")}, want: map[int]int{1: 1},
	},
	{
		name: "two-blocks", reservations: []aws.Reservation{h100s("a", 48*time.Hour), h100s("b", 24*time.Hour), h100s("c", 20*time.Minute)},
		requirements: map[string]string{corev1.LabelInstanceTypeStable: "p5.4xlarge"},
		pods:         20, want: map[int]int{0: 1, 1: 1},
	},
	{
		name: "block-not-started", reservations: []aws.Reservation{with(h100s("a", 48*time.Hour), func(r *aws.Reservation) { r.State = aws.ReservationScheduled })},
		requirements: map[string]string{corev1.LabelInstanceTypeStable: "p5.4xlarge"},
		pods:         10, want: map[int]int{ondemand: 1},
	},
	{
		// The pods of a Job with a deadline cannot finish in a block that ends before it.
		name: "longer-than-the-block", reservations: []aws.Reservation{h100s("a", 3*time.Hour), h100s("b", 30*time.Hour)},
		requirements: map[string]string{corev1.LabelInstanceTypeStable: "p5.4xlarge"},
		pods:         10, change: []func(*corev1.PodSpec){deadline(12 * time.Hour)}, want: map[int]int{1: 1},
	},
}

// h100s returns a capacity block of one machine that ends after a time.
func h100s(zone string, ends time.Duration) aws.Reservation {
	return aws.Reservation{Kind: aws.Block, Type: "p5.4xlarge", Zone: "us-east-1" + zone, Total: 1, End: time.Now().Add(ends)}
}

func deadline(after time.Duration) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.ActiveDeadlineSeconds, spec.RestartPolicy = new(int64(after.Seconds())), corev1.RestartPolicyNever
	}
}

// TestReservedSlotsAreFilledFirst checks where the machines for a burst are, and that none is launched twice.
func TestReservedSlotsAreFilledFirst(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for _, c := range reservedCases {
		t.Run(c.name, func(t *testing.T) {
			if !c.short {
				cluster.Long(t)
			}
			t.Parallel()
			name := "slots-" + c.name
			ids := w.reserve(name, c.reservations...)
			s := w.scene(t, name, selectsReservations(name))
			s.reservedPool(v1alpha1.IdleNever, c.requirements)
			want, machines := machinesOf(c.want, ids), 0
			for _, n := range want {
				machines += n
			}
			for n := range c.pods {
				s.pod(fmt.Sprintf("pod-%d", n), c.change...)
			}
			s.untilPlaced(int(c.pods), want)
			if c.then != nil {
				c.then(s, ids)
			}
			s.checkReservedClaims()
			s.staysPlaced(3*time.Second, want)
			if all := s.instances(); len(all) != machines {
				t.Errorf("%d machines were launched, want %d: %v", len(all), machines, strings.Join(describe(all), "\n"))
			}
		})
	}
}

// machinesOf returns the numbers of machines of a case as placed does, given the IDs of its reservations.
func machinesOf(byIndex map[int]int, ids []string) map[string]int {
	want := map[string]int{}
	for i, n := range byIndex {
		if i == ondemand {
			want[karpv1.CapacityTypeOnDemand] = n
		} else {
			want[ids[i]] = n
		}
	}
	return want
}

func describe(all []aws.Instance) []string {
	var each []string
	for _, i := range all {
		each = append(each, fmt.Sprintf("%s: %s in %s, %s %s, %s", i.ID, i.Type, i.Zone, i.CapacityType, i.Reservation, i.State))
	}
	return each
}

// TestPoolsCompeteForASlot has two NodePools whose pods all need a machine at the same time, and one slot. Nothing is launched twice or in vain.
func TestPoolsCompeteForASlot(t *testing.T) {
	w := sharedWorld(t)
	cluster.Long(t)
	t.Parallel()
	const either, slotOnly = "reserved,on-demand", "reserved"
	for _, c := range []struct {
		name string
		// allows are the capacity types of each NodePool, and runs how many of the 20 pods have a place.
		allows   [2]string
		runs     int
		ondemand int
	}{
		{"both-may-pay", [2]string{either, either}, 20, 1},
		{"one-waits", [2]string{slotOnly, slotOnly}, 10, 0},
		{"one-yields", [2]string{either, slotOnly}, 20, 1}, // The slot is of more use to the pool that has nothing else.
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := "compete-" + c.name
			id := w.reserve(name, t4s("a", 1))[0]
			s := w.scene(t, name, selectsReservations(name))
			s.class(v1alpha1.IdleNever)
			pools := [2]string{name, name + "-other"}
			for i, pool := range pools {
				s.pool(poolOptions{name: pool, requirements: map[string]string{
					corev1.LabelInstanceTypeStable: cheapest, "karpenter.k8s.aws/instance-family": "", karpv1.CapacityTypeLabelKey: c.allows[i],
				}})
				s.untilCondition(pool, "Ready", "True")
			}
			for n := range 20 {
				s.pod(fmt.Sprintf("pod-%d", n), selects(karpv1.NodePoolLabelKey, pools[n%2]))
			}
			instances := func() []aws.Instance {
				return slices.DeleteFunc(w.AWS().Instances(), func(i aws.Instance) bool { return !slices.Contains(pools[:], i.Tags[karpv1.NodePoolLabelKey]) })
			}
			is := func() (bool, string) {
				all, slots := instances(), 0
				for _, i := range all {
					if i.Reservation == id {
						slots++
					}
				}
				running := s.running()
				return running == c.runs && slots == 1 && len(all) == 1+c.ondemand, fmt.Sprintf("%d pods run on\n%s", running, strings.Join(describe(all), "\n"))
			}
			s.until(enough, "the pods run that have a place", is)
			s.stays(10*time.Second, "nothing else was ever launched", is)
			claims := 0
			for _, pool := range pools {
				claims += len(s.history.claimsOf(pool))
			}
			if claims != 1+c.ondemand {
				t.Errorf("%d NodeClaims were created, want %d", claims, 1+c.ondemand)
			}
		})
	}
}
