package dra

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
)

// request returns a request for GPUs with capacities, such as "memory=6Gi", and selectors.
func request(name string, count int64, with ...string) resourcev1.DeviceRequest {
	exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: nodecontract.DRADriver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count}
	for _, w := range with {
		if capacity, amount, ok := strings.Cut(w, "="); ok && amount[0] != '=' {
			if exactly.Capacity == nil {
				exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{}}
			}
			exactly.Capacity.Requests[resourcev1.QualifiedName(capacity)] = resource.MustParse(amount)
			continue
		}
		exactly.Selectors = append(exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["gpu.karve.sh"].` + w}})
	}
	return resourcev1.DeviceRequest{Name: name, Exactly: exactly}
}

func all() resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: nodecontract.DRADriver, AllocationMode: resourcev1.DeviceAllocationModeAll}}
}

func match(attribute string) resourcev1.DeviceConstraint {
	return resourcev1.DeviceConstraint{MatchAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/" + attribute))}
}

func distinct(attribute string) resourcev1.DeviceConstraint {
	return resourcev1.DeviceConstraint{DistinctAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/" + attribute))}
}

func only(c resourcev1.DeviceConstraint, requests ...string) resourcev1.DeviceConstraint {
	c.Requests = requests
	return c
}

// claimCase is a claim that many pods ask by a template.
type claimCase struct {
	gpus        int
	requests    []resourcev1.DeviceRequest
	constraints []resourcev1.DeviceConstraint
	// second are the requests of another claim of each pod, if there is one.
	second []resourcev1.DeviceRequest
	// places is how many such pods an empty node takes.
	places int
	// on has the GPUs of each placed pod by index, in the order of requests: "*" for the first pods that differ.
	on string
	// refuses is what pkg/claims says of a claim that it does not plan for.
	refuses string
}

// What kube-scheduler 1.36.3 does with claims for nodes with T4s of ten replicas and 15 GiB each. Two facts are not obvious: a request with a count of 2 gets two
// different GPUs, and two requests of a claim get the same GPU unless a constraint says otherwise.
var claimCases = map[string]claimCase{
	"one replica":                    {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1)}, places: 10, on: "0"},
	"two replicas":                   {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=2")}, places: 5, on: "0"},
	"one and a half replicas":        {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=1500m")}, places: 5, on: "0"},
	"eleven replicas":                {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=11")}, places: 0},
	"two replicas with memory":       {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=2", "memory=6Gi")}, places: 2, on: "0"},
	"memory of a whole GPU":          {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "memory=15360Mi")}, places: 1, on: "0"},
	"more memory than a GPU":         {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "memory=15361Mi")}, places: 0},
	"an architecture that matches":   {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=5", `architecture == "turing"`)}, places: 2, on: "0"},
	"an architecture without match":  {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 1, `architecture == "ampere"`)}, places: 0},
	"two GPUs of one":                {gpus: 1, requests: []resourcev1.DeviceRequest{request("gpu", 2)}, places: 0},
	"two GPUs of two":                {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 2, "replicas=4")}, places: 2, on: "0 1"},
	"two GPUs of four":               {gpus: 4, requests: []resourcev1.DeviceRequest{request("gpu", 2, "replicas=10")}, places: 2, on: "0 1, 2 3"},
	"three GPUs of two":              {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 3)}, places: 0},
	"all GPUs":                       {gpus: 2, requests: []resourcev1.DeviceRequest{all()}, places: 10, on: "0 1", refuses: "allocationMode All"},
	"two requests":                   {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=5"), request("b", 1, "replicas=5")}, places: 2, on: "0 0, 1 1"},
	"two requests of one GPU":        {gpus: 1, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=5"), request("b", 1, "replicas=5")}, places: 1, on: "0 0"},
	"the same uuid":                  {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=2"), request("b", 1, "replicas=3")}, constraints: []resourcev1.DeviceConstraint{match("uuid")}, places: 4, on: "0 0, 1 1"},
	"the same uuid of one GPU":       {gpus: 1, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=3"), request("b", 1, "replicas=5")}, constraints: []resourcev1.DeviceConstraint{match("uuid")}, places: 1, on: "0 0"},
	"distinct uuids":                 {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=5"), request("b", 1, "replicas=5")}, constraints: []resourcev1.DeviceConstraint{distinct("uuid")}, places: 2, on: "0 1"},
	"distinct uuids of one GPU":      {gpus: 1, requests: []resourcev1.DeviceRequest{request("a", 1), request("b", 1)}, constraints: []resourcev1.DeviceConstraint{distinct("uuid")}, places: 0},
	"two GPUs with the same product": {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 2, "replicas=5")}, constraints: []resourcev1.DeviceConstraint{match("productName")}, places: 2, on: "0 1"},
	"two GPUs with the same uuid":    {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 2)}, constraints: []resourcev1.DeviceConstraint{match("uuid")}, places: 0, refuses: "has matchAttribute"},
	"two GPUs with distinct uuids":   {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 2, "replicas=5")}, constraints: []resourcev1.DeviceConstraint{distinct("uuid")}, places: 2, on: "0 1"},
	"distinct uuids of two sizes":    {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=2"), request("b", 1, "replicas=4")}, constraints: []resourcev1.DeviceConstraint{distinct("uuid")}, places: 3, on: "0 1, 1 0"},
	"a count and another request":    {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 2, "replicas=3"), request("b", 1, "replicas=4")}, places: 2, on: "0 1 0, 0 1 1"},
	"the same and another GPU": {
		gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=2"), request("b", 1, "replicas=3"), request("c", 1, "replicas=4")},
		constraints: []resourcev1.DeviceConstraint{only(match("uuid"), "a", "b"), only(distinct("index"), "b", "c")}, places: 2, on: "0 0 1",
	},
	"the same and a distinct GPU":   {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1), request("b", 1)}, constraints: []resourcev1.DeviceConstraint{match("uuid"), distinct("index")}, places: 0, refuses: "which no GPUs meet"},
	"two claims":                    {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=3")}, second: []resourcev1.DeviceRequest{request("a", 1, "replicas=4")}, places: 2, on: "0 0, 0 1"},
	"two large claims":              {gpus: 2, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=6")}, second: []resourcev1.DeviceRequest{request("a", 1, "replicas=6")}, places: 1, on: "0 1"},
	"two large claims of one GPU":   {gpus: 1, requests: []resourcev1.DeviceRequest{request("a", 1, "replicas=6")}, second: []resourcev1.DeviceRequest{request("a", 1, "replicas=6")}, places: 0},
	"two GPUs of distinct products": {gpus: 2, requests: []resourcev1.DeviceRequest{request("gpu", 2)}, constraints: []resourcev1.DeviceConstraint{distinct("productName")}, places: 0, refuses: "has a constraint"},
}

func TestSchedulerPlacesAsManyPodsWithAClaimAsKarveReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, c := range claimCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, client: w.client, config: w.config}
			id := strings.ReplaceAll(strings.ToLower(name), " ", "-")
			n := w.node(id, c.gpus)
			w.template(id, resourcev1.DeviceClaim{Requests: c.requests, Constraints: c.constraints})
			asks := []corev1.PodResourceClaim{{ResourceClaimTemplateName: &id}}
			if c.second != nil {
				second := id + "-second"
				w.template(second, resourcev1.DeviceClaim{Requests: c.second})
				asks = append(asks, corev1.PodResourceClaim{ResourceClaimTemplateName: &second})
			}
			var on []string
			for i := range c.places {
				pod := fmt.Sprintf("%s-%d", id, i)
				n.askByClaim(pod, asks...)
				waiting := w.read(pod)
				w.bound(pod)
				indices, replicas := n.gpusOf(pod)
				on = append(on, indices)
				w.agrees(pod, c, waiting)
				if c.refuses == "" && waiting.replicas != replicas {
					t.Errorf("%s has %d replicas, and requested %d", pod, replicas, waiting.replicas)
				}
			}
			if got := strings.Join(slices.Compact(on), ", "); got != c.on {
				t.Errorf("the pods have the GPUs %q, want %q", got, c.on)
			}
			last := id + "-last"
			n.askByClaim(last, asks...)
			n.waits(last)
			w.agrees(last, c, w.read(last))
		})
	}
}

// Pods that share a claim share its allocation, and the scheduler places all of them on its node.
func TestSchedulerPlacesPodsThatShareAClaim(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newWorld(t)
	n := w.node("named", 1)
	_, err := w.client.ResourceV1().ResourceClaims(namespace).Create(t.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{request("gpu", 1, "replicas=10")}}},
	}, metav1.CreateOptions{})
	w.must(err)
	name := "named"
	n.askByClaim("first", corev1.PodResourceClaim{ResourceClaimName: &name})
	if read := w.read("first"); read.refusal != "" || read.replicas != 10 {
		t.Errorf("a named claim of one pod is read as %+v", read)
	}
	w.bound("first")
	if read := w.read("first"); read.refusal != "" || read.replicas != 10 {
		t.Errorf("an allocated claim is read as %+v", read)
	}
	n.askByClaim("second", corev1.PodResourceClaim{ResourceClaimName: &name})
	w.bound("second")
	if read := w.read("second"); !strings.Contains(read.refusal, "used by 2 pods") {
		t.Errorf("a claim that two pods share is read as %+v", read)
	}
}

func (w *world) template(name string, devices resourcev1.DeviceClaim) {
	w.t.Helper()
	_, err := w.client.ResourceV1().ResourceClaimTemplates(namespace).Create(w.t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: devices}},
	}, metav1.CreateOptions{})
	w.must(err)
}

// askByClaim creates a pod for a node, with a container for each of its claims.
func (n *node) askByClaim(name string, asks ...corev1.PodResourceClaim) {
	n.t.Helper()
	spec := corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: n.name}}
	for i, claim := range asks {
		claim.Name = fmt.Sprint("claim-", i)
		spec.ResourceClaims = append(spec.ResourceClaims, claim)
		spec.Containers = append(spec.Containers, corev1.Container{
			Name: fmt.Sprint("container-", i), Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: claim.Name}}},
		})
	}
	_, err := n.client.CoreV1().Pods(namespace).Create(n.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	n.must(err)
}

// bound waits until the scheduler has placed a pod.
func (w *world) bound(name string) {
	w.t.Helper()
	w.eventually(func() error {
		pod, err := w.client.CoreV1().Pods(namespace).Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName == "" {
			return fmt.Errorf("%s is not bound: %v", name, pod.Status.Conditions)
		}
		return nil
	})
}

// gpusOf returns the indices of the GPUs that the claims of a bound pod have, in the order of requests, and the replicas of all of them.
func (n *node) gpusOf(name string) (list string, replicas int64) {
	n.t.Helper()
	pod, err := n.client.CoreV1().Pods(namespace).Get(n.t.Context(), name, metav1.GetOptions{})
	n.must(err)
	var indices []string
	for _, ref := range pod.Spec.ResourceClaims {
		for _, s := range pod.Status.ResourceClaimStatuses {
			if s.Name != ref.Name {
				continue
			}
			claim, err := n.client.ResourceV1().ResourceClaims(namespace).Get(n.t.Context(), *s.ResourceClaimName, metav1.GetOptions{})
			n.must(err)
			for _, r := range claim.Status.Allocation.Devices.Results {
				i := slices.IndexFunc(n.gpus, func(g gpu.Device) bool { return r.Device == strings.ToLower(g.UUID) })
				consumed := r.ConsumedCapacity[nodecontract.DRAReplicas]
				indices, replicas = append(indices, fmt.Sprint(i)), replicas+consumed.Value()
			}
		}
	}
	return strings.Join(indices, " "), replicas
}

// reading is what pkg/claims reads of a pod.
type reading struct {
	refusal string
	// replicas are those that the pod requests of all GPUs together.
	replicas int64
	ask      claims.Ask
}

// read returns what pkg/claims reads of a pod that has claims for GPUs of the agents, from the objects as they are.
func (w *world) read(name string) reading {
	w.t.Helper()
	return w.readOf(name, nodecontract.ResourceGPUShared)
}

// readOf returns what pkg/claims reads of a pod that has claims for GPUs of a resource.
func (w *world) readOf(name string, gpu corev1.ResourceName) reading {
	w.t.Helper()
	ctx := w.t.Context()
	list, err := w.client.ResourceV1().ResourceClaims(namespace).List(ctx, metav1.ListOptions{})
	w.must(err)
	templates, err := w.client.ResourceV1().ResourceClaimTemplates(namespace).List(ctx, metav1.ListOptions{})
	w.must(err)
	classes, err := w.client.ResourceV1().DeviceClasses().List(ctx, metav1.ListOptions{})
	w.must(err)
	pods, err := w.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	w.must(err)
	var users []*corev1.Pod
	var pod *corev1.Pod
	for i := range pods.Items {
		users = append(users, &pods.Items[i])
		if pods.Items[i].Name == name {
			pod = &pods.Items[i]
		}
	}
	seen := claims.New(list.Items, templates.Items, classes.Items, users).On(pod)
	ask := claims.Of(seen)
	if ask == nil {
		w.t.Fatalf("%s is read as a pod without a claim", name)
		return reading{}
	}
	replicas := seen.Spec.Containers[len(seen.Spec.Containers)-1].Resources.Requests[gpu]
	return reading{refusal: ask.Refusal, replicas: replicas.Value(), ask: *ask}
}

// agrees checks that what was read of a pod while it waited is what the scheduler has done.
func (w *world) agrees(name string, c claimCase, waiting reading) {
	w.t.Helper()
	if c.refuses != "" {
		if !strings.Contains(waiting.refusal, c.refuses) {
			w.t.Errorf("%s is read as %+v, want a refusal that says %q", name, waiting, c.refuses)
		}
		return
	}
	if waiting.refusal != "" {
		w.t.Errorf("%s is refused: %s", name, waiting.refusal)
		return
	}
	places := 0
	if why := waiting.ask.Fits(claims.Devices{Kind: claims.Kind{Model: "t4", Resource: nodecontract.ResourceGPUShared}, Count: int64(c.gpus), Replicas: 10, MemoryMiB: 15360}); why == "" {
		gpus := slices.Repeat([]claims.Share{{Replicas: 10, MemoryBytes: 15 << 30}}, c.gpus)
		for ok := true; ok; places++ {
			gpus, ok = with(gpus, waiting.ask.Sets, map[int]bool{})
		}
		places--
	}
	if places != c.places || waiting.replicas != waiting.ask.Total().Replicas {
		w.t.Errorf("%s is read as %+v, so that the node has %d places; the scheduler has %d", name, waiting, places, c.places)
	}
	if now := w.read(name); !reflect.DeepEqual(now, waiting) {
		w.t.Errorf("%s was read as %+v while it waited, and has %+v", name, waiting, now)
	}
}

// with returns what GPUs have left after they were given to sets, in the order of GPUs. It reports whether there were enough. taken are those of the first set.
func with(gpus []claims.Share, sets []claims.Set, taken map[int]bool) ([]claims.Share, bool) {
	switch {
	case len(sets) == 0:
		return gpus, true
	case len(sets[0]) == 0:
		return with(gpus, sets[1:], map[int]bool{})
	}
	share, rest := sets[0][0], slices.Clone(sets)
	rest[0] = rest[0][1:]
	if share.GPUs > 1 {
		one, others := share, share
		one.GPUs, others.GPUs = 1, share.GPUs-1
		share, rest[0] = one, slices.Concat(claims.Set{others}, rest[0])
	}
	for i, g := range gpus {
		if taken[i] || g.Replicas < share.Replicas || g.MemoryBytes < share.MemoryBytes {
			continue
		}
		left, also := slices.Clone(gpus), maps.Clone(taken)
		left[i] = claims.Share{Replicas: g.Replicas - share.Replicas, MemoryBytes: g.MemoryBytes - share.MemoryBytes}
		also[i] = true
		if left, ok := with(left, rest, also); ok {
			return left, true
		}
	}
	return gpus, false
}
