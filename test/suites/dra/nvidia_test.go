package dra

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/nvidiadra"
)

// nvidiaNode creates a Node with T4s that NVIDIA's driver publishes. shares is the value consumableShares of its chart.
func (w *world) nvidiaNode(name, shares string, count int) *node {
	w.t.Helper()
	w.bareNode(name)
	var gpus []gpu.Device
	for i := range count {
		gpus = append(gpus, gpu.Device{UUID: fmt.Sprintf("GPU-%s-%d", name, i), Minor: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, PCIeRoot: "pci0000:00"})
	}
	_, err := w.client.ResourceV1().ResourceSlices().Create(w.t.Context(), nvidiadra.Slice(name, shares, gpus...), metav1.CreateOptions{})
	w.must(err)
	return &node{world: w, name: name, gpus: gpus, promise: sharing.Promise{Resource: nodecontract.ResourceGPU}}
}

// nvidiaRequest returns a request for GPUs of NVIDIA's driver with capacities, such as "memory=6Gi".
func nvidiaRequest(class string, count int64, capacities ...string) resourcev1.DeviceRequest {
	exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}
	for _, c := range capacities {
		if exactly.Capacity == nil {
			exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{}}
		}
		name, amount, _ := strings.Cut(c, "=")
		exactly.Capacity.Requests[resourcev1.QualifiedName(name)] = resource.MustParse(amount)
	}
	return resourcev1.DeviceRequest{Name: "gpu", Exactly: exactly}
}

// given returns the devices that the claim of a bound pod has, whether it was made for a ResourceClaimTemplate or for an extended resource.
func (n *node) given(name string) []string {
	n.t.Helper()
	n.bound(name)
	pod, err := n.client.CoreV1().Pods(namespace).Get(n.t.Context(), name, metav1.GetOptions{})
	n.must(err)
	claim := ""
	switch {
	case pod.Status.ExtendedResourceClaimStatus != nil:
		claim = pod.Status.ExtendedResourceClaimStatus.ResourceClaimName
	case len(pod.Status.ResourceClaimStatuses) == 1:
		claim = *pod.Status.ResourceClaimStatuses[0].ResourceClaimName
	default:
		n.t.Fatalf("%s has no claim: %+v", name, pod.Status)
	}
	c, err := n.client.ResourceV1().ResourceClaims(namespace).Get(n.t.Context(), claim, metav1.GetOptions{})
	n.must(err)
	var devices []string
	for _, r := range c.Status.Allocation.Devices.Results {
		devices = append(devices, r.Device)
	}
	return devices
}

// What kube-scheduler 1.36.3 does with claims for nodes in the form of NVIDIA's driver, and what pkg/claims reads of them.
var nvidiaCases = map[string]struct {
	// shares is consumableShares of the driver, and gpus the GPUs of the node.
	shares  string
	gpus    int
	request resourcev1.DeviceRequest
	// places is how many such pods an empty node takes, on how many GPUs.
	places, on int
	// unfit is why Karve plans none for such a node.
	unfit string
}{
	"whole GPUs":                {shares: "disabled", gpus: 2, request: nvidiaRequest(nvidiadra.Driver, 1), places: 2, on: 2},
	"two whole GPUs":            {shares: "disabled", gpus: 4, request: nvidiaRequest(nvidiadra.Driver, 2), places: 2, on: 4},
	"a whole GPU with memory":   {shares: "disabled", gpus: 2, request: nvidiaRequest(nvidiadra.Driver, 1, "memory=4Gi"), places: 2, on: 2},
	"more memory than a GPU":    {shares: "disabled", gpus: 2, request: nvidiaRequest(nvidiadra.Driver, 1, "memory=16Gi"), places: 0, unfit: "more of each GPU"},
	"shares of whole GPUs":      {shares: "disabled", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1, "shares=1"), places: 0, unfit: "requests the capacity shares"},
	"one share":                 {shares: "4", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1), places: 4, on: 1},
	"two shares":                {shares: "4", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1, "shares=2"), places: 2, on: 1},
	"one and a half shares":     {shares: "4", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1, "shares=1500m"), places: 2, on: 1},
	"more shares than a GPU":    {shares: "4", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1, "shares=5"), places: 0},
	"a share with memory":       {shares: "10", gpus: 1, request: nvidiaRequest(nvidiadra.Driver, 1, "memory=6Gi"), places: 2, on: 1},
	"shares of two GPUs":        {shares: "4", gpus: 2, request: nvidiaRequest(nvidiadra.Driver, 2, "shares=2"), places: 2, on: 2},
	"instances, on whole GPUs":  {shares: "disabled", gpus: 1, request: nvidiaRequest("mig.nvidia.com", 1), places: 0, unfit: "does not select GPUs of model t4"},
	"instances, beside shares":  {shares: "4", gpus: 1, request: nvidiaRequest("mig.nvidia.com", 1), places: 0, unfit: "does not select GPUs of model t4"},
	"more GPUs than a node has": {shares: "disabled", gpus: 2, request: nvidiaRequest(nvidiadra.Driver, 3), places: 0, unfit: "asks for 3 GPUs"},
}

