package claims

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"karve.sh/karve/pkg/nodecontract"
)

// nested returns an expression in which each variable is made from the previous one.
func nested(list, last string) string {
	const depth = 24
	name := func(i int) string { return string(rune('a'+i)) + "x" }
	s := strings.ReplaceAll(last, "$", name(depth))
	for i := depth; i > 0; i-- {
		s = "[" + strings.ReplaceAll(list, "$", name(i-1)) + "].all(" + name(i) + ", " + s + ")"
	}
	return "[[1, 1]].all(" + name(0) + ", " + s + ")"
}

// Each of these takes minutes or gigabytes, and CEL's cost limit does not stop it.
func TestSelectorsThatTakeAnyAmountOfTimeOrMemoryAreNotEvaluated(t *testing.T) {
	t.Parallel()
	for want, expression := range map[string]string{
		"calls quantity":   `quantity("1e2000000000").isGreaterThan(quantity("1"))`,
		"has a macro":      nested("[$, $]", "$ == $"),
		"calls replace":    `"` + strings.Repeat("a", 400) + `".replace("", "b").replace("", "c").replace("", "d") == ""`,
		"calls +":          `[1] + [1] == [1]`,
		"calls format":     `"%s".format([1]) == ""`,
		"calls isQuantity": `isQuantity("1e2000000000")`,
		"calls bind":       `cel.bind(x, [1, 1], x == x)`,
		"calls sort":       `[2, 1].sort() == [1, 2]`,
		"without { }":      `"a".matches("(` + strings.Repeat(".", 400) + `){1000}")`,
		"than a literal":   `"a".matches(device.driver)`,
		"can compile":      strings.Repeat("(", 500),
	} {
		start := time.Now()
		why := (&Ask{Sets: []Set{{{1, 1, 0}}}, Selectors: []string{expression}}).Fits(t4(1))
		if !strings.Contains(why, want) || len(why) > 3*messageBytes {
			t.Errorf("%.60s: %q, want %q", expression, why, want)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%.60s takes %v", expression, took)
		}
	}
}

// long returns a selector of n bytes.
func long(n int, other string) string {
	return "'" + other + strings.Repeat("a", n-len(other)-len("''!=''")) + "'!=''"
}

func requestsOf(n int, edit func(int, *resourcev1.DeviceRequest)) []resourcev1.DeviceRequest {
	var all []resourcev1.DeviceRequest
	for i := range n {
		r := resourcev1.DeviceRequest{Name: fmt.Sprint("r", i), Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}
		edit(i, &r)
		all = append(all, r)
	}
	return all
}

// oversized has claims beyond each limit, by the text that their refusal contains.
var oversized = map[string]func(*world){
	"ResourceClaim default/mine has a selector of more than 1024 bytes": func(w *world) { w.request().Selectors = selector(long(selectorBytes+1, "")) },
	"ResourceClaim default/mine brings the selectors of the pod above 4096 bytes": func(w *world) {
		for i := range 5 {
			w.request().Selectors = append(w.request().Selectors, selector(long(selectorBytes, fmt.Sprint(i)))...)
		}
	},
	"brings the selectors of the pod above 64": func(w *world) {
		w.claim.Spec.Devices.Requests = requestsOf(32, func(_ int, r *resourcev1.DeviceRequest) {
			r.Exactly.Selectors = append(selector("true"), selector("true")...)
		})
	},
	"brings the requests of the pod above 64": func(w *world) {
		w.claim.Spec.Devices.Requests = requestsOf(32, func(_ int, r *resourcev1.DeviceRequest) {
			r.Exactly = nil
			for i := range 8 {
				r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{Name: fmt.Sprint(i), DeviceClassName: fmt.Sprint("any-", i)})
			}
		})
	},
	"has more than 32 claims": func(w *world) {
		for i := range 100 {
			w.pod.Spec.ResourceClaims = append(w.pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint(i), ResourceClaimName: new("mine")})
		}
	},
	"has more than 16 constraints": func(w *world) {
		for range 32 {
			w.claim.Spec.Devices.Constraints = append(w.claim.Spec.Devices.Constraints, match("productName"))
		}
	},
	"constraints for more than 128 requests": func(w *world) {
		w.claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{match("productName", strings.Split(strings.Repeat("gpu,", 128)+"gpu", ",")...)}
	},
	"which the GPUs do not have": func(w *world) {
		for i := range 32 {
			w.request().Capacity.Requests[resourcev1.QualifiedName(fmt.Sprint("other", i))] = resource.MustParse("1")
		}
	},
}

