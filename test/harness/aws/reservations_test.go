package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	karpawsv1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/aws/karpenter-provider-aws/pkg/controllers/interruption"
	"github.com/aws/karpenter-provider-aws/pkg/controllers/interruption/messages"
	"github.com/aws/karpenter-provider-aws/pkg/providers/capacityreservation"
	karpinstance "github.com/aws/karpenter-provider-aws/pkg/providers/instance"
	"github.com/google/go-cmp/cmp"
	"github.com/patrickmn/go-cache"
	"k8s.io/utils/clock"
	"pgregory.net/rapid"
	karpoptions "sigs.k8s.io/karpenter/pkg/operator/options"
)

// reservedTemplate returns a launch template for a reservation as Karpenter creates it.
func reservedTemplate(s *Server, name, image string, r Reservation) *ec2.CreateLaunchTemplateInput {
	in := templateInput(s, name, image)
	in.LaunchTemplateData.CapacityReservationSpecification = &ec2types.LaunchTemplateCapacityReservationSpecificationRequest{
		CapacityReservationPreference: ec2types.CapacityReservationPreferenceCapacityReservationsOnly,
		CapacityReservationTarget:     &ec2types.CapacityReservationTarget{CapacityReservationId: &r.ID},
	}
	if market, _ := r.Kind.market(); market != ec2types.MarketTypeOnDemand {
		in.LaunchTemplateData.InstanceMarketOptions = &ec2types.LaunchTemplateInstanceMarketOptionsRequest{MarketType: market}
	}
	return in
}

// reserve adds a reservation and a launch template that is called like its ID.
func reserve(t *testing.T, s *Server, c clients, r Reservation) Reservation {
	t.Helper()
	r = s.Reserve(r)
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), reservedTemplate(s, r.ID, s.gpuImage(t, AL2023, "x86_64").ID, r)))
	return r
}

// fill requests n instances of a reservation.
func (r Reservation) fleet(n int) *ec2.CreateFleetInput {
	_, capacity := r.Kind.market()
	in := fleetInput(r.ID, string(capacity), offering{r.Type, r.Zone})
	in.TargetCapacitySpecification.TotalTargetCapacity = count(n)
	return in
}

func (r Reservation) launch(t *testing.T, c clients, n int) (ids, failed []string) {
	t.Helper()
	out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), r.fleet(n)))
	for _, i := range out.Instances {
		ids = append(ids, i.InstanceIds...)
	}
	return ids, refusals(out)
}

func t4(kind ReservationKind, total int) Reservation {
	return Reservation{Kind: kind, Type: "g4dn.xlarge", Zone: "us-east-1a", Total: total}
}

// TestKarpenterFindsReservations reads reservations with Karpenter's own provider.
func TestKarpenterFindsReservations(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	for n := range 7 { // more than a page
		s.Reserve(Reservation{ID: fmt.Sprintf("cr-a%d", n), Type: "g4dn.xlarge", Zone: "us-east-1a", Total: n, Tags: map[string]string{"team": "a"}})
	}
	s.Reserve(Reservation{ID: "cr-shared", Kind: Targeted, Type: "g5.xlarge", Zone: "us-east-1b", Total: 5, Elsewhere: 2, Owner: "111111111111", Tags: map[string]string{"team": "b"}})
	s.Reserve(Reservation{ID: "cr-over", State: ReservationExpired, Type: "g5.xlarge", Zone: "us-east-1b", Total: 5, Tags: map[string]string{"team": "b"}})
	s.Reserve(Reservation{ID: "cr-lies", Kind: Interruptible, Type: "g5.xlarge", Zone: "us-east-1b", Total: 1, Claimed: new(9)})
	for name, test := range map[string]struct {
		term karpawsv1.CapacityReservationSelectorTerm
		want string
	}{
		"a tag":         {karpawsv1.CapacityReservationSelectorTerm{Tags: map[string]string{"team": "a"}}, "cr-a0=0 cr-a1=1 cr-a2=2 cr-a3=3 cr-a4=4 cr-a5=5 cr-a6=6"},
		"active only":   {karpawsv1.CapacityReservationSelectorTerm{Tags: map[string]string{"team": "b"}}, "cr-shared=3"},
		"any value":     {karpawsv1.CapacityReservationSelectorTerm{Tags: map[string]string{"team": "*"}, OwnerID: "111111111111"}, "cr-shared=3"},
		"not its owner": {karpawsv1.CapacityReservationSelectorTerm{Tags: map[string]string{"team": "*"}, OwnerID: "222222222222"}, ""},
		"its criteria":  {karpawsv1.CapacityReservationSelectorTerm{InstanceMatchCriteria: "targeted"}, "cr-lies=9 cr-shared=3"},
		"its ID":        {karpawsv1.CapacityReservationSelectorTerm{ID: "cr-a3"}, "cr-a3=3"},
		"an ended one":  {karpawsv1.CapacityReservationSelectorTerm{ID: "cr-over"}, ""},
		"none":          {karpawsv1.CapacityReservationSelectorTerm{ID: "cr-none"}, ""},
	} {
		provider := capacityreservation.NewProvider(c.ec2, clock.RealClock{}, cache.New(time.Minute, time.Minute), cache.New(time.Minute, time.Minute))
		found, err := provider.List(t.Context(), test.term)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, r := range found {
			if _, err := karpawsv1.CapacityReservationFromEC2(clock.RealClock{}, r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got = append(got, fmt.Sprintf("%s=%d", *r.CapacityReservationId, provider.GetAvailableInstanceCount(*r.CapacityReservationId)))
		}
		slices.Sort(got)
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s: found %s, want %s", name, got, test.want)
		}
	}
}

