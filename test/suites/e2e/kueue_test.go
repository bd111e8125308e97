package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/test/harness/batch"
	"karve.sh/karve/test/harness/cluster"
)

// statusOf converts the status of the only object of a kind in the scene's namespace whose name begins with a prefix. It returns false if there is none.
func statusOf[T any](s *scene, kind schema.GroupVersionKind, prefix string) (is T, o *unstructured.Unstructured, found bool) {
	s.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	s.list(list, client.InNamespace(s.name))
	for i := range list.Items {
		if o = &list.Items[i]; !strings.HasPrefix(o.GetName(), prefix) {
			continue
		}
		if found {
			s.t.Fatalf("there are several objects %s: %v", prefix, list.Items)
		}
		found = true
		if status, ok := o.Object["status"].(map[string]any); ok {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(status, &is); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	return is, o, found
}

// conditions are the conditions of a status.
type conditions struct {
	Conditions []metav1.Condition `json:"conditions"`
}

// untilRequest waits until a ProvisioningRequest has a condition with the status True. It returns the condition.
func (s *scene) untilRequest(prefix, condition string) metav1.Condition {
	s.t.Helper()
	var is metav1.Condition
	s.until(enough, fmt.Sprintf("request %s is %s", prefix, condition), func() (bool, string) {
		all, _, _ := statusOf[conditions](s, provreq.Kind, prefix)
		if c := apimeta.FindStatusCondition(all.Conditions, condition); c != nil {
			is = *c
		}
		return is.Status == metav1.ConditionTrue, fmt.Sprint(all.Conditions)
	})
	s.t.Logf("%s: %s %s: %s", prefix, condition, is.Reason, is.Message)
	return is
}

// TestProvisioningRequestBooksItsNodes does what Kueue does: it requests nodes, and creates the pods once they are there.
func TestProvisioningRequestBooksItsNodes(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "booked")
	s.class("5s")
	s.pool(poolOptions{limits: map[string]string{v1alpha1.ResourceGPU: "2"}})
	template := &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "train"}, Template: corev1.PodTemplateSpec{Spec: s.podSpec()}}
	s.create(template)
	request := func(name, class string, pods int64) *unstructured.Unstructured {
		r := manifest(provreq.Kind.GroupVersion().String(), provreq.Kind.Kind, name, map[string]any{
			"provisioningClassName": class, "podSets": []any{map[string]any{"podTemplateRef": map[string]any{"name": "train"}, "count": pods}},
		})
		r.SetNamespace(s.name)
		s.create(r)
		return r
	}
	r := request("train", provreq.Atomic, 11)
	s.untilRequest("train", provreq.Provisioned)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)

	// Empty nodes stay for their request, and another one has only the room that is left.
	request("check", provreq.CheckCapacity, 9)
	request("large", provreq.Atomic, 21)
	s.untilRequest("check", provreq.Provisioned)
	c := s.untilRequest("large", provreq.Failed)
	if !strings.Contains(c.Message, "NodePool booked would allow nodes for only 20 of its 21 pods") || !strings.Contains(c.Message, "would cost $") {
		t.Errorf("the request has failed with %q", c.Message)
	}
	s.stays(10*time.Second, "empty nodes are kept", func() (bool, string) { return len(alive(s.claims())) == 2, lines(s.claims()) })
	for i := range 11 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.name, Name: fmt.Sprintf("train-%d", i), Annotations: map[string]string{provreq.ConsumeAnnotation: "train"},
		}, Spec: s.podSpec()}
		s.create(pod)
	}
	s.untilRunning(11)
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	s.delete(r)
	for _, pod := range s.pods() {
		s.delete(&pod)
	}
	check := manifest(provreq.Kind.GroupVersion().String(), provreq.Kind.Kind, "check", nil)
	check.SetNamespace(s.name)
	s.delete(check)
	s.untilGone(s.name)
}

// kueueWorkload is Kueue's object for a Job.
var kueueWorkload = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: "Workload"}

// TestKueueStartsJobOnceItsNodesAreThere runs Kueue's controller with the example.
func TestKueueStartsJobOnceItsNodesAreThere(t *testing.T) {
	cluster.Long(t)
	requireRoot(t)
	crd, err := batch.ProvisioningRequests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := ownWorld(t, cluster.Config{CRDs: []string{crd}}, settings)
	s := w.scene(t, "queued")
	if err := batch.StartKueue(t.Context(), w.Cluster, w.api, "batch/job"); err != nil {
		t.Fatal(err)
	}
	s.class("5s")
	s.pool(poolOptions{limits: map[string]string{v1alpha1.ResourceGPU: "3"}})
	large := s.applyKueue()

	// The Job waits for its nodes.
	provisioned := s.untilRequest("job-train-", provreq.Provisioned)
	var job batchv1.Job
	job.Namespace, job.Name = s.name, "train"
	s.until(enough, "the Job ends", func() (bool, string) { // The pods of Jobs end at once.
		s.get(&job)
		return job.Status.Succeeded == 20, fmt.Sprint(job.Status)
	})
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	if started := job.Status.StartTime; started == nil || started.Before(&provisioned.LastTransitionTime) {
		t.Errorf("the Job started at %s, and its nodes were there at %s", started, provisioned.LastTransitionTime)
	}
	for _, pod := range s.pods() {
		if pod.CreationTimestamp.Before(&provisioned.LastTransitionTime) || pod.Annotations[provreq.ConsumeAnnotation] == "" {
			t.Errorf("pod %s was created at %s with %v", pod.Name, pod.CreationTimestamp, pod.Annotations)
		}
	}

	// A Job that is larger than the limit is refused before it starts, with the limit and the price.
	s.create(large)
	c := s.untilRequest("job-large-", provreq.Failed)
	if !strings.Contains(c.Message, "NodePool queued would allow nodes for only 30 of its 40 pods") || !strings.Contains(c.Message, "4 new nodes would cost $2.104 per hour") {
		t.Errorf("the request has failed with %q", c.Message)
	}
	s.until(enough, "Kueue deactivates the large Job", func() (bool, string) {
		is, o, found := statusOf[conditions](s, kueueWorkload, "job-large-")
		if !found {
			return false, "no Workload"
		}
		active, stated, _ := unstructured.NestedBool(o.Object, "spec", "active")
		return stated && !active, fmt.Sprint(is)
	})
	s.get(large)
	if large.Status.StartTime != nil || large.Spec.Suspend == nil || !*large.Spec.Suspend {
		t.Errorf("the large Job has started: %+v", large.Status)
	}
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)

	s.delete(large)
	s.delete(&job)
	s.untilGone(s.name)
}

func (s *scene) get(o client.Object) {
	s.t.Helper()
	if err := s.api.Get(s.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		s.t.Fatal(err)
	}
}

// applyKueue applies the example to the scene's NodePool and namespace. It returns a Job that is twice as large as the one of the example.
func (s *scene) applyKueue() *batchv1.Job {
	s.t.Helper()
	var large batchv1.Job
	for _, o := range s.exampleOf("integrations/kueue-provisioning.yaml") {
		if o.GetKind() == "Job" {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &large); err != nil {
				s.t.Fatal(err)
			}
			large.Name, large.Spec.Parallelism, large.Spec.Completions = "large", new(int32(40)), new(int32(40))
		}
		s.create(o)
	}
	return &large
}
