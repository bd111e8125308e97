package webhook_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	sigsjson "sigs.k8s.io/json"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/memoryalias"
	"karve.sh/karve/pkg/memoryalias/webhook"
)

// classes plays the cache.
type classes map[string]*v1alpha1.GPUNodeClass

func (c classes) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	class, ok := c[key.Name]
	switch {
	case !ok:
		return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.Group, Resource: "gpunodeclasses"}, key.Name)
	case class == nil:
		return errors.New("the cache is not started")
	}
	class.DeepCopyInto(into.(*v1alpha1.GPUNodeClass))
	return nil
}

func (classes) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nothing is listed")
}

func withSizes(sizes ...string) *v1alpha1.GPUNodeClass {
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu-memory"}}
	class.Spec.Sharing.Strategy = v1alpha1.StrategyTimeSlicing
	if len(sizes) > 0 {
		class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: sizes}}
	}
	return class
}

func serve(c classes) *admission.Webhook {
	return webhook.New(&webhook.Handler{Options: options, Classes: c})
}

var options = webhook.Options{GPUNodeClass: "gpu-memory", HAMiGPUMemoryMiB: 15360, TaintKey: "nvidia.com/gpu", Port: 9443}

const pods = `"resource": {"version": "v1", "resource": "pods"}, "operation": "CREATE", "object": `