func TestClaimsBeyondALimitAreRefusedWithTheLimit(t *testing.T) {
	t.Parallel()
	for want, edit := range oversized {
		for name, also := range map[string]func(*world){"whole": func(*world) {}, "cut": func(w *world) { Cut(&w.claim.Spec) }} {
			ask := Of(seen(func(w *world) { edit(w); also(w) }))
			if ask == nil || !strings.Contains(ask.Refusal, want) || len(ask.Refusal) > 5*messageBytes || len(ask.Selectors) > 0 {
				t.Errorf("%s: the claim asks %+v, want a refusal with %q", name, ask, want)
			}
		}
	}
}

func TestClaimsWithinTheLimitsAreTheSameAfterCut(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*world){
		"one request": func(*world) {},
		"many selectors": func(w *world) {
			w.claim.Spec.Devices.Requests = requestsOf(21, func(i int, r *resourcev1.DeviceRequest) {
				r.Exactly.Selectors = append(selector(long(60, fmt.Sprint(i))), selector("true")...)
			})
		},
		"an allocation": func(w *world) {
			w.claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{UID: "pod"}}
			w.claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Driver: "example.com", Device: "other"},
				{Driver: nodecontract.DRADriver, Device: "0", ConsumedCapacity: map[resourcev1.QualifiedName]resource.Quantity{nodecontract.DRAReplicas: resource.MustParse("3")}},
			}}}
		},
		"reserved for others": func(w *world) {
			for i := range 256 {
				w.claim.Status.ReservedFor = append(w.claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{UID: "pod", Name: fmt.Sprint(i)})
			}
			w.claim.Status.ReservedFor[1].UID = "other"
		},
	} {
		whole, cut := Text(seen(edit)), Text(seen(func(w *world) { edit(w); Cut(&w.claim.Spec); CutStatus(&w.claim.Status) }))
		if whole == "" || whole != cut {
			t.Errorf("%s: the claim asks %s, and after the cut %s", name, whole, cut)
		}
	}
}

// TestPodsAtTheLimitsCostLittle has more pods than fit into the caches of expressions.
func TestPodsAtTheLimitsCostLittle(t *testing.T) {
	t.Parallel()
	const pods = 100
	start := time.Now()
	for i := range pods {
		var expressions []string
		for j := range 4 {
			s := fmt.Sprintf("'%d-%d'!=''", i, j)
			for len(s) < selectorBytes-20 {
				s += "||device.driver==''"
			}
			expressions = append(expressions, s)
		}
		ask := &Ask{Sets: []Set{{{1, 1, 0}}}, Selectors: expressions}
		for _, model := range []string{"t4", "l4", "a10g"} {
			d := t4(1)
			d.Model = model
			if why := ask.Fits(d); why != "" {
				t.Fatal(why)
			}
		}
	}
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("%d pods take %v", pods, took)
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	if memory.HeapAlloc > 64<<20 {
		t.Errorf("%d MiB are in use", memory.HeapAlloc>>20)
	}
}

func TestPodsOfATemplateShareTheTextOfTheirClaims(t *testing.T) {
	t.Parallel()
	a, b := Text(seen(nil)), Text(seen(nil))
	if a == "" || unsafe.StringData(a) != unsafe.StringData(b) {
		t.Error("two pods have texts of their own")
	}
}
