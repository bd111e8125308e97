package claims

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
)

// t4 is a machine with T4s that have ten replicas each.
func t4(count int64) Devices {
	return Devices{Kind: Kind{Model: "t4", Resource: v1alpha1.ResourceGPUShared}, Count: count, Replicas: 10, MemoryMiB: 15360}
}

// a100 is a machine with eight A100s that are divided into instances, which each have a number of replicas.
func a100(replicas int64) Devices {
	return Devices{Kind: Kind{Model: "a100", Profile: "1g.5gb", Resource: "nvidia.com/mig-1g.5gb"}, Count: 56, Replicas: replicas, MemoryMiB: 4800}
}

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

// add adds a request for one replica to the claim.
func (w *world) add(name string, edit func(*resourcev1.ExactDeviceRequest)) {
	r := &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1, Capacity: &resourcev1.CapacityRequirements{}}
	if edit != nil {
		edit(r)
	}
	w.claim.Spec.Devices.Requests = append(w.claim.Spec.Devices.Requests, resourcev1.DeviceRequest{Name: name, Exactly: r})
}

func (w *world) constrain(constraints ...resourcev1.DeviceConstraint) {
	w.claim.Spec.Devices.Constraints = constraints
}

func match(attribute string, requests ...string) resourcev1.DeviceConstraint {
	return resourcev1.DeviceConstraint{Requests: requests, MatchAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/" + attribute))}
}

func distinct(attribute string, requests ...string) resourcev1.DeviceConstraint {
	return resourcev1.DeviceConstraint{Requests: requests, DistinctAttribute: new(resourcev1.FullyQualifiedName("gpu.karve.sh/" + attribute))}
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
	template := resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "template"}}
	template.Spec.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", Selectors: selector("true")}}}
	objects := New([]resourcev1.ResourceClaim{w.claim}, []resourcev1.ResourceClaimTemplate{template},
		[]resourcev1.DeviceClass{deviceClass("gpu", nodecontract.DRADriver), deviceClass("other", "example.com"), DeviceClass("nvidia.com/mig-1g.5gb")}, append(w.others, &w.pod))
	return objects.On(&w.pod)
}