// TestReservationTakesAsManyInstancesAsItHasSlots draws launches, terminations, and launches of another account with which the reservation is shared.
func TestReservationTakesAsManyInstancesAsItHasSlots(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	rapid.Check(t, func(rt *rapid.T) {
		r := reserve(t, s, c, t4(rapid.SampledFrom([]ReservationKind{Open, Targeted, Interruptible}).Draw(rt, "kind"), rapid.IntRange(0, 4).Draw(rt, "slots")))
		var running []string
		elsewhere := 0
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"launch", "terminate", "elsewhere"}).Draw(rt, "step") {
			case "launch":
				wanted, free := rapid.IntRange(1, 4).Draw(rt, "instances"), max(0, r.Total-elsewhere-len(running))
				ids, failed := r.launch(t, c, wanted)
				if len(ids) != min(wanted, free) || (len(failed) > 0) != (wanted > free) {
					rt.Fatalf("launched %d of %d, with %d slots free; failed: %v", len(ids), wanted, free, failed)
				}
				if len(failed) > 0 && failed[0] != "g4dn.xlarge us-east-1a: ReservationCapacityExceeded" {
					rt.Fatalf("failed: %v", failed)
				}
				running = append(running, ids...)
			case "terminate":
				if len(running) > 0 {
					s.Terminate(running[0])
					running = running[1:]
				}
			case "elsewhere":
				elsewhere = rapid.IntRange(0, r.Total).Draw(rt, "used elsewhere")
				if err := s.ChangeReservation(r.ID, func(r *Reservation) { r.Elsewhere = elsewhere }); err != nil {
					rt.Fatal(err)
				}
			}
			described := must[*ec2.DescribeCapacityReservationsOutput](t)(c.ec2.DescribeCapacityReservations(t.Context(), &ec2.DescribeCapacityReservationsInput{CapacityReservationIds: []string{r.ID}}))
			free := max(0, r.Total-elsewhere-len(running))
			if got := described.CapacityReservations[0]; int(*got.AvailableInstanceCount) != free || int(*got.TotalInstanceCount) != r.Total || s.FreeSlots(r.ID) != free {
				rt.Fatalf("%d of %d slots are free, want %d of %d", *got.AvailableInstanceCount, *got.TotalInstanceCount, free, r.Total)
			}
		}
	})
}