func TestSchedulerPlacesAsManyPodsOnNVIDIAsDriverAsKarveReads(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, *nvidiadra.DeviceClass("gpu"), *nvidiadra.DeviceClass("mig"), claims.DeviceClass(nodecontract.ResourceGPUShared))
	for name, c := range nvidiaCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, client: w.client, config: w.config}
			id := strings.NewReplacer(" ", "-", ",", "").Replace(strings.ToLower(name))
			n := w.nvidiaNode(id, c.shares, c.gpus)
			w.template(id, resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{c.request}})
			n.askByClaim(id, corev1.PodResourceClaim{ResourceClaimTemplateName: &id})
			read := w.readOf(id, nodecontract.ResourceGPU)
			if read.refusal != "" || read.ask.Driver != nvidiadra.Driver {
				t.Fatalf("it is read as %+v", read)
			}
			replicas := int64(1)
			if _, err := fmt.Sscan(c.shares, &replicas); err != nil {
				replicas = 1
			}
			devices := claims.Devices{Kind: claims.Kind{Driver: nvidiadra.Driver, Whole: replicas == 1, Model: "t4", Resource: nodecontract.ResourceGPU}, Count: int64(c.gpus), Replicas: replicas, MemoryMiB: 15360}
			if why := read.ask.Fits(devices); (why == "") != (c.unfit == "") || !strings.Contains(why, c.unfit) {
				t.Errorf("Karve says of such nodes: %q, want %q", why, c.unfit)
			}
			if planned := placesFor(devices, read.ask); c.unfit == "" && planned != c.places {
				t.Errorf("Karve plans for %d pods, and the scheduler places %d", planned, c.places)
			}
			var on []string
			for i := range c.places {
				pod := id
				if i > 0 {
					pod = fmt.Sprint(id, "-", i)
					n.askByClaim(pod, corev1.PodResourceClaim{ResourceClaimTemplateName: &id})
				}
				on = append(on, n.given(pod)...)
			}
			slices.Sort(on)
			if got := len(slices.Compact(on)); got != c.on {
				t.Errorf("the pods have %d GPUs, want %d", got, c.on)
			}
			last := id
			if c.places > 0 {
				last += "-last"
				n.askByClaim(last, corev1.PodResourceClaim{ResourceClaimTemplateName: &id})
			}
			n.waits(last)
		})
	}
}

// placesFor returns how many pods that ask the same find their GPUs on an empty machine.
func placesFor(d claims.Devices, ask claims.Ask) int {
	gpus, places := slices.Repeat([]claims.Share{{Replicas: d.Replicas, MemoryBytes: d.MemoryMiB << 20}}, int(d.Count)), 0
	for {
		left, ok := with(gpus, ask.Sets, map[int]bool{})
		if !ok {
			return places
		}
		gpus, places = left, places+1
	}
}

// Unchanged pods request nvidia.com/gpu, and the controller counts what the scheduler gives them.
func TestSchedulerGivesUnchangedPodsGPUsOfNVIDIAsDriver(t *testing.T) {
	t.Parallel()
	w := newWorldWith(t, *nvidiadra.DeviceClass("gpu"), claims.DeviceClass(nodecontract.ResourceGPUShared))
	for _, c := range []struct {
		name, shares, perGPU string
		places               int
	}{{"whole", "disabled", "1", 2}, {"shares", "4", "4", 8}} {
		n := w.nvidiaNode(c.name, c.shares, 2)
		list, err := w.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		w.must(err)
		seen := facts.PublishedOf(list.Items, nil).On(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.name, Annotations: map[string]string{
			nodecontract.BackendAnnotation: nodecontract.BackendNVIDIADRA, nodecontract.ResourceAnnotation: nodecontract.ResourceGPU, nodecontract.ReplicasPerGPUAnnotation: c.perGPU,
		}}})
		if q := seen.Status.Allocatable[nodecontract.ResourceGPU]; q.Value() != int64(c.places) {
			t.Errorf("%s: the controller sees %s, want %d", c.name, &q, c.places)
		}
		var on []string
		for i := range c.places {
			pod := fmt.Sprint(c.name, "-", i)
			n.ask(pod, 1)
			on = append(on, n.given(pod)...)
		}
		slices.Sort(on)
		if got := slices.Compact(on); !slices.Equal(got, []string{"gpu-0", "gpu-1"}) {
			t.Errorf("%s: the pods have the GPUs %v", c.name, got)
		}
		n.ask(c.name+"-last", 1)
		n.waits(c.name + "-last")
	}
}
