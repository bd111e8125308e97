package api

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func deleteClass(t *testing.T, classes dynamic.ResourceInterface, name string) {
	t.Helper()
	// The test's context is canceled before its cleanups run.
	if err := classes.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

// object returns a valid GPUNodeClass with changes.
func object(t *testing.T, name string, change edits) *unstructured.Unstructured {
	t.Helper()
	o := map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(),
		"kind":       v1alpha1.Kind,
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{
			"nodeClassRef": map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
			"sharing":      map[string]any{"strategy": "TimeSlicing", "replicas": int64(10)},
		},
	}
	// Sorted, so that spec.sharing comes before spec.sharing.replicas.
	for _, path := range slices.Sorted(maps.Keys(change)) {
		fields := strings.Split(path, ".")
		if change[path] == nil {
			unstructured.RemoveNestedField(o, fields...)
			continue
		}
		if err := unstructured.SetNestedField(o, plain(change[path]), fields...); err != nil {
			t.Fatal(err)
		}
	}
	return &unstructured.Unstructured{Object: o}
}

// plain converts int to int64, the only integer type of unstructured objects.
func plain(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []any:
		out := make([]any, 0, len(v))
		for _, e := range v {
			out = append(out, plain(e))
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, e := range v {
			out[k] = plain(e)
		}
		return out
	default:
		return v
	}
}

func long(n int) string { return strings.Repeat("x", n) }

func digits(n int) string { return strings.Repeat("1", n) }

func with(base map[string]any, change edits) map[string]any {
	for k, v := range change {
		if v == nil {
			delete(base, k)
			continue
		}
		base[k] = v
	}
	return base
}

// withMPS returns changes that make the strategy MPS.
func withMPS(more edits) edits {
	e := edits{"spec.sharing.strategy": "MPS", "spec.sharing.mps": map[string]any{}}
	maps.Copy(e, more)
	return e
}

// withMIG returns changes that make the strategy MIG, with one layout.
func withMIG(more edits) edits {
	e := edits{"spec.sharing.strategy": "MIG", "spec.sharing.mig": map[string]any{"layouts": layouts(nil)}}
	maps.Copy(e, more)
	return e
}

// withSlots returns changes that make the strategy MemorySlots.
func withSlots(more edits) edits {
	e := edits{"spec.sharing.strategy": "MemorySlots", "spec.sharing.replicas": nil, "spec.sharing.memory": map[string]any{"sizes": []any{"2Gi", "4Gi"}}}
	maps.Copy(e, more)
	return e
}

// withLayout returns changes that make the strategy MIG, with a changed layout.
func withLayout(change edits) edits {
	return withMIG(edits{"spec.sharing.mig": map[string]any{"layouts": layouts(change)}})
}

func layouts(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpuName": "a100", "profile": "1g.5gb"}, change))
	}
	return out
}

// several returns instances of profiles.
func several(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"profile": "1g.5gb", "count": 3}, change))
	}
	return out
}

// withInstances returns changes that make the strategy MIG, with instances of several profiles on each GPU.
func withInstances(changes ...edits) edits {
	return withLayout(edits{"profile": nil, "instances": several(changes...)})
}

// withGroups returns changes that make the strategy MIG, with groups of GPUs.
func withGroups(changes ...edits) edits {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpus": 4, "instances": several(nil)}, change))
	}
	return withLayout(edits{"profile": nil, "groups": out})
}

// withGroupOf returns changes that make the strategy MIG, with a group of instances of several profiles.
func withGroupOf(changes ...edits) edits { return withGroups(edits{"instances": several(changes...)}) }

// profilesUpTo returns changes to n different profiles.
func profilesUpTo(n int) []edits {
	var all []edits
	for i := range n {
		all = append(all, edits{"profile": fmt.Sprintf("1g.%dgb", i+1)})
	}
	return all
}

func slotSizes(sizes ...any) edits {
	return withSlots(edits{"spec.sharing.memory": map[string]any{"sizes": append([]any{}, sizes...)}})
}

func withReserve(reserve string) edits {
	return withSlots(edits{"spec.sharing.memory.reserve": reserve})
}

func whole(change edits) edits {
	return with(map[string]any{"spec.sharing": map[string]any{"strategy": "None"}}, change)
}

func override(change edits) edits { return edits{"spec.sharing.overrides": overrides(change)} }

func overrides(changes ...edits) []any {
	out := make([]any, 0, len(changes))
	for _, change := range changes {
		out = append(out, with(map[string]any{"gpuName": "t4", "replicas": 5}, change))
	}
	return out
}

func numbered(prefix string, n int) []string {
	out := make([]string, 0, n)
	for i := range n {
		out = append(out, fmt.Sprint(prefix, i))
	}
	return out
}

func many(n int) []any {
	changes := make([]edits, 0, n)
	for _, name := range numbered("gpu-", n) {
		changes = append(changes, edits{"gpuName": name})
	}
	return overrides(changes...)
}

func unusedAfter(value string) edits {
	return edits{"spec.consolidation": map[string]any{"unusedAfter": value}}
}

func grace(value string) edits { return edits{"spec.terminationGracePeriod": value} }

func idleAfter(value string) edits { return consolidation("idleAfter", value) }

func consolidation(field, value string) edits {
	return edits{"spec.consolidation": map[string]any{field: value}}
}

func warm(change edits) map[string]any { return with(map[string]any{"replicas": 10}, change) }

func headroom(change edits) edits { return edits{"spec.headroom": []any{warm(change)}} }

func scheduled(schedule, duration string) edits {
	return headroom(edits{"schedule": schedule, "duration": duration})
}

func conditions(types ...string) edits {
	out := make([]any, 0, len(types))
	for _, name := range types {
		out = append(out, map[string]any{
			"type": name, "status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z",
		})
	}
	return edits{"status.conditions": out}
}

func offering(change edits) map[string]any {
	return with(map[string]any{
		"instanceType": "g4dn.xlarge", "zone": "eu-west-1a", "capacityType": "on-demand", "failures": 2, "notBefore": "2026-01-02T03:04:05Z",
	}, change)
}

// mismatch returns an entry of status.nodeMismatches with a change.
func mismatch(change edits) map[string]any {
	return with(map[string]any{
		"nodePool": "gpu", "nodeClaim": "gpu-1", "pods": "1f0c9a2b7e", "label": "nvidia.com/gpu.product", "expected": "NVIDIA-A10G", "actual": "Tesla-T4", "since": "2026-01-02T03:04:05Z",
	}, change)
}

func mismatched(change edits) edits { return edits{"status.nodeMismatches": []any{mismatch(change)}} }

// wasted returns a step of status.waste with a change.
func wasted(change edits) map[string]any {
	return with(map[string]any{"nodeClaims": []any{"a"}, "pods": 5, "restartUSD": "0.250", "usdPerHour": "0.226"}, change)
}

func waste(change edits) edits {
	return edits{"status.waste": with(map[string]any{"usd": "0.100", "usdPerHour": "0.226", "asOf": "2026-03-01T12:00:00Z", "steps": []any{wasted(nil)}}, change)}
}

func wasteStep(change edits) edits { return waste(edits{"steps": []any{wasted(change)}}) }

func refused(change edits) edits { return edits{"status.refusedOfferings": []any{offering(change)}} }

func premium(percent int) edits {
	return edits{"spec.launch": map[string]any{"maxPremiumPercent": percent}}
}