// review returns the body of a request for a pod.
func review(pod string) []byte {
	return []byte(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", ` + pods + pod + `}}`)
}

// call sends a body to the webhook.
func call(t *testing.T, w *admission.Webhook, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/memory-aliases", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	answer := httptest.NewRecorder()
	w.ServeHTTP(answer, req)
	var r admissionv1.AdmissionReview
	if err := json.Unmarshal(answer.Body.Bytes(), &r); err != nil || r.Response == nil {
		t.Fatalf("the answer is %q: %v", answer.Body.String(), err)
	}
	return r.Response
}

const (
	gpushare = `{"apiVersion": "v1", "kind": "Pod", "spec": {"future": {"a": 1}, "containers": [{"name": "c", "resources": {"future": 2, "limits": {"cpu": "0.5", "aliyun.com/gpu-mem": 3}, "requests": {"cpu": "0.5", "aliyun.com/gpu-mem": 3}}}]}}`
	hami     = `{"apiVersion": "v1", "kind": "Pod", "spec": {"tolerations": [{"key": "other", "operator": "Exists"}], "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 5}}}], "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}}}]}}`
	tooMuch  = `{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": 9}}}]}}`
)

func TestWebhookChangesOnlyWhatItReplaces(t *testing.T) {
	t.Parallel()
	w := serve(classes{"gpu-memory": withSizes("1536Mi", "4Gi", "8Gi")})
	for pod, want := range map[string]string{
		gpushare: `{"apiVersion": "v1", "kind": "Pod", "spec": {"future": {"a": 1}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
			"containers": [{"name": "c", "resources": {"future": 2, "limits": {"cpu": "0.5", "nvidia.com/gpu-4gb": "1"}, "requests": {"cpu": "0.5", "nvidia.com/gpu-4gb": "1"}}}]}}`,
		hami: `{"apiVersion": "v1", "kind": "Pod", "spec": {"tolerations": [{"key": "other", "operator": "Exists"}, {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
			"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu-1536mb": "1"}, "requests": {"nvidia.com/gpu-1536mb": "1"}}}],
			"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu-4gb": "1"}, "requests": {"nvidia.com/gpu-4gb": "1"}}}]}}`,
	} {
		r := call(t, w, review(pod))
		if !r.Allowed || r.UID != "u" {
			t.Fatalf("the answer is %+v", r)
		}
		if got := patched(t, pod, r.Patch); !jsonpatch.Equal(got, []byte(want)) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if r := call(t, w, review(tooMuch)); r.Allowed || len(r.Patch) > 0 || !strings.Contains(r.Result.Message, "1536Mi, 4Gi, 8Gi: request less") {
		t.Errorf("the answer is %+v", r)
	}
}

func patched(t *testing.T, pod string, patch []byte) []byte {
	t.Helper()
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	got, err := ops.Apply([]byte(pod))
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	return got
}

func TestWebhookReadsTheClassForEachPod(t *testing.T) {
	t.Parallel()
	c := classes{}
	w := serve(c)
	unchanged := func(why string) {
		t.Helper()
		if r := call(t, w, review(gpushare)); !r.Allowed || len(r.Patch) > 0 {
			t.Errorf("%s: the answer is %+v", why, r)
		}
	}
	unchanged("without the class")
	c["gpu-memory"] = nil
	unchanged("without a cache")
	for _, size := range []string{"4Gi", "3Gi", "6Gi"} {
		c["gpu-memory"] = withSizes(size)
		if r := call(t, w, review(gpushare)); !strings.Contains(string(r.Patch), "gpu-"+strings.TrimSuffix(size, "Gi")+"gb") {
			t.Errorf("with %s the patch is %s", size, r.Patch)
		}
	}
	c["gpu-memory"] = withSizes()
	if r := call(t, w, review(gpushare)); r.Allowed || !strings.HasSuffix(r.Result.Message, "GPUNodeClass gpu-memory has no slots (spec.sharing.memory.sizes)") {
		t.Errorf("without slots the answer is %+v", r.Result)
	}
}

func TestWebhookThatPanicsGivesNoAnswer(t *testing.T) {
	t.Parallel()
	w := webhook.New(&webhook.Handler{Options: options}) // Without classes.
	s := httptest.NewServer(w)
	defer s.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, bytes.NewReader(review(gpushare)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if answer, err := s.Client().Do(req); err == nil {
		answer.Body.Close()
		t.Errorf("the answer has the status %s", answer.Status)
	}
}

// slow matches quantities with which arithmetic takes long.
var slow = regexp.MustCompile(`[eE][-+]?[0-9]{4}`)

// FuzzReview sends bodies that no API server sends. For a pod that can be read, the changes are those of the policy.
func FuzzReview(f *testing.F) {
	for _, pod := range []string{
		gpushare, hami, tooMuch, `null`, `[]`, `{}`, `{"apiVersion": "v1", "kind": "Node"}`, `{"apiVersion": "v1", "kind": "Pod", "spec": null}`,
		`{"apiVersion": "v1", "kind": "Pod", "spec": {"tolerations": null, "containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "1e2000000000"}}}]}}`,
		`{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "-1", "nvidia.com/gpu": "9e18"}, "requests": null}}, {}]}}`,
		`{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"resources": {"limits": {"aliyun.com/gpu-mem": "1500m", "a~/b": 1, "nvidia.com/gpu-4gb": 7}, "requests": {"nvidia.com/gpucores": 1}}}]}}`,
	} {
		f.Add(review(pod))
	}
	for _, q := range []string{"1e-2000000000", "1e2147483647", "0.1e-2147483647", "", "1Gi", "\\u0031"} {
		f.Add(review(`{"spec": {"containers": [{"resources": {"limits": {"cpu": "` + q + `", "aliyun.com/gpu-mem": 3}, "requests": {"aliyun.com/gpu-mem": "` + q + `"}}}]}}`))
	}
	f.Add([]byte(`{"request": {` + pods + `"no object"}}`))
	f.Add([]byte(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "DELETE"}}`))
	f.Add([]byte(strings.Repeat(`{"request":`, 1000)))
	f.Add([]byte{})
	class := withSizes("1536Mi", "4Gi", "8Gi")
	w := serve(classes{"gpu-memory": class})
	policy, _ := memoryalias.For(class)
	policy.HAMiGPUMemoryMiB = options.HAMiGPUMemoryMiB
	f.Fuzz(func(t *testing.T, body []byte) {
		r := call(t, w, body)
		if len(r.Patch) == 0 {
			return
		}
		var sent admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &sent); err != nil || sent.Request == nil {
			return // The decoder of the API server reads more.
		}
		if slow.Match(body) {
			return // This test would not end.
		}
		if repeated, err := sigsjson.UnmarshalStrict(sent.Request.Object.Raw, new(any), sigsjson.DisallowDuplicateFields); err != nil || len(repeated) > 0 {
			return // Patches say nothing about these.
		}
		var pod, want corev1.Pod
		if _, _, err := decode(sent.Request.Object.Raw, &want); err != nil {
			return
		}
		if refused := policy.Apply(&want.Spec); refused != "" {
			t.Fatalf("it is changed, and %s", refused)
		}
		if _, _, err := decode(patched(t, string(sent.Request.Object.Raw), r.Patch), &pod); err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(want.Spec, pod.Spec) {
			t.Errorf("got %+v, want %+v", pod.Spec, want.Spec)
		}
	})
}

func decode(raw []byte, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return clientgoscheme.Codecs.UniversalDeserializer().Decode(raw, nil, into)
}

func TestOptionsAreReadAsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]webhook.Options{
		"": {},
		"gpuNodeClass=gpu-memory,gpushareUnit=GiB,hamiGPUMemoryMiB=15360,taintKey=nvidia.com/gpu,port=9443": options,
		"gpuNodeClass=a,gpushareUnit=MiB,hamiGPUMemoryMiB=0,taintKey=,port=1":                               {GPUNodeClass: "a", MiB: true, Port: 1},
	} {
		var o webhook.Options
		if err := o.Set(text); err != nil || o != want || o.String() != text || o.Enabled() != (text != "") {
			t.Errorf("%s: %+v, %v", text, o, err)
		}
	}
	for _, text := range []string{"gpuNodeClass=,port=1", "gpuNodeClass=a", "gpuNodeClass=a,port=70000", "gpuNodeClass=a,port=x", "gpuNodeClass=a,port=1,unit=GiB", "gpuNodeClass=a,port=1,gpushareUnit=MB", "gpuNodeClass=a,port=1,hamiGPUMemoryMiB=1.5"} {
		if err := new(webhook.Options).Set(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
