package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestKarpenterLaunchesIntoReservations is about Karpenter and the local AWS alone: that a reservation of each kind has its machine, and what becomes of it.
func TestKarpenterLaunchesIntoReservations(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	const minute = 90 * time.Second // Karpenter looks once a minute.
	for _, c := range []struct {
		name        string
		reservation aws.Reservation
		ends        func(s *scene, id string)
		// want is the machine in the end, and at first if it ends.
		want string
	}{
		{"open", t4s("a", 1), func(s *scene, id string) {
			s.change(id, func(r *aws.Reservation) { r.State = aws.ReservationCanceled })
		}, "running as on-demand"},
		{"targeted", with(t4s("a", 1), func(r *aws.Reservation) { r.Kind = aws.Targeted }), nil, ""},
		{"interruptible", with(t4s("a", 1), func(r *aws.Reservation) { r.Kind = aws.Interruptible }), func(s *scene, id string) {
			if err := s.AWS().Reclaim(id, 2*time.Minute); err != nil {
				t.Error(err)
			}
		}, "gone"},
		{"block", h100s("a", 24*time.Hour), func(s *scene, id string) {
			s.change(id, func(r *aws.Reservation) { r.End = time.Now().Add(40 * time.Minute) })
		}, "gone"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := "stock-" + c.name
			id := w.reserve(name, c.reservation)[0]
			s := w.scene(t, name, selectsReservations(name))
			s.pool(poolOptions{stock: true, requirements: map[string]string{
				karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeReserved, corev1.LabelInstanceTypeStable: c.reservation.Type, "karpenter.k8s.aws/instance-family": "",
			}})
			s.pod("cpu", func(spec *corev1.PodSpec) {
				spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
			})
			s.untilPlaced(1, map[string]int{id: 1})
			if c.ends == nil {
				return
			}
			c.ends(s, id)
			s.until(2*minute, "the machine is "+c.want, func() (bool, string) {
				var running []string
				for _, n := range s.nodes(s.name) {
					running = append(running, "running as "+n.Labels[karpv1.CapacityTypeLabelKey])
				}
				is := or(strings.Join(running, ", "), "gone")
				return is == c.want, is + "\n" + strings.Join(describe(s.instances()), "\n")
			})
		})
	}
}

// reservationChange is a change of reservations while pods run on them.
type reservationChange struct {
	name         string
	reservations []aws.Reservation
	requirements map[string]string
	idleAfter    string // Never when empty
	pods         int32
	// want are the machines at first, by the index of their reservation.
	want map[int]int
	then func(s *scene, ids []string)
}

