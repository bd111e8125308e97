package claims

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/nvidiadra"
)

// cases returns the number of random clusters: KARVE_CLAIMS, or 1000.
func cases(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("KARVE_CLAIMS")
	if text == "" {
		return 1000
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// driver is a DRA driver, by what claims say of its GPUs.
type driver struct {
	class    resourcev1.DeviceClass
	replicas resourcev1.QualifiedName
	// resource is what pods request that have no claim, and backend that of the GPUNodeClass.
	resource, backend string
	// selectors and constraints are those of random claims, which not all GPUs meet.
	selectors, constraints []string
	// unique are constraints that tell GPUs apart.
	unique []string
	// publish returns the slice of a machine.
	publish func(t *testing.T, w *world, o *snapshot.Offering) *resourcev1.ResourceSlice
}

var agents = &driver{
	class: claims.DeviceClass(nodecontract.ResourceGPUShared), replicas: nodecontract.DRAReplicas, resource: nodecontract.ResourceGPUShared, backend: nodecontract.BackendDRA,
	selectors: []string{
		`GPU.architecture == "turing"`, `GPU.architecture == "hopper"`, `GPU.cudaComputeCapability.isGreaterThan(semver("7.0.0"))`, `GPU.cudaComputeCapability.isGreaterThan(semver("8.0.0"))`, `GPU.index == 0`,
		`GPU.missing == "x"`, `!("uuid" in GPU)`, `GPU.exists(k, k.startsWith("driver"))`, `!GPU.exists(k, k.startsWith("driver"))`, `device.allowMultipleAllocations`,
		`device.capacity["gpu.karve.sh"].memory.compareTo(quantity("20Gi")) > 0`,
	},
	constraints: []string{"gpu.karve.sh/productName", "gpu.karve.sh/architecture", "gpu.karve.sh/uuid", "gpu.karve.sh/index", "resource.kubernetes.io/pcieRoot"},
	unique:      []string{"gpu.karve.sh/uuid", "gpu.karve.sh/index"},
	publish: func(t *testing.T, _ *world, o *snapshot.Offering) *resourcev1.ResourceSlice {
		t.Helper()
		return publishedBy(t, int(o.Type.GPU.Count), int(o.ReplicasPerGPU), o.Share.MIG)
	},
}

var nvidias = &driver{
	class: *nvidiadra.DeviceClass("gpu"), replicas: "shares", resource: nodecontract.ResourceGPU, backend: nodecontract.BackendNVIDIADRA,
	selectors: []string{
		`GPU.architecture == "Turing"`, `GPU.architecture == "turing"`, `GPU.cudaComputeCapability.isGreaterThan(semver("7.0.0"))`, `GPU.cudaComputeCapability.isGreaterThan(semver("8.0.0"))`, `GPU.type == "gpu"`,
		`GPU.type == "mig"`, `GPU.productName == "Tesla T4"`, `"brand" in GPU`, `GPU.exists(k, k.startsWith("addressing"))`, `!("profile" in GPU)`, `device.allowMultipleAllocations`, `!device.allowMultipleAllocations`,
		`device.attributes["resource.kubernetes.io"].exists(k, k.startsWith("numa"))`, `device.capacity["gpu.nvidia.com"].exists(k, k.startsWith("share"))`,
	},
	constraints: []string{"gpu.nvidia.com/productName", "gpu.nvidia.com/type", "gpu.nvidia.com/uuid", "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"},
	unique:      []string{"gpu.nvidia.com/uuid"},
	publish: func(_ *testing.T, w *world, o *snapshot.Offering) *resourcev1.ResourceSlice {
		var gpus []gpu.Device
		for i := range int(o.Type.GPU.Count) {
			gpus = append(gpus, gpu.Device{UUID: fmt.Sprintf("GPU-%d", i), Minor: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, PCIeRoot: "pci0000:00"})
		}
		w.r.Shuffle(len(gpus), func(i, j int) { gpus[i], gpus[j] = gpus[j], gpus[i] })
		shares := "disabled"
		if o.ReplicasPerGPU > 1 {
			shares = strconv.FormatInt(o.ReplicasPerGPU, 10)
		}
		return nvidiadra.Slice("node", shares, gpus...)
	},
}

// List and Get make the driver's class that of a cluster.
func (d *driver) List() ([]*resourcev1.DeviceClass, error) {
	return []*resourcev1.DeviceClass{&d.class}, nil
}
func (d *driver) Get(string) (*resourcev1.DeviceClass, error) { return &d.class, nil }

func of[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// claimOf returns a random claim of which many cannot be planned for.
func (w *world) claimOf() resourcev1.ResourceClaimSpec {
	r := w.r
	return w.claimWith(func() resourcev1.ExactDeviceRequest {
		request := resourcev1.ExactDeviceRequest{Count: of(r, int64(1), 1, 1, 1, 1, 1, 1, 2, 3, 4, 5)}
		requests := map[resourcev1.QualifiedName]resource.Quantity{}
		if r.IntN(3) > 0 {
			requests[w.driver.replicas] = resource.MustParse(of(r, "1", "2", "3", "500m", "1500m", "7", "10", "11"))
		}
		if r.IntN(3) > 0 {
			requests[nodecontract.DRAMemory] = resource.MustParse(of(r, "0", "1", "1Gi", "1500Mi", "3G", "5000M", "7680Mi", "14Gi", "15079Mi", "15080Mi", "16Gi"))
		}
		if len(requests) > 0 {
			request.Capacity = &resourcev1.CapacityRequirements{Requests: requests}
		}
		if r.IntN(3) == 0 {
			expression := strings.ReplaceAll(of(r, w.driver.selectors...), "GPU", `device.attributes["`+claims.DriverOf(&w.driver.class)+`"]`)
			request.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
		}
		return request
	}, w.driver.constraints...)
}

// smallClaim returns a random claim that parts of GPUs are enough for.
func (w *world) smallClaim() resourcev1.ResourceClaimSpec {
	r := w.r
	return w.claimWith(func() resourcev1.ExactDeviceRequest {
		requests := map[resourcev1.QualifiedName]resource.Quantity{nodecontract.DRAMemory: resource.MustParse(of(r, "0", "1Gi", "2Gi", "2500Mi", "3Gi", "5Gi", "7000Mi"))}
		if w.GPUNodeClasses[0].Spec.Sharing.Shared() {
			requests[w.driver.replicas] = resource.MustParse(of(r, "1", "2", "3", "4", "5"))
		}
		return resourcev1.ExactDeviceRequest{Count: of(r, int64(1), 1, 1, 2, 3), Capacity: &resourcev1.CapacityRequirements{Requests: requests}}
	}, w.driver.unique...)
}

// claimWith returns a claim with random requests, and with constraints on attributes for some of them.
func (w *world) claimWith(request func() resourcev1.ExactDeviceRequest, attributes ...string) resourcev1.ResourceClaimSpec {
	r := w.r
	var devices resourcev1.DeviceClaim
	var names []string
	for i := range of(r, 1, 1, 1, 2, 2, 3, 4) {
		exactly := request()
		exactly.DeviceClassName, exactly.AllocationMode = w.driver.class.Name, resourcev1.DeviceAllocationModeExactCount
		names = append(names, fmt.Sprintf("r%d", i))
		devices.Requests = append(devices.Requests, resourcev1.DeviceRequest{Name: names[i], Exactly: &exactly})
	}
	for range of(r, 0, 0, 1, 1, 2) {
		if len(names) == 1 && r.IntN(3) > 0 {
			continue
		}
		name := resourcev1.FullyQualifiedName(of(r, attributes...))
		c := of(r, resourcev1.DeviceConstraint{MatchAttribute: &name}, resourcev1.DeviceConstraint{DistinctAttribute: &name})
		if some := slices.DeleteFunc(slices.Clone(names), func(string) bool { return r.IntN(3) == 0 }); r.IntN(2) == 0 {
			c.Requests = some
		}
		devices.Constraints = append(devices.Constraints, c)
	}
	return resourcev1.ResourceClaimSpec{Devices: devices}
}

// claimsOf returns the random claims of a pod.
func (w *world) claimsOf(claim func() resourcev1.ResourceClaimSpec) []resourcev1.ResourceClaimSpec {
	var all []resourcev1.ResourceClaimSpec
	for range of(w.r, 1, 1, 1, 2, 3) {
		all = append(all, claim())
	}
	return all
}

// TestPlansWithClaimsFitInAnyOrder plans for random pods, and lets the scheduler's allocator give them the GPUs of the planned machines in a random order.
func TestPlansWithClaimsFitInAnyOrder(t *testing.T) {
	t.Parallel()
	manyFit(t, func(*world) {})
}

// TestPlansWithClaimsForInstancesFitInAnyOrder does so on machines whose GPUs are divided into MIG instances, which pods share.
func TestPlansWithClaimsForInstancesFitInAnyOrder(t *testing.T) {
	t.Parallel()
	all, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	manyFit(t, func(w *world) {
		w.UseInstanceTypes(all)
		w.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{
			Strategy: v1alpha1.StrategyMIG, Backend: v1alpha1.BackendDRA, Replicas: new(int32(2 + w.r.IntN(9))),
			MIG: &v1alpha1.MIGSharing{Naming: v1alpha1.MIGNamingSingle, Layouts: []v1alpha1.MIGLayout{{GPUName: "rtx-pro-server-6000", Profile: of(w.r, "1g.24gb", "2g.48gb", "4g.96gb")}}},
		}
		snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, of(w.r, "g7e.2xlarge", "g7e.12xlarge", "g7e.24xlarge"))(&w.NodePools[0])
	})
}

// TestPlansWithClaimsForNVIDIAsDriverFitInAnyOrder does so on machines with NVIDIA's driver, with and without shares.
func TestPlansWithClaimsForNVIDIAsDriverFitInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, strategy := range map[string]v1alpha1.Strategy{"whole GPUs": v1alpha1.StrategyNone, "shares": v1alpha1.StrategyTimeSlicing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			manyFit(t, func(w *world) {
				w.driver = nvidias
				w.GPUNodeClasses[0].Spec.Sharing = v1alpha1.Sharing{Strategy: strategy, Backend: v1alpha1.BackendNVIDIADRA}
				if strategy == v1alpha1.StrategyTimeSlicing {
					w.GPUNodeClasses[0].Spec.Sharing.Replicas = new(int32(2 + w.r.IntN(9)))
				}
			})
		})
	}
}

