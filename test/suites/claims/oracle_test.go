package claims

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
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
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
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

var class = resourcev1.DeviceClass{
	ObjectMeta: metav1.ObjectMeta{Name: nodecontract.DRADriver},
	Spec:       resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == '" + nodecontract.DRADriver + "'"}}}},
}

type classes struct{}

func (classes) List() ([]*resourcev1.DeviceClass, error) {
	return []*resourcev1.DeviceClass{&class}, nil
}
func (classes) Get(string) (*resourcev1.DeviceClass, error) { return &class, nil }

func of[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// claimOf returns a random claim of which many cannot be planned for.
func claimOf(r *rand.Rand) resourcev1.ResourceClaimSpec {
	request := resourcev1.ExactDeviceRequest{DeviceClassName: class.Name, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: of(r, int64(1), 1, 1, 1, 1, 1, 1, 2)}
	requests := map[resourcev1.QualifiedName]resource.Quantity{}
	if r.IntN(3) > 0 {
		requests[nodecontract.DRAReplicas] = resource.MustParse(of(r, "1", "2", "3", "500m", "1500m", "7", "10", "11"))
	}
	if r.IntN(3) > 0 {
		requests[nodecontract.DRAMemory] = resource.MustParse(of(r, "0", "1", "1Gi", "1500Mi", "3G", "5000M", "7680Mi", "14Gi", "15079Mi", "15080Mi", "16Gi"))
	}
	if len(requests) > 0 {
		request.Capacity = &resourcev1.CapacityRequirements{Requests: requests}
	}
	const domain = `device.attributes["gpu.karve.sh"].`
	if r.IntN(2) == 0 {
		request.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: of(r, domain+`architecture == "turing"`, domain+`architecture == "hopper"`,
			domain+`cudaComputeCapability.isGreaterThan(semver("7.0.0"))`, domain+`cudaComputeCapability.isGreaterThan(semver("8.0.0"))`, domain+`index == 0`, domain+`missing == "x"`,
			`!("uuid" in device.attributes["gpu.karve.sh"])`, `device.attributes["gpu.karve.sh"].exists(k, k.startsWith("driver"))`, `!device.attributes["gpu.karve.sh"].exists(k, k.startsWith("driver"))`,
			`device.allowMultipleAllocations`, `device.capacity["gpu.karve.sh"].memory.compareTo(quantity("20Gi")) > 0`)}}}
	}
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &request}}}}
}

// TestPlansWithClaimsFitInAnyOrder plans for random pods, and lets the scheduler's allocator give them the GPUs of the planned machines in a random order.
func TestPlansWithClaimsFitInAnyOrder(t *testing.T) {
	t.Parallel()
	cache := cel.NewCache(100, cel.Features{EnableConsumableCapacity: true})
	placed, refused := 0, 0
	for seed := range cases(t) {
		p, q := check(t, cache, rand.New(rand.NewPCG(seed, 0))) //nolint:gosec // It is repeatable.
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

func check(t *testing.T, cache *cel.Cache, r *rand.Rand) (placed, refused int) {
	t.Helper()
	c := snapshottest.Shared()
	replicas := int32(1 + r.IntN(10))
	c.GPUNodeClasses[0].Spec.Sharing.Replicas, c.GPUNodeClasses[0].Spec.Sharing.Backend = &replicas, v1alpha1.BackendDRA
	c.GPUNodeClasses[0].Generation = 1
	var templates []resourcev1.ResourceClaimTemplate
	var pods []*corev1.Pod
	specs := map[string]resourcev1.ResourceClaimSpec{}
	for i := range 1 + r.IntN(12) {
		name := fmt.Sprintf("pod-%d", i)
		pod := snapshottest.Pod(name, snapshottest.Asking("cpu", "100m"), func(p *corev1.Pod) {
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &name}}
		})
		spec := claimOf(r)
		specs["default/"+name] = spec
		templates = append(templates, resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec}})
		pods = append(pods, &pod)
	}
	objects := claims.New(nil, templates, []resourcev1.DeviceClass{class}, pods)
	for _, pod := range pods {
		c.Pods = append(c.Pods, *objects.On(pod))
	}
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	for _, launch := range plan.Launches {
		o := view.Offerings[launch.Offering]
		slice := publishedBy(t, int(o.Type.GPU.Count), int(replicas))
		state := structured.AllocatedState{AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](), AggregatedCapacity: structured.NewConsumedCapacityCollection()}
		order := append([]string(nil), launch.Pods...)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, name := range order {
			allocator, err := structured.NewAllocator(t.Context(), structured.Features{ConsumableCapacity: true}, state, classes{}, []*resourcev1.ResourceSlice{slice}, cache)
			if err != nil {
				t.Fatal(err)
			}
			claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim", UID: types.UID(name)}, Spec: specs[name]}
			results, err := allocator.Allocate(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, []*resourcev1.ResourceClaim{claim})
			if err != nil || len(results) != 1 {
				text, _ := json.Marshal(specs[name])
				t.Errorf("the allocator refuses %s of %v on %s with %d replicas: %v\n%s", name, order, o.Type.Name, replicas, err, text)
				return placed, refused
			}
			for _, d := range results[0].Devices.Results {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(structured.MakeDeviceID(d.Driver, d.Pool, d.Device), d.ConsumedCapacity))
			}
			placed++
		}
	}
	return placed, len(plan.Unplaced)
}

// publishedBy returns the slice of the agent on a node with T4s.
func publishedBy(t *testing.T, count, replicas int) *resourcev1.ResourceSlice {
	t.Helper()
	var devices []dra.Device
	for i := range count {
		devices = append(devices, dra.Device{Replicas: replicas, Device: gpu.Device{
			UUID: fmt.Sprintf("GPU-%d", i), Index: i, Product: "Tesla T4", MemoryMiB: 15360, ComputeMajor: 7, ComputeMinor: 5, PCIeRoot: "pci0000:00",
		}})
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