var reservationChanges = []reservationChange{
	{
		// The machine goes on, and costs what it costs on demand.
		name: "reservation-ends", reservations: []aws.Reservation{t4s("a", 1)}, pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			running := s.tally()
			s.change(ids[0], func(r *aws.Reservation) { r.End = time.Now() })
			s.until(counted, "the node is on demand", func() (bool, string) {
				n := s.nodes(s.name)[0]
				return n.Labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeOnDemand, fmt.Sprint(n.Labels)
			})
			s.until(counted, "the machine costs what it does on demand", func() (bool, string) {
				costs := s.gpuClass().Status.USDPerHour
				return costs == "0.526", costs
			})
			s.staysPlaced(10*time.Second, map[string]int{karpv1.CapacityTypeOnDemand: 1})
			if n := len(s.instances()); n != 1 || running.least < 10 {
				s.t.Errorf("%d machines were launched and %d pods ran at the least, want the first one and all pods", n, running.least)
			}
		},
	},
	{
		// Karpenter deletes the NodeClaims 40 minutes before the end, without replacements.
		name: "block-ends", reservations: []aws.Reservation{h100s("a", 24*time.Hour)}, idleAfter: "20s",
		requirements: map[string]string{corev1.LabelInstanceTypeStable: "p5.4xlarge"}, pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			began, running := time.Now(), s.tally()
			s.change(ids[0], func(r *aws.Reservation) { r.End = began.Add(42 * time.Minute) })
			s.until(2*time.Minute, "another machine is there before", func() (bool, string) {
				placed := s.placed()
				return maps.Equal(placed, map[string]int{ids[0]: 1, karpv1.CapacityTypeOnDemand: 1}), fmt.Sprint(placed)
			})
			s.untilPlaced(10, map[string]int{karpv1.CapacityTypeOnDemand: 1})
			came, longest, homeless := s.history.waits(s.name, began)
			s.t.Logf("%d pods moved within %s, and waited %s at most; %d ran at the least", came, time.Since(began).Round(time.Second), longest, running.least)
			if homeless > 0 {
				s.t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
			}
		},
	},
	{
		name: "interrupted", reservations: []aws.Reservation{with(t4s("a", 1), func(r *aws.Reservation) { r.Kind = aws.Interruptible })}, pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			if err := s.AWS().Reclaim(ids[0], 2*time.Minute); err != nil {
				s.t.Fatal(err)
			}
			s.untilPlaced(10, map[string]int{karpv1.CapacityTypeOnDemand: 1})
		},
	},
	{
		// Karpenter marks the NodeClaim as drifted.
		name: "not-selected-any-more", reservations: []aws.Reservation{t4s("a", 1)}, idleAfter: "20s", pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			began := time.Now()
			s.patch(s.nodeClassNamed(s.name), `{"spec":{"capacityReservationSelectorTerms":null}}`)
			s.untilPlaced(10, map[string]int{karpv1.CapacityTypeOnDemand: 1})
			if came, longest, homeless := s.history.waits(s.name, began); homeless > 0 {
				s.t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
			}
			if free := s.AWS().FreeSlots(ids[0]); free != 1 {
				s.t.Errorf("%d slots are free, want 1", free)
			}
		},
	},
	{
		// Pods move onto slots that become free, and never off them for nothing.
		name: "slot-comes-later", reservations: []aws.Reservation{t4s("a", 0)}, idleAfter: "20s", pods: 10, want: map[int]int{ondemand: 1},
		then: func(s *scene, ids []string) {
			// Karve may count the slot before Karpenter does, which refuses the launch then. It is tried again minutes later, and meanwhile nothing else is launched.
			began := time.Now()
			s.change(ids[0], func(r *aws.Reservation) { r.Total = 1 })
			s.until(2*enough, "the pods run in the slot", func() (bool, string) {
				placed := s.placed()
				return maps.Equal(placed, map[string]int{ids[0]: 1}) && s.running() == 10 && len(s.pods()) == 10, fmt.Sprint(placed)
			})
			if n := len(s.instances()); n != 2 {
				s.t.Errorf("%d machines were launched, want the first one and that in the slot: %s", n, strings.Join(describe(s.instances()), "\n"))
			}
			came, longest, homeless := s.history.waits(s.name, began)
			s.t.Logf("%d pods moved within %s, and waited %s at most", came, time.Since(began).Round(time.Second), longest)
			if homeless > 0 {
				s.t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
			}
			s.staysPlaced(settings.Settle+30*time.Second, map[string]int{ids[0]: 1})
		},
	},
	{
		// EC2 counts a slot that is taken, so the launch that would save the machine is refused. No other machine comes in its place.
		name: "slot-is-not-there", reservations: []aws.Reservation{t4s("a", 0)}, idleAfter: "20s", pods: 10, want: map[int]int{ondemand: 1},
		then: func(s *scene, ids []string) {
			s.change(ids[0], func(r *aws.Reservation) { r.Claimed = new(1) })
			s.untilRefused(ids[0])
			s.staysPlaced(20*time.Second, map[string]int{karpv1.CapacityTypeOnDemand: 1})
			if n := len(s.instances()); n != 1 || s.running() != 10 {
				s.t.Errorf("%d machines were launched and %d pods run, want the first one and all pods: %s", n, s.running(), strings.Join(describe(s.instances()), "\n"))
			}
		},
	},
	{
		name: "new-reservation", pods: 10, want: map[int]int{ondemand: 1},
		then: func(s *scene, _ []string) {
			id := s.reserve(s.name, t4s("b", 1))[0]
			s.until(counted, "Karpenter finds it", func() (bool, string) { return s.known(id), "" })
			s.deploy("more", 10)
			s.untilPlaced(20, map[string]int{karpv1.CapacityTypeOnDemand: 1, id: 1})
		},
	},
	{
		// EC2 counts the slot of a machine that has ended a minute later. Meanwhile the machine is launched on demand.
		name: "slot-returns-late", reservations: []aws.Reservation{with(t4s("a", 1), func(r *aws.Reservation) { r.SlotDelay = time.Minute })}, idleAfter: "2s",
		pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			s.scale(&appsv1.Deployment{ObjectMeta: objectMetaIn(s.name, "inference")}, 0)
			s.untilGone(s.name)
			s.deploy("again", 10)
			s.untilRunning(10)
			if n := len(s.instances()); n != 2 {
				s.t.Errorf("%d machines were launched, want 2: %s", n, strings.Join(describe(s.instances()), "\n"))
			}
			s.checkReservedClaims()
		},
	},
	{
		// A machine of the new image needs a slot, and the only one is taken.
		name: "new-image-while-full", reservations: []aws.Reservation{t4s("a", 1)}, idleAfter: "20s", pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			began, was := time.Now(), s.image()
			s.patch(s.nodeClassNamed(s.name), `{"spec":{"amiSelectorTerms":[{"alias":"al2023@v20260801"}]}}`)
			s.until(2*enough, "the machine is a new one", func() (bool, string) {
				for _, i := range s.instances() {
					if i.State == aws.Running && i.Image == was {
						return false, strings.Join(describe(s.instances()), "\n")
					}
				}
				return s.running() == 10, strings.Join(describe(s.instances()), "\n")
			})
			came, longest, homeless := s.history.waits(s.name, began)
			s.t.Logf("%d pods moved within %s, and waited %s at most", came, time.Since(began).Round(time.Second), longest)
			if homeless > 0 {
				s.t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
			}
			s.untilPlaced(10, map[string]int{ids[0]: 1}) // The slot is free again.
		},
	},
	{
		// Its pool allows nothing else, so the machine goes before the new one comes.
		name: "new-image-and-only-slots", reservations: []aws.Reservation{t4s("a", 1)}, idleAfter: "20s",
		requirements: map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeReserved}, pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			began, was := time.Now(), s.instances()[0].ID
			s.patch(s.nodeClassNamed(s.name), `{"spec":{"amiSelectorTerms":[{"alias":"al2023@v20260801"}]}}`)
			s.until(enough, "the machine is another one", func() (bool, string) {
				all := s.instances()
				return len(all) == 2 && all[0].ID == was && all[0].State == aws.Terminated && s.running() == 10 && len(s.pods()) == 10, strings.Join(describe(all), "\n")
			})
			came, longest, _ := s.history.waits(s.name, began)
			s.t.Logf("%d pods moved within %s, and waited %s at most", came, time.Since(began).Round(time.Second), longest)
			s.untilPlaced(10, map[string]int{ids[0]: 1})
		},
	},
	{
		// Karpenter's own pool takes the slot.
		name: "slot-of-another-pool", reservations: []aws.Reservation{t4s("a", 2)}, pods: 10, want: map[int]int{0: 1},
		then: func(s *scene, ids []string) {
			s.pool(poolOptions{name: s.name + "-stock", stock: true, taintKey: team, requirements: map[string]string{
				karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeReserved, corev1.LabelInstanceTypeStable: cheapest, "karpenter.k8s.aws/instance-family": "",
			}})
			s.pod("stock", tolerates(team, s.name), func(spec *corev1.PodSpec) {
				spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")}}
				spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: s.name + "-stock"}
			})
			s.untilRunning(11)
			s.deploy("more", 10)
			s.untilPlaced(21, map[string]int{karpv1.CapacityTypeOnDemand: 1, ids[0]: 1})
		},
	},
}