// manyFit lets the scheduler's allocator carry out the plans for random clusters.
func manyFit(t *testing.T, change func(*world)) {
	t.Helper()
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	placed, refused := 0, 0
	for seed := range cases(t) {
		p, q := check(t, cache, rand.New(rand.NewPCG(seed, 0)), change) //nolint:gosec // It is repeatable.
		placed, refused = placed+p, refused+q
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d pods were planned for, and %d were not", placed, refused)
	if placed == 0 || refused == 0 {
		t.Error("the claims are too much alike")
	}
}

// machine is a machine with the GPUs that the agent publishes, and what the allocator has given of them.
type machine struct {
	t      *testing.T
	driver *driver
	slice  *resourcev1.ResourceSlice
	state  structured.AllocatedState
	cache  *cel.Cache
	kind   string
}

// give lets the allocator give GPUs to a pod, and returns the claims that it has then. It reports whether there were enough.
func (m *machine) give(name string, specs []resourcev1.ResourceClaimSpec) (given []*resourcev1.ResourceClaim, ok bool) {
	m.t.Helper()
	allocator, err := structured.NewAllocator(m.t.Context(), structured.Features{ConsumableCapacity: true}, m.state, m.driver, []*resourcev1.ResourceSlice{m.slice}, m.cache)
	if err != nil {
		m.t.Fatal(err)
	}
	for i, spec := range specs {
		id := fmt.Sprintf("%s-claim-%d", strings.TrimPrefix(name, "default/"), i)
		given = append(given, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: id, UID: types.UID(id)}, Spec: spec})
	}
	results, err := allocator.Allocate(m.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, given)
	if err != nil || len(results) != len(given) {
		text, _ := json.Marshal(specs)
		m.t.Errorf("the allocator refuses %s on %s with %v: %v\n%s", name, m.kind, m.state.AggregatedCapacity, err, text)
		return given, false
	}
	for i := range results {
		for _, d := range results[i].Devices.Results {
			id := structured.MakeDeviceID(d.Driver, d.Pool, d.Device)
			if d.ShareID == nil {
				m.state.AllocatedDevices.Insert(id)
				continue
			}
			m.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, d.ConsumedCapacity))
		}
		given[i].Status.Allocation = &results[i]
	}
	return given, true
}