func TestFailedReservedLaunchHasErrorCodeOfEC2(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	h100 := Reservation{Kind: Block, Type: "p5.4xlarge", Zone: "us-east-1a", Total: 1, End: time.Now().Add(24 * time.Hour)}
	refused, sibling := reserve(t, s, c, t4(Targeted, 1)), reserve(t, s, c, t4(Targeted, 1))
	s.Refuse(Refusal{Reservation: refused.ID})
	s.Refuse(Refusal{CapacityType: onDemand}) // reservations have their own capacity
	for name, test := range map[string]struct {
		reservation Reservation
		change      func(*Reservation)
		fleet       func(*ec2.CreateFleetInput)
		want        string
	}{
		"has a slot":                   {reservation: sibling},
		"a block":                      {reservation: reserve(t, s, c, h100)},
		"interruptible":                {reservation: reserve(t, s, c, t4(Interruptible, 1))},
		"refused by its ID":            {reservation: refused, want: insufficientCapacity},
		"full":                         {reservation: reserve(t, s, c, t4(Open, 0)), want: "ReservationCapacityExceeded"},
		"of another type":              {reservation: reserve(t, s, c, t4(Open, 1)), change: func(r *Reservation) { r.Type = "g5.xlarge" }, want: "ReservationCapacityExceeded"},
		"of another zone":              {reservation: reserve(t, s, c, t4(Open, 1)), change: func(r *Reservation) { r.Zone = "us-east-1b" }, want: "ReservationCapacityExceeded"},
		"used elsewhere":               {reservation: reserve(t, s, c, t4(Open, 1)), change: func(r *Reservation) { r.Elsewhere = 1 }, want: "ReservationCapacityExceeded"},
		"canceled":                     {reservation: reserve(t, s, c, t4(Open, 1)), change: func(r *Reservation) { r.State = ReservationCanceled }, want: "InvalidCapacityReservationState.Unavailable"},
		"reclaimed":                    {reservation: reserve(t, s, c, t4(Interruptible, 1)), change: func(r *Reservation) { r.State = ReservationUnavailable }, want: "InvalidCapacityReservationState.Unavailable"},
		"a block that has not started": {reservation: reserve(t, s, c, h100), change: func(r *Reservation) { r.State = ReservationScheduled }, want: "InvalidCapacityReservationState.PendingActivation"},
		"a block that ends":            {reservation: reserve(t, s, c, h100), change: func(r *Reservation) { r.End = time.Now().Add(29 * time.Minute) }, want: "ReservationCapacityExceeded"},
		"a block bought on demand": {reservation: reserve(t, s, c, h100), fleet: func(in *ec2.CreateFleetInput) {
			in.TargetCapacitySpecification.DefaultTargetCapacityType = ec2types.DefaultTargetCapacityTypeOnDemand
		}, want: "InvalidFleetConfiguration"},
	} {
		if test.change != nil {
			if err := s.ChangeReservation(test.reservation.ID, test.change); err != nil {
				t.Fatal(err)
			}
		}
		in := test.reservation.fleet(1)
		if test.fleet != nil {
			test.fleet(in)
		}
		out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), in))
		got := ""
		if len(out.Errors) == 1 {
			got = *out.Errors[0].ErrorCode
		}
		if got != test.want || (len(out.Instances) == 1) == (got != "") {
			t.Errorf("%s: failed with %q and launched %d, want %q", name, got, len(out.Instances), test.want)
		}
	}
	gone := reservedTemplate(s, "gone", s.gpuImage(t, AL2023, "x86_64").ID, Reservation{ID: "cr-gone"})
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), gone))
	if out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), fleetInput("gone", onDemand, offering{"g4dn.xlarge", "us-east-1a"}))); *out.Errors[0].ErrorCode != "InvalidCapacityReservationId.NotFound" {
		t.Errorf("a reservation that does not exist: %v", refusals(out))
	}
}

