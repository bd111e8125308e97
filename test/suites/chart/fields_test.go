package chart_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// fields returns the JSON names of the fields of a struct of the API, by their paths below prefix.
func fields(prefix string, of reflect.Type) map[string]reflect.Type {
	all := map[string]reflect.Type{}
	for f := range of.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" {
			all[prefix+"."+name] = f.Type
		}
	}
	return all
}

// some returns a value of a type that is not the zero value, as it is in JSON.
func some(of reflect.Type) any {
	switch of {
	case reflect.TypeFor[metav1.Time]():
		return "2026-03-01T12:00:00Z"
	case reflect.TypeFor[resource.Quantity]():
		return "1"
	case reflect.TypeFor[intstr.IntOrString]():
		return 1
	}
	switch of.Kind() {
	case reflect.Pointer:
		return some(of.Elem())
	case reflect.Slice:
		return []any{some(of.Elem())}
	case reflect.Map:
		return map[string]any{"example.com/some": some(of.Elem())}
	case reflect.Struct:
		value := map[string]any{}
		for path, t := range fields("", of) {
			if t.Kind() != reflect.Pointer && t.Kind() != reflect.Slice && t.Kind() != reflect.Map {
				value[path[1:]] = some(t)
			}
		}
		return value
	case reflect.Bool:
		return true
	case reflect.Int32, reflect.Int64:
		return 1
	default:
		return "some"
	}
}

// holding is an object whose fields a component may not change, apart from its own.
type holding struct {
	object client.Object
	types  map[string]reflect.Type
	// values are values of fields for which the API server refuses what some returns.
	values map[string]string
	// own are the component's own fields. fixed are those that the API server lets nobody change in this way, with the reason.
	own   []string
	fixed map[string]string
	// patch changes the object as the component, and asAdmin as an administrator, without a lasting effect. Both return the object that results.
	patch, asAdmin func(patch string) (client.Object, error)
}

// nested returns a merge patch that sets a field of an object.
func nested(t *testing.T, path string, value json.RawMessage) string {
	t.Helper()
	names := strings.Split(path, ".")
	for _, name := range slices.Backward(names) {
		text, err := json.Marshal(map[string]json.RawMessage{name: value})
		if err != nil {
			t.Fatal(err)
		}
		value = text
	}
	return string(value)
}

// at returns the field of an object in JSON, "null" if it has none.
func at(t *testing.T, o any, path string) string {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(path, ".") {
		of, _ := value.(map[string]any)
		value = of[name]
	}
	if text, err = json.Marshal(value); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// check changes every field, and removes every field that the object has.
func (h holding) check(t *testing.T) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(h.types)) {
		value := json.RawMessage(h.values[path])
		if len(value) == 0 {
			text, err := json.Marshal(some(h.types[path]))
			if err != nil {
				t.Fatal(err)
			}
			value = text
		}
		changes := []json.RawMessage{value}
		was := at(t, h.object, path)
		if was != "null" {
			changes = append(changes, json.RawMessage("null"))
		}
		possible := false
		for _, value := range changes {
			patch := nested(t, path, value)
			made, err := h.asAdmin(patch)
			changed := err == nil && at(t, made, path) != was
			possible = possible || changed
			why := err
			made, err = h.patch(patch)
			switch own := slices.Contains(h.own, path); {
			case changed && own && err != nil:
				t.Errorf("%s is refused, and the field is the component's own: %v", patch, err)
			case changed && !own && !apierrors.IsForbidden(err):
				t.Errorf("%s: %v, want a refusal", patch, err)
			case !changed && !own && err == nil && at(t, made, path) != was:
				t.Errorf("%s is accepted from the component and not from an administrator (%v)", patch, why)
			case !changed && value[0] != 'n' && h.fixed[path] == "":
				t.Errorf("nobody can change %s with %s, so the test says nothing about it: %v", path, patch, why)
			}
		}
		if possible && h.fixed[path] != "" {
			t.Errorf("%s can be changed, against: %s", path, h.fixed[path])
		}
	}
}

// objectTypes returns the fields of an object of the API with their paths.
func objectTypes(status reflect.Type, spec ...reflect.Type) map[string]reflect.Type {
	all := fields("metadata", reflect.TypeFor[metav1.ObjectMeta]())
	maps.Copy(all, fields("status", status))
	for _, s := range spec {
		maps.Copy(all, fields("spec", s))
	}
	return all
}

const (
	immutable = "the API server lets nobody change it"
	kept      = "the API server keeps the value that it has"
	gated     = "the API server drops it while its feature gate is off"
)

