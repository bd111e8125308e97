package aws

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/karpenter-provider-aws/pkg/controllers/interruption"
	"github.com/aws/karpenter-provider-aws/pkg/controllers/interruption/messages"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// launchOne launches an instance and returns its ID.
func launchOne(t *testing.T, c clients) string {
	t.Helper()
	out := must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), fleetInput("t", onDemand, offering{"g4dn.xlarge", "us-east-1a"})))
	return out.Instances[0].InstanceIds[0]
}

// next returns the next event of a watch.
func next(t *testing.T, events <-chan Instance) Instance {
	t.Helper()
	select {
	case i, ok := <-events:
		if !ok {
			t.Fatal("the watch has ended")
		}
		return i
	case <-time.After(time.Minute):
		t.Fatal("the watch sent nothing for a minute")
	}
	return Instance{}
}

func TestWatchReportsEachStateOfInstance(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{LaunchTime: time.Millisecond, ShutdownTime: time.Millisecond}, gpuImage(t))
	before := s.Watch(t.Context())
	id := launchOne(t, c)
	for _, want := range []State{Pending, Running} {
		if got := next(t, before); got.ID != id || got.State != want {
			t.Fatalf("the watch sent %s in state %s, want state %s", got.ID, got.State, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	after := s.Watch(ctx)
	if got := next(t, after); got.ID != id || got.State != Running {
		t.Fatalf("a new watch first sent %s in state %s", got.ID, got.State)
	}
	must[*ec2.CreateTagsOutput](t)(c.ec2.CreateTags(t.Context(), &ec2.CreateTagsInput{Resources: []string{id}, Tags: tagList(map[string]string{"Name": "n"})}))
	if got := next(t, before); got.Tags["Name"] != "n" {
		t.Errorf("the watch sent the tags %v", got.Tags)
	}
	must[*ec2.TerminateInstancesOutput](t)(c.ec2.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: []string{id}}))
	for _, want := range []State{ShuttingDown, Terminated} {
		if got := next(t, before); got.State != want {
			t.Fatalf("the watch sent state %s, want %s", got.State, want)
		}
	}
	s.Terminate(id) // a second call changes nothing
	cancel()
	for range after { // ends only once the channel is closed
	}
	alive := &ec2.DescribeInstancesInput{InstanceIds: []string{id}, Filters: []ec2types.Filter{filter("instance-state-name", "pending", "running", "shutting-down")}}
	if out := must[*ec2.DescribeInstancesOutput](t)(c.ec2.DescribeInstances(t.Context(), alive)); len(out.Reservations) != 0 {
		t.Errorf("a terminated instance is still listed: %+v", out.Reservations)
	}
}

// TestWatchMissesNoFinalState draws launches and terminations, and compares the last event of each instance with its final state.
func TestWatchMissesNoFinalState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		s, c := withTemplate(t, Config{}, gpuImage(t))
		defer s.Stop()
		events := s.Watch(t.Context())
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			if known := s.Instances(); len(known) > 0 && rapid.Bool().Draw(rt, "terminate") {
				s.Terminate(known[rapid.IntRange(0, len(known)-1).Draw(rt, "which")].ID)
			} else {
				launchOne(t, c)
			}
		}
		want, got := map[string][]State{}, map[string][]State{}
		for _, i := range s.Instances() {
			want[i.ID] = []State{Pending, Running}
			if i.State == Terminated {
				want[i.ID] = append(want[i.ID], ShuttingDown, Terminated)
			}
		}
		for _, states := range want {
			for range states {
				i := next(t, events)
				got[i.ID] = append(got[i.ID], i.State)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("sent by the watch (-want +got):\n%s", diff)
		}
	})
}

func TestListingByTagReturnsExactlyTaggedInstances(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	foreign := fleetInput("t", onDemand, offering{"g4dn.xlarge", "us-east-1a"})
	foreign.TagSpecifications = nil
	must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), foreign))
	many := fleetInput("t", onDemand, offering{"g4dn.xlarge", "us-east-1a"})
	many.TargetCapacitySpecification.TotalTargetCapacity = new(int32(23))
	must[*ec2.CreateFleetOutput](t)(c.ec2.CreateFleet(t.Context(), many))

	pages := ec2.NewDescribeInstancesPaginator(c.ec2, &ec2.DescribeInstancesInput{MaxResults: new(int32(10)), Filters: []ec2types.Filter{
		filter("tag-key", "karpenter.sh/nodepool"), filter("tag:eks:eks-cluster-name", "karve"), filter("instance-state-name", "running"),
	}})
	var listed []string
	for pages.HasMorePages() {
		page := must[*ec2.DescribeInstancesOutput](t)(pages.NextPage(t.Context()))
		for _, r := range page.Reservations {
			listed = append(listed, *r.Instances[0].InstanceId)
		}
	}
	var want []string
	for _, i := range s.Instances()[1:] {
		want = append(want, i.ID)
	}
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