// world is a random cluster.
type world struct {
	*facts.Cluster
	r         *rand.Rand
	driver    *driver
	templates []resourcev1.ResourceClaimTemplate
	specs     map[string][]resourcev1.ResourceClaimSpec
	pods      []*corev1.Pod
	// allocated are the claims of running pods, and machines the machines by name.
	allocated []resourcev1.ResourceClaim
	machines  map[string]*machine
}

// arrive adds pending pods. Some have no claim, for which the scheduler makes one. In half of the clusters there are many pods of few kinds, which fill machines.
func (w *world) arrive(prefix string) {
	n, few := 1+w.r.IntN(12), [][]resourcev1.ResourceClaimSpec(nil)
	if w.r.IntN(2) == 0 {
		n = 10 + w.r.IntN(40)
		for range 1 + w.r.IntN(3) {
			few = append(few, w.claimsOf(w.smallClaim))
		}
	}
	for i := range n {
		name := fmt.Sprintf("%s-%d", prefix, i)
		if w.r.IntN(4) == 0 {
			pod := snapshottest.Pod(name, snapshottest.Asking("cpu", "100m", w.driver.resource, "1"))
			w.pods = append(w.pods, &pod)
			w.specs["default/"+name] = []resourcev1.ResourceClaimSpec{{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: w.driver.class.Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			}}}}}}
			continue
		}
		specs := w.claimsOf(w.claimOf)
		if few != nil {
			specs = of(w.r, few...)
		}
		pod := snapshottest.Pod(name, snapshottest.Asking("cpu", "100m"))
		for j, spec := range specs {
			template := fmt.Sprintf("%s-%d", name, j)
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("claim-", j), ResourceClaimTemplateName: &template})
			w.templates = append(w.templates, resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: template}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}})
		}
		w.specs["default/"+name] = specs
		w.pods = append(w.pods, &pod)
	}
}