// gpuClass returns the scene's GPUNodeClass.
func (s *scene) gpuClass() *v1alpha1.GPUNodeClass {
	s.t.Helper()
	class := &v1alpha1.GPUNodeClass{}
	if err := s.seen.Get(s.t.Context(), client.ObjectKey{Name: s.name}, class); err != nil {
		s.t.Fatal(err)
	}
	return class
}

// known reports whether Karpenter has found a reservation for the scene's node class.
func (s *scene) known(id string) bool {
	s.t.Helper()
	class := s.nodeClassNamed(s.name)
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(class), class); err != nil {
		s.t.Fatal(err)
	}
	found, _, _ := unstructured.NestedSlice(class.Object, "status", "capacityReservations")
	return slices.ContainsFunc(found, func(r any) bool { m, ok := r.(map[string]any); return ok && m["id"] == id })
}

// TestReservationsChangeWhilePodsRun changes reservations under running machines.
func TestReservationsChangeWhilePodsRun(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	for _, c := range reservationChanges {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ids := w.reserve(c.name, c.reservations...)
			s := w.scene(t, c.name, selectsReservations(c.name))
			s.reservedPool(or(c.idleAfter, v1alpha1.IdleNever), c.requirements, restartsCost("0.0001"))
			s.deploy("inference", c.pods)
			s.untilPlaced(int(c.pods), machinesOf(c.want, ids))
			c.then(s, ids)
		})
	}
}

