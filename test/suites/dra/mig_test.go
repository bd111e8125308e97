package dra

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
)

const smallInstance = "nvidia.com/mig-1g.5gb"

// divided creates a Node with an A100 that is divided into instances, which have a number of replicas of a resource each.
func (w *world) divided(name, resource, naming string, count int64, profile string, replicas int) *node {
	w.t.Helper()
	gpus := gputest.Divided(1, int(count), profile, 4864)
	for i := range gpus[0].Instances { // Each node has its own.
		gpus[0].Instances[i].UUID = fmt.Sprintf("MIG-%s-%d", name, i)
	}
	return w.nodeWith(name, gpus, sharing.Promise{
		Resource: resource, Replicas: int(count) * replicas, MIG: nodecontract.MIG{Profile: profile, Count: count, Naming: naming}, Backend: nodecontract.BackendDRA,
	})
}

// instances returns the names of the instances of a node in the slice.
func (n *node) instances() []string {
	var names []string
	for _, p := range n.gpus[0].Instances {
		names = append(names, " "+strings.ToLower(p.UUID))
	}
	return names
}

func TestSchedulerGivesUnchangedPodsInstancesOfTheirProfile(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newWorld(t)
	// Neither whole GPUs nor instances of another profile are for these pods, and the other way round.
	whole, large := w.node("whole", 1), w.divided("large", "nvidia.com/mig-3g.20gb", nodecontract.MIGMixed, 2, "3g.20gb", 1)
	small := w.divided("small", smallInstance, nodecontract.MIGMixed, 7, "1g.5gb", 1)
	seen := map[string]bool{}
	for i := range 5 {
		name := fmt.Sprint("small-", i)
		small.ask(name, 1)
		got := small.prepared(name)["c0"]
		if !slices.Contains(small.instances(), got) || seen[got] {
			t.Errorf("%s has the devices %q, and others have %v", name, got, seen)
		}
		seen[got] = true
	}
	// A container with two instances has two, and so have two containers with one each.
	small.ask("two", 2)
	if got := strings.Fields(small.prepared("two")["c0"]); len(got) != 2 || got[0] == got[1] || seen[" "+got[0]] || seen[" "+got[1]] {
		t.Errorf("a container that requests two instances has %v, and others have %v", got, seen)
	}
	small.ask("eighth", 1)
	small.waits("eighth")
	small.end("small-3")
	small.prepared("eighth")

	for _, other := range []*node{whole, large} {
		on := *other
		on.promise.Resource = smallInstance
		on.ask("small-on-"+other.name, 1)
		on.waits("small-on-" + other.name)
	}
	on := *small
	on.promise.Resource = nodecontract.ResourceGPUShared
	on.ask("shared-on-small", 1)
	on.waits("shared-on-small")

	small.driver.SetHealth(small.gpus[0].Instances[0].UUID, false)
	small.publishes(6)
	small.driver.SetCordoned(map[string]bool{small.gpus[0].UUID: true})
	small.publishes(0)
}

func TestSchedulerGivesPodsInstancesAsGPUs(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newWorld(t)
	alone, shared := w.divided("alone", nodecontract.ResourceGPU, nodecontract.MIGSingle, 2, "3g.20gb", 1), w.divided("shared", nodecontract.ResourceGPUShared, nodecontract.MIGSingle, 2, "3g.20gb", 2)
	on := map[string]int{}
	for i := range 4 {
		name := fmt.Sprint("shared-", i)
		shared.ask(name, 1)
		on[shared.prepared(name)["c0"]]++
	}
	if names := shared.instances(); on[names[0]] != 2 || on[names[1]] != 2 {
		t.Errorf("pods are on the instances as %v", on)
	}
	shared.ask("fifth", 1)
	shared.waits("fifth")
	for i, instance := range alone.instances() {
		name := fmt.Sprint("alone-", i)
		alone.ask(name, 1)
		if got := alone.prepared(name)["c0"]; got != instance {
			t.Errorf("%s has %q, want %q", name, got, instance)
		}
	}
	alone.ask("third", 1)
	alone.waits("third")
}

// A claim names the DeviceClass of the resource, and may select by what is known of instances. Karve reads of it what the scheduler does.
func TestClaimsSelectInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	of := func(r resourcev1.DeviceRequest) resourcev1.DeviceRequest {
		r.Exactly.DeviceClassName, _ = nodecontract.DeviceClass(smallInstance)
		return r
	}
	devices := claims.Devices{Kind: claims.Kind{Model: "a100", Profile: "1g.5gb", Resource: smallInstance}, Count: 7, Replicas: 1, MemoryMiB: 4864}
	for name, c := range map[string]struct {
		request resourcev1.DeviceRequest
		places  int
	}{
		"one-instance":            {of(request("gpu", 1)), 7},
		"two-instances":           {of(request("gpu", 2, `profile == "1g.5gb"`, `architecture == "ampere"`)), 3},
		"one-with-memory":         {of(request("gpu", 1, "memory=4Gi")), 7},
		"another-profile":         {of(request("gpu", 1, `profile == "3g.20gb"`)), 0},
		"eight-instances":         {of(request("gpu", 8)), 0},
		"two-replicas-of-one":     {of(request("gpu", 1, "replicas=2")), 0},
		"class-of-another-device": {request("gpu", 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, client: w.client, config: w.config}
			n := w.divided(name, smallInstance, nodecontract.MIGMixed, 7, "1g.5gb", 1)
			w.template(name, resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{c.request}})
			for i := range c.places {
				pod := fmt.Sprintf("%s-%d", name, i)
				n.askByClaim(pod, corev1.PodResourceClaim{ResourceClaimTemplateName: &name})
				w.bound(pod)
			}
			last := name + "-last"
			n.askByClaim(last, corev1.PodResourceClaim{ResourceClaimTemplateName: &name})
			n.waits(last)
			ask := w.read(last).ask
			if why := ask.Fits(devices); ask.Refusal != "" || (why == "") != (c.places > 0) {
				t.Errorf("Karve reads %+v and says %q of the instances, of which %d such pods get some", ask, why, c.places)
			}
		})
	}
}
