package claims

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/nodecontract"
)

var t4 = catalog.GPU{Name: "t4", Count: 1, MemoryMiB: 16384}

func selector(expression string) []resourcev1.DeviceSelector {
	return []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: expression}}}
}

func deviceClass(name, driver string) resourcev1.DeviceClass {
	return resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{Selectors: selector("device.driver == '" + driver + "'")}}
}

// world is a pod with a claim, of which a test changes something.
type world struct {
	pod    corev1.Pod
	others []*corev1.Pod
	claim  resourcev1.ResourceClaim
}

func (w *world) request() *resourcev1.ExactDeviceRequest {
	return w.claim.Spec.Devices.Requests[0].Exactly
}

// seen returns the pod as decisions see it.
func seen(edit func(*world)) *corev1.Pod {
	w := &world{
		pod: corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "pod"}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main"}}, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("mine")}},
		}},
		claim: resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Capacity: &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
					nodecontract.DRAReplicas: resource.MustParse("2500m"), nodecontract.DRAMemory: resource.MustParse("3G"),
				}},
			}}},
		}}},
	}
	if edit != nil {
		edit(w)
	}
	objects := New([]resourcev1.ResourceClaim{w.claim}, nil, []resourcev1.DeviceClass{deviceClass("gpu", nodecontract.DRADriver), deviceClass("other", "example.com")}, append(w.others, &w.pod))
	return objects.On(&w.pod)
}

func TestClaimIsReadAsReplicasAndMemory(t *testing.T) {
	t.Parallel()
	pod := seen(nil)
	ask := Of(pod)
	if ask == nil || ask.Refusal != "" || ask.MemoryBytes != 2862<<20 {
		t.Fatalf("the claim asks %+v", ask)
	}
	last := pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Requests[v1alpha1.ResourceGPUShared]
	if len(pod.Spec.Containers) != 2 || last.Value() != 3 { // The scheduler rounds up to whole replicas, and to whole MiB.
		t.Errorf("the pod requests %v replicas", last.String())
	}
	if memory := resource.MustParse(pod.Annotations[v1alpha1.GPUMemoryAnnotation]); memory.Value() != 2862<<20 {
		t.Errorf("the pod states %s", memory.String())
	}
	if why := ask.Fits(t4, 10); why != "" {
		t.Errorf("a T4 does not fit: %s", why)
	}
}

func TestPodsWithoutClaimForAGPUStayAsTheyAre(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*world){
		"another driver's class": func(w *world) { w.request().DeviceClassName = "other" },
		"an unknown class":       func(w *world) { w.request().DeviceClassName = "missing" },
		"no claim yet":           func(w *world) { w.claim.Name = "another" },
		"a forged annotation": func(w *world) {
			w.pod.Annotations, w.pod.Spec.ResourceClaims = map[string]string{annotation: "{}"}, nil
		},
	} {
		if pod := seen(edit); Of(pod) != nil || len(pod.Spec.Containers) != 1 {
			t.Errorf("%s: the pod is read as one with a claim: %s", name, Text(pod))
		}
	}
}

func TestClaimsThatCannotBePlannedForAreRefused(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]func(*world){
		"has 2 requests": func(w *world) {
			w.claim.Spec.Devices.Requests = append(w.claim.Spec.Devices.Requests, w.claim.Spec.Devices.Requests[0])
		},
		"has adminAccess":        func(w *world) { w.request().AdminAccess = new(true) },
		"has allocationMode All": func(w *world) { w.request().AllocationMode = resourcev1.DeviceAllocationModeAll },
		"has a constraint":       func(w *world) { w.claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{}} },
		"use matchAttribute with gpu.karve.sh/productName": func(w *world) {
			w.claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{MatchAttribute: new(resourcev1.FullyQualifiedName("resource.kubernetes.io/pcieRoot"))}}
		},
		"distinctAttribute with gpu.karve.sh/uuid": func(w *world) {
			w.claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{DistinctAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/architecture"))}}
		},
		"requests the capacity tea": func(w *world) { w.request().Capacity.Requests["tea"] = resource.MustParse("1") },
		"has firstAvailable": func(w *world) {
			w.claim.Spec.Devices.Requests[0] = resourcev1.DeviceRequest{Name: "gpu", FirstAvailable: []resourcev1.DeviceSubRequest{{Name: "a", DeviceClassName: "gpu"}}}
		},
		"reads uuid, which is known only": func(w *world) {
			w.request().Selectors = selector(`device.attributes["gpu.karve.sh"].uuid == "GPU-1"`)
		},
		"is used by 2 pods": func(w *world) { w.others = []*corev1.Pod{w.pod.DeepCopy()} },
		"is reserved for pods other": func(w *world) {
			w.claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "other", UID: "other"}}
		},
		"is allocated on node here": func(w *world) {
			w.claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Driver: nodecontract.DRADriver, Pool: "here"}}}}
		},
		"has 2 ResourceClaims": func(w *world) {
			w.pod.Spec.ResourceClaims = append(w.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "x", ResourceClaimName: new("x")})
		},
		"requests a GPU resource too": func(w *world) {
			w.pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("1")}
		},
	} {
		ask := Of(seen(edit))
		if ask == nil || !strings.Contains(ask.Refusal, want) || !strings.Contains(ask.Refusal, "default/mine") {
			t.Errorf("the claim asks %+v, want a refusal that says %q and names it", ask, want)
		}
	}
}