func TestClaimIsReadAsReplicasAndMemory(t *testing.T) {
	t.Parallel()
	pod := seen(nil)
	ask := Of(pod)
	if ask == nil || ask.Refusal != "" || ask.Total().MemoryBytes != 2862<<20 {
		t.Fatalf("the claim asks %+v", ask)
	}
	last := pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Requests[v1alpha1.ResourceGPUShared]
	if len(pod.Spec.Containers) != 2 || last.Value() != 3 { // The scheduler rounds up to whole replicas, and to whole MiB.
		t.Errorf("the pod requests %v replicas", last.String())
	}
	if memory := resource.MustParse(pod.Annotations[v1alpha1.GPUMemoryAnnotation]); memory.Value() != 2862<<20 {
		t.Errorf("the pod states %s", memory.String())
	}
	if why := ask.Fits(t4(1)); why != "" {
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
		"has a request for the DeviceClass other too":   func(w *world) { w.add("b", func(r *resourcev1.ExactDeviceRequest) { r.DeviceClassName = "other" }) },
		"has a request for the DeviceClass missing too": func(w *world) { w.add("b", func(r *resourcev1.ExactDeviceRequest) { r.DeviceClassName = "missing" }) },
		"has matchAttribute gpu.karve.sh/uuid for a request with a count": func(w *world) {
			w.add("b", func(r *resourcev1.ExactDeviceRequest) { r.Count = 2 })
			w.constrain(match("uuid"))
		},
		"has matchAttribute and distinctAttribute for the same requests": func(w *world) {
			w.add("b", nil)
			w.add("c", nil)
			w.constrain(distinct("index", "gpu", "b"), match("uuid", "gpu", "c"), match("index", "c", "b"))
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
		"and the claim x, which does not exist": func(w *world) {
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
		gpu + `["UUID".lowerAscii()] == "x"`:                                 "cannot be evaluated",
		`"UUID".lowerAscii() in ` + gpu:                                      "known only when there is a node",
		`!("UUID".lowerAscii() in ` + gpu + `)`:                              "known only when there is a node",
		`device.`:                                                            "can compile",
		gpu + `.?missing.orValue("") == ""`:                                  "",
		`has(` + gpu + `.architecture)`:                                      "",
		gpu + `.architecture.matches("^(turing|ampere)$")`:                   "",
		gpu + `.architecture in ["turing", "ampere"] ? 1 : ""`:               "can compile",
	} {
		why := (&Ask{Sets: []Set{{{1, 1, 0}}}, Selectors: []string{expression}}).Fits(t4(1))
		if (why == "") != (want == "") || !strings.Contains(why, want) {
			t.Errorf("%.80s: %q, want %q", expression, why, want)
		}
	}
	if why := (&Ask{Sets: []Set{{{1, 1, 1}}}}).Fits(Devices{Kind: Kind{Model: "new"}, Count: 1, Replicas: 10}); !strings.Contains(why, "new") {
		t.Errorf("a model of unknown memory: %q", why)
	}
}

func TestSelectorsAreEvaluatedWithWhatIsKnownOfInstances(t *testing.T) {
	t.Parallel()
	_, small := nodecontract.DeviceClass("nvidia.com/mig-1g.5gb")
	_, shared := nodecontract.DeviceClass(v1alpha1.ResourceGPUShared)
	const gpu = `device.attributes["gpu.karve.sh"]`
	for _, c := range []struct {
		expression string
		devices    Devices
		want       string
	}{
		{small, a100(1), ""},
		{small, t4(1), "does not select GPUs of model t4"},
		{shared, t4(1), ""},
		{shared, a100(1), "does not select MIG instances of model a100 (1g.5gb)"},
		{gpu + `.profile == "1g.5gb" && ` + gpu + `.architecture == "ampere"`, a100(1), ""},
		{gpu + `.profile.startsWith("2g.")`, a100(1), "does not select"},
		{gpu + `.profile == "1g.5gb"`, t4(1), "cannot be evaluated for GPUs of model t4"},
		{`!("profile" in ` + gpu + `)`, t4(1), ""},
		{gpu + `.size() > 5`, a100(1), "known only when there is a node"},
	} {
		why := (&Ask{Sets: []Set{{{1, 1, 0}}}, Selectors: []string{c.expression}}).Fits(c.devices)
		if (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%s: %q, want %q", c.expression, why, c.want)
		}
	}
	// Agents of before published no resource.
	if ok, err := matches(cel.GetCompiler(cel.Features{}).CompileCELExpression(shared, cel.Options{}), cel.Device{Driver: nodecontract.DRADriver}); !ok || err != nil {
		t.Errorf("a device without a resource is selected: %t, %v", ok, err)
	}
}

func TestClaimIsServedByTheResourceOfItsClass(t *testing.T) {
	t.Parallel()
	for class, want := range map[string]corev1.ResourceName{"gpu": v1alpha1.ResourceGPUShared, "mig-1g.5gb.gpu.karve.sh": "nvidia.com/mig-1g.5gb"} {
		pod := seen(func(w *world) { w.request().DeviceClassName, w.request().Count = class, 2 })
		ask := Of(pod)
		q := pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Requests[want]
		if ask == nil || ask.Refusal != "" || q.Value() != 6 {
			t.Errorf("%s: the claim asks %+v, and the pod requests %v", class, ask, pod.Spec.Containers)
		}
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
	if diff := cmp.Diff([]Set{{{3, 3, 2862 << 20}}}, ask.Sets); ask.Refusal != "" || diff != "" {
		t.Errorf("the claim asks %+v\n%s", ask, diff)
	}
	for _, c := range []struct {
		ask  Ask
		gpu  Devices
		want string
	}{
		{asking(Share{1, 5, 0}), t4(4), ""},
		{asking(Share{4, 10, 15000 << 20}), t4(4), ""},
		{asking(Share{5, 1, 0}), t4(4), "asks for 5 GPUs"},
		{asking(Share{2, 1, 0}), t4(1), "asks for 2 GPUs"},
		{asking(Share{2, 11, 0}), t4(4), "asks for more of each GPU"},
		{asking(Share{2, 1, 16 << 30}), t4(4), "asks for more of each GPU"},
		{asking(Share{1, 6, 0}), t4(4), "more than half of a GPU"},
		{asking(Share{1, 1, 8 << 30}), t4(4), "more than half of a GPU"},
		{asking(Share{1, 3, 0}, Share{2, 1, 0}), t4(4), ""},
		{asking(Share{1, 6, 0}, Share{1, 10, 0}), t4(4), ""}, // It has a machine for itself.
		{asking(Share{1, 6, 0}, Share{1, 11, 0}), t4(4), "asks for more of each GPU"},
		{asking(Share{1, 6, 0}, Share{4, 1, 0}), t4(4), "more than half of a GPU"},
		{Ask{Sets: []Set{{{1, 1, 0}, {4, 1, 0}}}}, t4(4), "asks for 5 GPUs"},
		{Ask{Sets: []Set{{{1, 1, 0}}, {{1, 1, 0}}}, Mixes: "main"}, t4(4), "container main refers to several"},
		{Ask{Sets: []Set{{{1, 1, 0}}, {{1, 1, 0}}}, Mixes: "main"}, t4(1), ""},
		{asking(Share{1, 1, 4800 << 20}), a100(1), ""},
		{asking(Share{56, 1, 0}), a100(1), ""},
		{asking(Share{1, 2, 0}), a100(1), "asks for more of each MIG instance"},
		{asking(Share{57, 1, 0}), a100(1), "asks for 57 MIG instances of a machine, and machines with a100 (1g.5gb) have 56"},
		{asking(Share{1, 2, 0}), a100(4), ""},
		{asking(Share{1, 3, 0}), a100(4), "more than half of a MIG instance"},
		{Ask{Sets: []Set{{{2, 1, 0}}}, ByIndex: true}, a100(1), "have the index of their GPU"},
		{Ask{Sets: []Set{{{2, 1, 0}}}, ByIndex: true}, t4(4), ""},
	} {
		if why := c.ask.Fits(c.gpu); (why == "") != (c.want == "") || !strings.Contains(why, c.want) {
			t.Errorf("%+v on %+v: %q, want %q", c.ask, c.gpu, why, c.want)
		}
	}
}

// asking returns what a claim asks with a request without constraints for each share.
func asking(shares ...Share) Ask {
	var ask Ask
	for _, s := range shares {
		ask.Sets = append(ask.Sets, Set{s})
	}
	return ask
}

func TestSeveralRequestsAreReadAsSetsOfGPUs(t *testing.T) {
	t.Parallel()
	one, two := Share{1, 1, 0}, Share{1, 2, 0}
	for name, c := range map[string]struct {
		constraints []resourcev1.DeviceConstraint
		want        []Set
	}{
		"no constraint":                   {nil, []Set{{one}, {one}, {two}, {{2, 1, 0}}}},
		"the same product":                {[]resourcev1.DeviceConstraint{match("productName")}, []Set{{one}, {one}, {two}, {{2, 1, 0}}}},
		"one GPU":                         {[]resourcev1.DeviceConstraint{match("uuid", "a", "c")}, []Set{{one}, {{1, 3, 0}}, {{2, 1, 0}}}},
		"one GPU by two constraints":      {[]resourcev1.DeviceConstraint{match("uuid", "a", "b"), match("index", "c", "b")}, []Set{{{1, 4, 0}}, {{2, 1, 0}}}},
		"different GPUs":                  {[]resourcev1.DeviceConstraint{distinct("uuid")}, []Set{{one, one, two, {2, 1, 0}}}},
		"different GPUs of some":          {[]resourcev1.DeviceConstraint{distinct("index", "a", "d")}, []Set{{one}, {one, {2, 1, 0}}, {two}}},
		"overlapping constraints":         {[]resourcev1.DeviceConstraint{distinct("uuid", "a", "b"), distinct("uuid", "b", "c")}, []Set{{one, one, two}, {{2, 1, 0}}}},
		"two on one GPU, and one another": {[]resourcev1.DeviceConstraint{match("uuid", "a", "c"), distinct("index", "c", "b")}, []Set{{one, {1, 3, 0}}, {{2, 1, 0}}}},
		"a constraint of one request":     {[]resourcev1.DeviceConstraint{match("uuid", "a"), distinct("uuid", "d")}, []Set{{one}, {one}, {two}, {{2, 1, 0}}}},
	} {
		ask := Of(seen(func(w *world) {
			w.claim.Spec.Devices.Requests = nil
			for name, share := range map[string]Share{"a": one, "b": one, "c": two, "d": {2, 1, 0}} {
				w.add(name, func(r *resourcev1.ExactDeviceRequest) {
					r.Count, r.Capacity.Requests = share.GPUs, map[resourcev1.QualifiedName]resource.Quantity{nodecontract.DRAReplicas: *resource.NewQuantity(share.Replicas, resource.DecimalSI)}
				})
			}
			w.constrain(c.constraints...)
		}))
		if diff := cmp.Diff(c.want, ask.Sets); ask.Refusal != "" || diff != "" {
			t.Errorf("%s: %s\n%s", name, ask.Refusal, diff)
		}
	}
}

func TestSeveralClaimsAreReadAsOneAsk(t *testing.T) {
	t.Parallel()
	pod := seen(func(w *world) {
		w.pod.Spec.ResourceClaims = append(w.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "other", ResourceClaimTemplateName: new("template")})
	})
	ask := Of(pod)
	if diff := cmp.Diff([]Set{{{1, 1, 0}}, {{1, 3, 2862 << 20}}}, ask.Sets); ask.Refusal != "" || diff != "" {
		t.Errorf("the claims ask %+v\n%s", ask, diff)
	}
	if want := []string{"device.driver == '" + nodecontract.DRADriver + "'", "true"}; !slices.Equal(ask.Selectors, want) {
		t.Errorf("the selectors are %q", ask.Selectors)
	}
	last := pod.Spec.Containers[len(pod.Spec.Containers)-1].Resources.Requests[v1alpha1.ResourceGPUShared]
	if memory := resource.MustParse(pod.Annotations[v1alpha1.GPUMemoryAnnotation]); last.Value() != 4 || memory.Value() != 2862<<20 {
		t.Errorf("the pod requests %s replicas and states %s", last.String(), memory.String())
	}
}

func TestContainersThatMixClaimsOrRequestsAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refers []corev1.ResourceClaim
		mixes  bool
	}{
		"nothing":                     {nil, false},
		"a claim":                     {[]corev1.ResourceClaim{{Name: "gpu"}}, false},
		"a request":                   {[]corev1.ResourceClaim{{Name: "gpu", Request: "b"}}, false},
		"requests":                    {[]corev1.ResourceClaim{{Name: "gpu", Request: "gpu"}, {Name: "gpu", Request: "b"}}, true},
		"requests of the same GPU":    {[]corev1.ResourceClaim{{Name: "gpu", Request: "c"}, {Name: "gpu", Request: "b"}}, false},
		"claims":                      {[]corev1.ResourceClaim{{Name: "gpu"}, {Name: "other"}}, true},
		"a claim and its request":     {[]corev1.ResourceClaim{{Name: "gpu"}, {Name: "gpu", Request: "b"}}, true},
		"a claim and its one request": {[]corev1.ResourceClaim{{Name: "other"}, {Name: "other", Request: "gpu"}}, false},
	} {
		ask := Of(seen(func(w *world) {
			w.add("b", nil)
			w.add("c", nil)
			w.constrain(match("uuid", "b", "c"))
			w.pod.Spec.ResourceClaims = append(w.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "other", ResourceClaimTemplateName: new("template")})
			w.pod.Spec.Containers[0].Resources.Claims = c.refers
		}))
		if ask.Refusal != "" || (ask.Mixes == "main") != c.mixes {
			t.Errorf("%s: the claims ask %+v", name, ask)
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
		w.request().AllocationMode = resourcev1.DeviceAllocationModeAll
		w.claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			share("a", "2", "1Gi"), share("b", "1", "2Gi"), share("a", "1", "2Gi"),
		}}}
	})
	if diff := cmp.Diff([]Set{{{1, 1, 2 << 30}, {1, 3, 3 << 30}}}, Of(pod).Sets); diff != "" {
		t.Errorf("the claim holds %s", diff)
	}
	if _, states := pod.Annotations[v1alpha1.GPUMemoryAnnotation]; states {
		t.Error("the pod states memory of one GPU")
	}
}