// run plans for the pending pods, and lets the allocator give them the GPUs of their machines in random order. It reports whether all got theirs.
func (w *world) run(t *testing.T, cache *cel.Cache) (placed, refused int, ok bool) {
	t.Helper()
	objects := claims.New(w.allocated, w.templates, []resourcev1.DeviceClass{w.driver.class}, w.pods)
	w.Pods = nil
	for _, pod := range w.pods {
		w.Pods = append(w.Pods, *objects.On(pod))
	}
	view := snapshot.Build(w.Cluster)
	plan := solve.Plan(view.Snapshot)
	on := map[string][]string{}
	for _, placement := range plan.Placements {
		on[view.Nodes[placement.Node].Name] = placement.Pods
	}
	for _, launch := range plan.Launches {
		on[w.launch(t, cache, view.Offerings[launch.Offering])] = launch.Pods
	}
	for _, name := range slices.Sorted(maps.Keys(on)) {
		order := slices.Clone(on[name])
		w.r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, pod := range order {
			given, ok := w.machines[name].give(pod, w.specs[pod])
			if !ok {
				return placed, refused, false
			}
			w.bind(pod, name, given)
			placed++
		}
	}
	return placed, len(plan.Unplaced), true
}

// launch adds a machine and returns its name.
func (w *world) launch(t *testing.T, cache *cel.Cache, o *snapshot.Offering) string {
	t.Helper()
	name := fmt.Sprintf("node-%d", len(w.machines))
	claim := snapshottest.Claim(name, &w.NodePools[0], o.Type, snapshottest.Launched(w.Now), snapshottest.Registered(w.Now), snapshottest.Initialized(w.Now))
	claim.Annotations[nodecontract.ReplicasPerGPUAnnotation], claim.Annotations[nodecontract.BackendAnnotation] = strconv.FormatInt(o.ReplicasPerGPU, 10), w.driver.backend
	claim.Annotations[nodecontract.ResourceAnnotation] = o.Share.Resource
	if mig := o.Share.MIG.String(); mig != "" {
		claim.Annotations[nodecontract.MIGAnnotation] = mig
	}
	node := snapshottest.Node(&claim, o.Type, o.ReplicasPerGPU*o.Type.GPU.Count)
	claim.Status.NodeName = node.Name
	w.NodeClaims, w.Nodes = append(w.NodeClaims, claim), append(w.Nodes, node)
	w.machines[node.Name] = &machine{
		t: t, driver: w.driver, slice: w.driver.publish(t, w, o), cache: cache, kind: fmt.Sprintf("%s with %d replicas", o.Type.Name, o.ReplicasPerGPU),
		state: structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()},
	}
	return node.Name
}