// fixed returns the fields that nobody can change, with the reasons.
func fixed(others map[string]string) map[string]string {
	all := map[string]string{
		"metadata.creationTimestamp": kept, "metadata.deletionGracePeriodSeconds": immutable, "metadata.deletionTimestamp": immutable, "metadata.generation": kept,
		"metadata.managedFields": kept, "metadata.name": immutable, "metadata.namespace": immutable, "metadata.resourceVersion": immutable, "metadata.uid": immutable,
	}
	maps.Copy(all, others)
	return all
}

// dry is a change without a lasting effect.
var dry = metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}

func TestAgentChangesNoFieldsOfNodeButItsOwn(t *testing.T) {
	admin := install(t)
	made, err := admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "fields", Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"team": "a"}, Finalizers: []string{"example.com/a"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := admin.CoreV1().Nodes().Patch(ctx, "fields", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		if err := admin.CoreV1().Nodes().Delete(ctx, "fields", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	made.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("10")}
	made.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err = admin.CoreV1().Nodes().UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	inForce(t, as(t, node.Namespace+":karve-node", "another"), "fields")
	if made, err = admin.CoreV1().Nodes().Get(t.Context(), "fields", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	agent := as(t, node.Namespace+":karve-node", "fields")
	through := func(k kubernetes.Interface) func(string) (client.Object, error) {
		return func(patch string) (client.Object, error) {
			var sub []string
			if strings.HasPrefix(patch, `{"status"`) {
				sub = []string{"status"}
			}
			return k.CoreV1().Nodes().Patch(t.Context(), "fields", types.MergePatchType, []byte(patch), dry, sub...)
		}
	}
	holding{
		object: made, types: objectTypes(reflect.TypeFor[corev1.NodeStatus](), reflect.TypeFor[corev1.NodeSpec]()),
		fixed: fixed(map[string]string{"spec.configSource": kept, "spec.externalID": immutable, "spec.podPreemptionPolicy": gated, "status.config": kept}),
		values: map[string]string{
			"metadata.finalizers":     `["example.com/b"]`,
			"spec.podCIDR":            `"10.1.0.0/24"`,
			"spec.podCIDRs":           `["10.1.0.0/24"]`,
			"spec.taints":             `[{"key":"b","effect":"NoSchedule"}]`,
			"status.declaredFeatures": `["SomeFeature"]`,
		},
		patch: through(agent), asAdmin: through(admin),
	}.check(t)
}

func TestControllerChangesNoFieldOfPodButItsNomination(t *testing.T) {
	cluster.Require(t)
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects(t, needed, "--set=node.enabled=false") {
		if strings.HasSuffix(o.GetName(), "-nominations") {
			create(t, k, o)
			t.Cleanup(func() {
				if err := k.Delete(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			})
		}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "fields-", Labels: map[string]string{"app": "one"}},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("some")}},
			Containers: []corev1.Container{{Name: "main", Image: "app", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}}},
		},
	}
	create(t, k, pod)
	pod.Status.HostIP, pod.Status.HostIPs = "10.0.0.9", []corev1.HostIP{{IP: "10.0.0.9"}}
	if err := k.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Delete(context.WithoutCancel(t.Context()), pod); err != nil {
			t.Error(err)
		}
	})
	admin, err := kubernetes.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	controllers := as(t, controller.Namespace+":karve", "")
	through := func(k kubernetes.Interface) func(string) (client.Object, error) {
		return func(patch string) (client.Object, error) {
			return k.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(patch), dry, "status")
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // Until the API server has loaded the role and the policy.
		_, allowed := through(controllers)(`{}`)
		_, refused := through(controllers)(`{"status":{"reason":"inForce"}}`)
		if allowed == nil && apierrors.IsForbidden(refused) {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(fmt.Errorf("the policy is not in force: %w, %w", allowed, refused))
		}
	}
	holding{
		object: pod, types: objectTypes(reflect.TypeFor[corev1.PodStatus]()),
		fixed: fixed(map[string]string{
			"metadata.ownerReferences": kept, "status.qosClass": immutable, "status.hostIP": "the API server wants status.hostIPs, which the test changes, to agree with it",
			"status.nodeAllocatableResourceClaimStatuses": gated, "status.volumeHealth": gated,
		}),
		values: map[string]string{
			"metadata.finalizers":                `["example.com/b"]`,
			"status.podIP":                       `"10.0.0.1"`,
			"status.podIPs":                      `[{"ip":"10.0.0.1"}]`,
			"status.hostIPs":                     `[{"ip":"10.0.0.9"},{"ip":"2001:db8::1"}]`,
			"status.resourceClaimStatuses":       `[{"name":"gpu","resourceClaimName":"some"}]`,
			"status.extendedResourceClaimStatus": `{"resourceClaimName":"some","requestMappings":[{"containerName":"main","resourceName":"example.com/gpu","requestName":"some"}]}`,
		},
		own: []string{"status.nominatedNodeName"}, patch: through(controllers), asAdmin: through(admin),
	}.check(t)
}