func TestSelectorsAreEvaluatedWithWhatIsKnownOfAModel(t *testing.T) {
	t.Parallel()
	const gpu = `device.attributes["gpu.karve.sh"]`
	for expression, want := range map[string]string{
		gpu + `.architecture == "turing"`:                                    "",
		gpu + `.cudaComputeCapability.isGreaterThan(semver("7.0.0"))`:        "",
		`device.driver == "gpu.karve.sh" && device.allowMultipleAllocations`: "",
		gpu + `.architecture == "hopper"`:                                    "does not select",
		gpu + `.missing == "x"`:                                              "cannot be evaluated",
		gpu + `["uu" + "id"] == "x"`:                                         "cannot be evaluated",
		gpu + `.exists(k, k.startsWith("driver"))`:                           "known only when there is a node",
		`!` + gpu + `.exists(k, k.startsWith("driver"))`:                     "known only when there is a node",
		`device.`: "can compile",
		`"` + strings.Repeat("a", 2000) + `".matches("(a+)+b") || [1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, a+b+c+d > 0))))`: "cost",
	} {
		why := (&Ask{Selectors: []string{expression}}).Fits(t4, 10)
		if (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%.80s: %q, want %q", expression, why, want)
		}
	}
	if why := (&Ask{MemoryBytes: 1}).Fits(catalog.GPU{Name: "new", Count: 1, MemoryMiB: 16384}, 10); !strings.Contains(why, "new") {
		t.Errorf("a model of unknown memory: %q", why)
	}
}

func TestClaimsOfMachinesWithSeveralGPUs(t *testing.T) {
	t.Parallel()
	ask := Of(seen(func(w *world) {
		w.request().Count = 3
		w.claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{
			{MatchAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/productName"))}, {DistinctAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/uuid"))},
		}
	}))
	if ask == nil || ask.Refusal != "" || ask.GPUs != 3 || ask.Replicas != 3 || ask.MemoryBytes != 2862<<20 {
		t.Errorf("the claim asks %+v", ask)
	}
	four := catalog.GPU{Name: "t4", Count: 4, MemoryMiB: 16384}
	for _, c := range []struct {
		ask  Ask
		gpu  catalog.GPU
		want string
	}{
		{Ask{GPUs: 1, Replicas: 5}, four, ""},
		{Ask{GPUs: 4, Replicas: 10, MemoryBytes: 15000 << 20}, four, ""},
		{Ask{GPUs: 5, Replicas: 1}, four, "asks for 5 GPUs"},
		{Ask{GPUs: 2, Replicas: 1}, t4, "asks for 2 GPUs"},
		{Ask{GPUs: 2, Replicas: 11}, four, "asks for more of each GPU"},
		{Ask{GPUs: 2, Replicas: 1, MemoryBytes: 16 << 30}, four, "asks for more of each GPU"},
		{Ask{GPUs: 1, Replicas: 6}, four, "more than half of a GPU"},
		{Ask{GPUs: 1, Replicas: 1, MemoryBytes: 8 << 30}, four, "more than half of a GPU"},
	} {
		if why := c.ask.Fits(c.gpu, 10); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%+v on %+v: %q, want %q", c.ask, c.gpu, why, c.want)
		}
	}
}

func TestAllocatedClaimHoldsWhatWasAllocated(t *testing.T) {
	t.Parallel()
	share := func(device, replicas, memory string) resourcev1.DeviceRequestAllocationResult {
		return resourcev1.DeviceRequestAllocationResult{Driver: nodecontract.DRADriver, Device: device, ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{
			nodecontract.DRAReplicas: resource.MustParse(replicas), nodecontract.DRAMemory: resource.MustParse(memory),
		}}
	}
	pod := seen(func(w *world) {
		w.pod.Spec.NodeName = "here"
		w.claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			share("a", "2", "1Gi"), share("b", "1", "2Gi"), share("a", "1", "2Gi"),
		}}}
	})
	if ask := Of(pod); ask.GPUs != 2 || ask.Replicas != 3 || ask.MemoryBytes != 3<<30 {
		t.Errorf("the claim holds %+v", ask)
	}
	if _, states := pod.Annotations[v1alpha1.GPUMemoryAnnotation]; states {
		t.Error("the pod states memory of one GPU")
	}
}