// TestKarpenterSeesReservedInstances reads launched instances as Karpenter's provider does, with the feature gate on.
func TestKarpenterSeesReservedInstances(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	opted := templateInput(s, "none", gpuImage(t)(s).ID)
	opted.LaunchTemplateData.CapacityReservationSpecification = &ec2types.LaunchTemplateCapacityReservationSpecificationRequest{
		CapacityReservationPreference: ec2types.CapacityReservationPreferenceNone,
	}
	must[*ec2.CreateLaunchTemplateOutput](t)(c.ec2.CreateLaunchTemplate(t.Context(), opted))
	open, targeted := reserve(t, s, c, t4(Open, 2)), reserve(t, s, c, t4(Targeted, 1))
	interruptible, block := reserve(t, s, c, t4(Interruptible, 1)), reserve(t, s, c, Reservation{Kind: Block, Type: "p5.4xlarge", Zone: "us-east-1a", Total: 1})
	any4 := offering{"g4dn.xlarge", "us-east-1a"}
	ctx := karpoptions.ToContext(t.Context(), &karpoptions.Options{FeatureGates: karpoptions.FeatureGates{ReservedCapacity: true}})
	for _, test := range []struct {
		name  string
		fleet *ec2.CreateFleetInput
		slot  string // the reservation whose slot it uses
		want  string
	}{
		{"targets an open one", open.fleet(1), open.ID, "reserved " + open.ID + " default false"},
		{"without a preference", fleetInput("t", onDemand, any4), open.ID, "on-demand"},
		{"without a slot left", fleetInput("t", onDemand, any4), "", "on-demand"},
		{"preference none", fleetInput("none", onDemand, any4), "", "on-demand"},
		{"targeted", targeted.fleet(1), targeted.ID, "reserved " + targeted.ID + " default false"},
		{"interruptible", interruptible.fleet(1), interruptible.ID, "reserved " + interruptible.ID + " default true"},
		{"block", block.fleet(1), block.ID, "reserved " + block.ID + " capacity-block false"},
		{"spot", fleetInput("t", spot, any4), "", "spot"},
	} {
		out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), test.fleet))
		if len(out.Instances) != 1 {
			t.Errorf("%s: %v", test.name, refusals(out))
			continue
		}
		described := must[*ec2.DescribeInstancesOutput](t)(c.ec2.DescribeInstances(t.Context(), &ec2.DescribeInstancesInput{InstanceIds: out.Instances[0].InstanceIds})).Reservations[0].Instances[0]
		got := karpinstance.NewInstance(ctx, described)
		is := got.CapacityType
		if d := got.CapacityReservationDetails; d != nil {
			is = fmt.Sprintf("%s %s %s %t", is, d.ID, d.Type, d.Interruptible)
		}
		if is != test.want || value(described.CapacityReservationId) != test.slot {
			t.Errorf("%s: Karpenter sees %s, in the reservation %q; want %s, %q", test.name, is, value(described.CapacityReservationId), test.want, test.slot)
		}
	}
}

// region45 returns a region without a listener, for a bubble, with a launch template for a reservation of two slots that ends in 45 minutes.
func region45(t *testing.T, r Reservation) (*Server, Reservation) {
	t.Helper()
	s := region(Config{}.withDefaults())
	r.Total, r.Zone, r.End = 2, "us-east-1a", time.Now().Add(45*time.Minute)
	r = s.Reserve(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	image := s.images[slices.IndexFunc(s.images, func(i Image) bool { return i.Variant == NVIDIA && i.Arch == "x86_64" })]
	must[*ec2.CreateLaunchTemplateOutput](t)(s.createLaunchTemplate(reservedTemplate(s, r.ID, image.ID, r)))
	if out := must[*ec2.CreateFleetOutput](t)(s.createFleet(r.fleet(2))); len(out.Instances) != 1 || len(out.Instances[0].InstanceIds) != 2 {
		t.Fatalf("launched %+v, failed: %v", out.Instances, refusals(out))
	}
	return s, r
}

// story returns what is seen of a region after a time: the states and capacity types of the instances, and the events about reservations.
func story(s *Server) string {
	var b strings.Builder
	for _, i := range s.Instances() {
		fmt.Fprintf(&b, "%s %s, ", i.CapacityType, i.State)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.queue {
		if strings.Contains(m.body, "Capacity") {
			b.WriteString("warned")
		}
	}
	return b.String()
}

func TestEndsOfReservations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reservation Reservation
		later       time.Duration // what happens to the end after 4 minutes
		want        map[time.Duration]string
	}{
		"a block": {Reservation{Kind: Block, Type: "p5.4xlarge"}, 0, map[time.Duration]string{
			4 * time.Minute:  "reserved running, reserved running, ",
			6 * time.Minute:  "reserved running, reserved running, warned",
			14 * time.Minute: "reserved running, reserved running, warned",
			16 * time.Minute: "reserved terminated, reserved terminated, warned",
		}},
		"an extended block": {Reservation{Kind: Block, Type: "p5.4xlarge"}, time.Hour, map[time.Duration]string{
			16 * time.Minute: "reserved running, reserved running, ",
			66 * time.Minute: "reserved running, reserved running, warned",
			76 * time.Minute: "reserved terminated, reserved terminated, warned",
		}},
		"an open one": {Reservation{Kind: Open, Type: "g4dn.xlarge"}, 0, map[time.Duration]string{
			44 * time.Minute: "reserved running, reserved running, ",
			46 * time.Minute: "on-demand running, on-demand running, ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				s, r := region45(t, test.reservation)
				time.Sleep(4 * time.Minute)
				if err := s.ChangeReservation(r.ID, func(r *Reservation) { r.End = r.End.Add(test.later) }); err != nil {
					t.Fatal(err)
				}
				for minute := 4 * time.Minute; minute < 2*time.Hour; minute += time.Minute {
					time.Sleep(time.Until(began.Add(minute)))
					synctest.Wait()
					if want, ok := test.want[minute]; ok && story(s) != want {
						t.Errorf("after %s: %s, want %s", minute, story(s), want)
					}
				}
			})
		})
	}
}