// bind makes a pod run on a node with its claims.
func (w *world) bind(name, node string, given []*resourcev1.ResourceClaim) {
	for _, pod := range w.pods {
		if facts.PodName(pod) != name {
			continue
		}
		snapshottest.Running(node)(pod)
		for i, ref := range pod.Spec.ResourceClaims {
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: ref.Name, ResourceClaimName: &given[i].Name})
			w.allocated = append(w.allocated, *given[i])
		}
	}
}

func check(t *testing.T, cache *cel.Cache, r *rand.Rand, change func(*world)) (placed, refused int) {
	t.Helper()
	w := &world{Cluster: snapshottest.Shared(), r: r, driver: agents, specs: map[string][]resourcev1.ResourceClaimSpec{}, machines: map[string]*machine{}}
	w.GPUNodeClasses[0].Spec.Sharing.Replicas, w.GPUNodeClasses[0].Spec.Sharing.Backend = new(int32(1+r.IntN(10))), v1alpha1.BackendDRA
	w.GPUNodeClasses[0].Generation = 1
	if r.IntN(2) == 0 {
		snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.12xlarge")(&w.NodePools[0])
	}
	change(w)
	for _, prefix := range []string{"first", "second"} {
		w.arrive(prefix)
		p, q, ok := w.run(t, cache)
		placed, refused = placed+p, refused+q
		if !ok {
			break
		}
	}
	return placed, refused
}

// publishedBy returns the slice of the agent on a node with T4s, or with GPUs that are divided.
func publishedBy(t *testing.T, count, replicas int, mig nodecontract.MIG) *resourcev1.ResourceSlice {
	t.Helper()
	var devices []dra.Device
	for i := range count {
		d := dra.Device{Resource: nodecontract.ResourceGPUShared, GPU: sharing.GPU{Replicas: replicas, Device: gpu.Device{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, PCIeRoot: "pci0000:00",
		}}}
		if mig.Count == 0 {
			devices = append(devices, d)
			continue
		}
		d.Product, d.ComputeMajor, d.ComputeMinor, d.Replicas = "NVIDIA RTX PRO 6000", 12, 0, replicas/int(mig.Count)
		for j := range int(mig.Count) {
			d.Instance = &gpu.Instance{UUID: fmt.Sprintf("MIG-%d-%d", i, j), Index: j, Profile: mig.Profile, MemoryMiB: mig.MemoryMiB}
			devices = append(devices, d)
		}
	}
	published, err := dra.SliceOf(nodeapi.Metadata{Name: "node"}, gpu.Driver{Version: "580.65.06", CUDAMajor: 13}, devices)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(published)
	if err != nil {
		t.Fatal(err)
	}
	slice := &resourcev1.ResourceSlice{}
	if err := json.Unmarshal(text, slice); err != nil {
		t.Fatal(err)
	}
	return slice
}