// TestKarpenterParsesInterruptionNotices parses the messages of the queue with Karpenter's own parser.
func TestKarpenterParsesInterruptionNotices(t *testing.T) {
	t.Parallel()
	s, c := withTemplate(t, Config{}, gpuImage(t))
	id := launchOne(t, c)
	receive := func() []string {
		queue := must[*sqs.GetQueueUrlOutput](t)(c.sqs.GetQueueUrl(t.Context(), &sqs.GetQueueUrlInput{QueueName: new("karve")})).QueueUrl
		out := must[*sqs.ReceiveMessageOutput](t)(c.sqs.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: queue, MaxNumberOfMessages: 10, VisibilityTimeout: 60, WaitTimeSeconds: 20,
		}))
		var bodies []string
		for _, m := range out.Messages {
			bodies = append(bodies, *m.Body)
			must[*sqs.DeleteMessageOutput](t)(c.sqs.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: m.ReceiptHandle}))
		}
		return bodies
	}
	receive() // the messages of the launch
	parser := interruption.NewEventParser(interruption.DefaultParsers...)
	for _, test := range []struct {
		what func() error
		want []messages.Kind
	}{
		{func() error { return s.Interrupt(id, RebalanceRecommendation) }, []messages.Kind{messages.RebalanceRecommendationKind}},
		{func() error { return s.Interrupt(id, SpotInterruption) }, []messages.Kind{messages.SpotInterruptionKind}},
		{func() error { return s.Interrupt(id, ScheduledChange) }, []messages.Kind{messages.ScheduledChangeKind}},
		{func() error { s.Terminate(id); return nil }, []messages.Kind{messages.InstanceTerminatedKind, messages.InstanceTerminatedKind}},
	} {
		if err := test.what(); err != nil {
			t.Fatal(err)
		}
		var got []messages.Kind
		for _, body := range receive() {
			m := must[messages.Message](t)(parser.Parse(body))
			got = append(got, m.Kind())
			if !slices.Equal(m.EC2InstanceIDs(), []string{id}) || time.Since(m.StartTime()).Abs() > time.Hour {
				t.Errorf("%s is of %v at %v", m.Kind(), m.EC2InstanceIDs(), m.StartTime())
			}
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("notices (-want +got):\n%s", diff)
		}
	}
	for _, notice := range []Notice{SpotInterruption, "a rumor"} {
		if err := s.Interrupt("i-0", notice); err == nil {
			t.Errorf("Interrupt accepted the notice %s for an unknown instance", notice)
		}
	}
	if err := s.Interrupt(id, "a rumor"); err == nil {
		t.Error("Interrupt accepted an unknown notice")
	}
}

func TestMessageIsRedeliveredUntilDeleted(t *testing.T) {
	t.Parallel()
	s, c := started(t, Config{Queue: "q"})
	queue := new(s.URL + "/" + account + "/q")
	receive := func(visibility int32) []string {
		out := must[*sqs.ReceiveMessageOutput](t)(c.sqs.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, VisibilityTimeout: visibility}))
		var receipts []string
		for _, m := range out.Messages {
			receipts = append(receipts, *m.ReceiptHandle)
		}
		return receipts
	}
	arrived := make(chan *sqs.ReceiveMessageOutput)
	go func() {
		out, err := c.sqs.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue, WaitTimeSeconds: 20, VisibilityTimeout: 0})
		if err != nil {
			t.Error(err)
		}
		arrived <- out
	}()
	for s.Calls("ReceiveMessage") == 0 {
		time.Sleep(time.Millisecond)
	}
	must[*sqs.SendMessageOutput](t)(c.sqs.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: new("hello")}))
	if out := <-arrived; out == nil || len(out.Messages) != 1 || *out.Messages[0].Body != "hello" {
		t.Fatalf("a waiting receiver got %+v", out)
	}
	first := receive(600)
	if len(first) != 1 {
		t.Fatalf("a message that nobody deleted is not received again: %v", first)
	}
	if got := receive(0); len(got) != 0 {
		t.Errorf("a hidden message was received again: %v", got)
	}
	s.mu.Lock()
	s.queue[0].hidden = time.Time{} // as if the visibility timeout had passed
	s.mu.Unlock()
	if got := receive(0); len(got) != 1 {
		t.Errorf("a message was not received again after its visibility timeout: %v", got)
	}
	must[*sqs.DeleteMessageOutput](t)(c.sqs.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: queue, ReceiptHandle: &first[0]}))
	if got := receive(0); len(got) != 0 {
		t.Errorf("a deleted message is received: %v", got)
	}
}