func TestSlotReturnsSomeTimeAfterTermination(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, r := region45(t, Reservation{Type: "g4dn.xlarge", SlotDelay: time.Minute})
		s.Terminate(s.Instances()[0].ID)
		synctest.Wait()
		if got := s.FreeSlots(r.ID); got != 0 {
			t.Errorf("%d slots are free at once, want 0", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := s.FreeSlots(r.ID); got != 1 {
			t.Errorf("%d slots are free after two minutes, want 1", got)
		}
	})
}

func TestReclaimedReservationWarnsKarpenter(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	r := reserve(t, s, c, t4(Interruptible, 2))
	ids, _ := r.launch(t, c, 1)
	queue := must[*sqs.GetQueueUrlOutput](t)(c.sqs.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: new("karve")})).QueueUrl
	if err := s.Reclaim(r.ID, 0); err != nil {
		t.Fatal(err)
	}
	parser := interruption.NewEventParser(interruption.DefaultParsers...)
	warned := false
	for _, m := range must[*sqs.ReceiveMessageOutput](t)(c.sqs.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, MaxNumberOfMessages: 10})).Messages {
		parsed, err := parser.Parse(*m.Body)
		if err != nil {
			t.Fatal(err)
		}
		warned = warned || parsed.Kind() == messages.CapacityReservationInterruptionKind && slices.Equal(parsed.EC2InstanceIDs(), ids)
	}
	if !warned {
		t.Error("Karpenter finds no warning in the queue")
	}
	if got := s.Instances()[0].State; got != Terminated {
		t.Errorf("after the notice the instance is %s", got)
	}
	if ids, failed := r.launch(t, c, 1); len(ids) != 0 || !cmp.Equal(failed, []string{"g4dn.xlarge us-east-1a: InvalidCapacityReservationState.Unavailable"}) {
		t.Errorf("launched %v, failed: %v", ids, failed)
	}
	if err := s.Reclaim("cr-none", 0); err == nil {
		t.Error("a reservation that does not exist was reclaimed")
	}
}

func TestFaultOfOneProgram(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{})
	config := ClientConfig(s.URL)
	config.Credentials = credentials.NewStaticCredentialsProvider("karve", "local", "")
	karve := clientsOf(config)
	read := func(ctx context.Context, c clients) string {
		_, err := c.ec2.DescribeCapacityReservations(ctx, &ec2.DescribeCapacityReservationsInput{})
		return code(err)
	}
	s.Deny("karve/DescribeCapacityReservations")
	if a, b := read(t.Context(), karve), read(t.Context(), c); a != "UnauthorizedOperation" || b != "<nil>" {
		t.Errorf("the program gets %s, another %s", a, b)
	}
	s.Heal("karve/DescribeCapacityReservations")
	if a := read(t.Context(), karve); a != "<nil>" {
		t.Errorf("healed, the program gets %s", a)
	}
}
