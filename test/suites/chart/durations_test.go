package chart_test

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// tooLong is a duration that matches the pattern of Karpenter's CRDs but that Go cannot parse.
const tooLong = "99999999999h"

// durationFields are the durations of Karpenter's kinds, each with an object around it.
var durationFields = map[string]func(duration string) *unstructured.Unstructured{
	"NodePool spec.disruption.consolidateAfter": func(d string) *unstructured.Unstructured {
		return durationPool(map[string]any{"consolidateAfter": d}, map[string]any{})
	},
	"NodePool spec.disruption.budgets[].duration": func(d string) *unstructured.Unstructured {
		return durationPool(map[string]any{"consolidateAfter": "0s", "budgets": []any{map[string]any{"nodes": "1", "schedule": "@daily", "duration": d}}}, map[string]any{})
	},
	"NodePool spec.template.spec.expireAfter": func(d string) *unstructured.Unstructured {
		return durationPool(map[string]any{"consolidateAfter": "0s"}, map[string]any{"expireAfter": d})
	},
	"NodePool spec.template.spec.terminationGracePeriod": func(d string) *unstructured.Unstructured {
		return durationPool(map[string]any{"consolidateAfter": "0s"}, map[string]any{"terminationGracePeriod": d})
	},
	"NodeClaim spec.expireAfter": func(d string) *unstructured.Unstructured {
		return durationObject("NodeClaim", claimSpec("expireAfter", d))
	},
	"NodeClaim spec.terminationGracePeriod": func(d string) *unstructured.Unstructured {
		return durationObject("NodeClaim", claimSpec("terminationGracePeriod", d))
	},
}

func claimSpec(key, value string) map[string]any {
	spec := map[string]any{
		"nodeClassRef": map[string]any{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "gpu"},
		"requirements": []any{map[string]any{"key": "karpenter.sh/capacity-type", "operator": "In", "values": []any{"spot"}}},
	}
	if key != "" {
		spec[key] = value
	}
	return spec
}

func durationPool(disruption, template map[string]any) *unstructured.Unstructured {
	spec := claimSpec("", "")
	maps.Copy(spec, template)
	return durationObject("NodePool", map[string]any{"disruption": disruption, "template": map[string]any{"spec": spec}})
}

func durationObject(kind string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion("karpenter.sh/v1")
	u.SetKind(kind)
	u.SetName("durations")
	return u
}

// durationsOf returns the paths of the durations in a type of the API.
func durationsOf(of reflect.Type, path string) []string {
	switch of {
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[karpv1.NillableDuration]():
		return []string{path}
	}
	switch of.Kind() {
	case reflect.Pointer:
		return durationsOf(of.Elem(), path)
	case reflect.Slice, reflect.Map:
		return durationsOf(of.Elem(), path+"[]")
	case reflect.Struct:
		var all []string
		for f := range of.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
				all = append(all, durationsOf(f.Type, path+"."+name)...)
			} else if f.Anonymous {
				all = append(all, durationsOf(f.Type, path)...)
			}
		}
		return all
	default:
		return nil
	}
}

func TestPolicyKnowsAllDurationsOfKarpenter(t *testing.T) {
	all := append(durationsOf(reflect.TypeFor[karpv1.NodePoolSpec](), "NodePool spec"), durationsOf(reflect.TypeFor[karpv1.NodeClaimSpec](), "NodeClaim spec")...)
	slices.Sort(all)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(durationFields)), all); diff != "" {
		t.Errorf("add what is new to templates/durationpolicy.yaml and to durationFields (-known +in the API):\n%s", diff)
	}
}

// TestUnparsableDurationIsRefused shows on a real API server what such a duration breaks, and that the chart's policy rejects it.
func TestUnparsableDurationIsRefused(t *testing.T) {
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	remove := func(o client.Object) {
		t.Helper()
		if err := k.Delete(context.WithoutCancel(t.Context()), o); err != nil {
			t.Error(err)
		}
	}
	for field, object := range durationFields {
		o := object(tooLong)
		create(t, k, o)
		var list client.ObjectList = &karpv1.NodePoolList{}
		if o.GetKind() == "NodeClaim" {
			list = &karpv1.NodeClaimList{}
		}
		if err := k.List(t.Context(), list); err == nil {
			t.Errorf("%s: %s can be read: the policy is not needed for it", field, tooLong)
		}
		remove(o)
	}
	pool := durationFields["NodePool spec.disruption.consolidateAfter"](tooLong)
	pool.SetName("there-already")
	create(t, k, pool)

	for _, o := range objects(t, needed, "--set=node.enabled=false,nominations.enabled=false") {
		if strings.HasSuffix(o.GetName(), "-durations") {
			create(t, k, o)
			t.Cleanup(func() { remove(o) })
		}
	}
	try := func(o *unstructured.Unstructured) error { return k.Create(t.Context(), o, client.DryRunAll) }
	for deadline := time.Now().Add(time.Minute); try(durationFields["NodeClaim spec.expireAfter"](tooLong)) == nil; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy is not in force")
		}
	}
	for field, object := range durationFields {
		if err := try(object(tooLong)); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(fmt.Sprint(err), "duration") {
			t.Errorf("%s: %s is accepted, or refused without a word about it: %v", field, tooLong, err)
		} else {
			t.Log(err)
		}
		for _, d := range []string{"2562047h", "1h30m", "1m"} {
			if err := try(object(d)); err != nil {
				t.Errorf("%s: %s is refused: %v", field, d, err)
			}
		}
		if err := try(object("Never")); err != nil && strings.Contains(field, "After") {
			t.Errorf("%s: Never is refused: %v", field, err)
		}
	}
	if err := try(durationObject("NodeClaim", claimSpec("", ""))); err != nil {
		t.Errorf("without a duration: %v", err)
	}
	pool.SetAnnotations(map[string]string{"example.com/touched": "true"})
	if err := k.Update(t.Context(), pool); err != nil {
		t.Errorf("an existing NodePool can no longer be updated: %v", err)
	}
	remove(pool)
}