// TestReservationsThatKarveCannotUse has its own cluster, because it takes permissions from the controller, kills it, and changes Karpenter's feature gates. Its
// subtests run in order.
func TestReservationsThatKarveCannotUse(t *testing.T) {
	cluster.Long(t)
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true, BatchIdle: 500 * time.Millisecond, Settle: 5 * time.Second})
	t.Run("without permission to count slots, machines are on demand", w.slotsUnknown)
	t.Run("kills during a burst fill each slot once", w.killedWhileItFillsSlots)
	t.Run("without Karpenter's gate, machines are on demand", w.gateOff)
}

const describeReservations = "karve/DescribeCapacityReservations"

func (w *world) slotsUnknown(t *testing.T) {
	w.AWS().Deny(describeReservations)
	defer w.AWS().Heal(describeReservations)
	w.reserve("unknown", t4s("a", 1))
	s := w.scene(t, "unknown", selectsReservations("unknown"))
	s.reservedPool(v1alpha1.IdleNever, nil)
	s.deploy("inference", 10)
	s.untilPlaced(10, map[string]int{karpv1.CapacityTypeOnDemand: 1})
	s.until(enough, "the GPUNodeClass says what is missing", func() (bool, string) {
		c := meta.FindStatusCondition(s.gpuClass().Status.Conditions, v1alpha1.ConditionCatalogFresh)
		return c != nil && c.Status == metav1.ConditionFalse && containsAll(c.Message, []string{"DescribeCapacityReservations", "reservations"}), fmt.Sprintf("%+v", c)
	})
}

// killedWhileItFillsSlots kills the controller while it creates NodeClaims for ten slots and as many machines on demand.
func (w *world) killedWhileItFillsSlots(t *testing.T) {
	const lots, lot = 5, 40
	random := seed(t)
	ids := w.reserve("killed", t4s("a", 4), t4s("b", 6))
	s := w.scene(t, "killed", selectsReservations("killed"))
	s.reservedPool(v1alpha1.IdleNever, nil)
	d := s.deploy("inference", 0)
	for i := range int32(lots) {
		before := len(s.claims())
		s.scale(d, (i+1)*lot)
		s.until(enough, "the controller launches", func() (bool, string) { return len(s.claims()) > before, fmt.Sprint(before) })
		time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
		if err := w.KillComponent(w.karve.Name); err != nil {
			t.Fatal(err)
		}
		if err := w.StartComponent(t.Context(), w.karve.Name); err != nil {
			t.Fatal(err)
		}
	}
	s.untilPlaced(lots*lot, map[string]int{ids[0]: 4, ids[1]: 6, karpv1.CapacityTypeOnDemand: 10})
	if n := len(s.instances()); n != 20 {
		t.Errorf("%d machines were launched, want 20: %s", n, strings.Join(describe(s.instances()), "\n"))
	}
	s.checkReservedClaims()
}

// gateOff turns off Karpenter's gate after it has found the reservation, which then stays in the status of the EC2NodeClass.
func (w *world) gateOff(t *testing.T) {
	id := w.reserve("gate", t4s("a", 1))[0]
	s := w.scene(t, "gate", selectsReservations("gate"))
	s.until(enough, "Karpenter finds the reservation", func() (bool, string) { return s.known(id), "" })
	w.SetFeatureGates("ReservedCapacity=false")
	if err := w.StopComponent(cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
	if err := w.StartComponent(t.Context(), cluster.Karpenter); err != nil {
		t.Fatal(err)
	}
	s.reservedPool(v1alpha1.IdleNever, nil)
	s.deploy("inference", 10)
	s.untilRunning(10)
	// EC2 itself puts an on-demand machine into an open reservation.
	if all := s.instances(); len(all) != 1 || all[0].CapacityType != karpv1.CapacityTypeOnDemand {
		t.Errorf("want one machine on demand: %s", strings.Join(describe(all), "\n"))
	}
}
