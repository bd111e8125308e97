package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestPolicyLimitsControllerToNominations uses a real API server.
func TestPolicyLimitsControllerToNominations(t *testing.T) {
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
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "nominated-", Labels: map[string]string{"app": "one"}},
		Spec:       corev1.PodSpec{SchedulerName: "nobody", Containers: []corev1.Container{{Name: "main", Image: "app"}}},
	}
	create(t, k, pod)
	t.Cleanup(func() {
		if err := k.Delete(context.WithoutCancel(t.Context()), pod); err != nil {
			t.Error(err)
		}
	})
	pods := as(t, controller.Namespace+":karve", "").CoreV1().Pods(pod.Namespace)
	patch := func(text string) error {
		options := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := pods.Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(text), options, "status")
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) { // Until the API server has loaded the role and the policy.
		if allowed, refused := patch(`{}`), patch(`{"status":{"reason":"inForce"}}`); allowed == nil && apierrors.IsForbidden(refused) {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("the policy is not in force: %v, %v", allowed, refused)
		}
	}
	for text, allow := range map[string]bool{
		`{"status":{"nominatedNodeName":"node-1"}}`:                                                  true,
		`{"status":{"phase":"Failed"}}`:                                                              false,
		`{"status":{"message":"words"}}`:                                                             false,
		`{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`:                               false,
		`{"status":{"nominatedNodeName":"node-1","conditions":[{"type":"Ready","status":"True"}]}}`:  false,
		`{"status":{"containerStatuses":[{"name":"main","image":"app","imageID":"","ready":true}]}}`: false,
		`{"metadata":{"labels":{"app":"two"}}}`:                                                      false,
		`{"metadata":{"annotations":{"karpenter.sh/do-not-disrupt":"true"}}}`:                        false,
	} {
		if err := patch(text); apierrors.IsForbidden(err) == allow || err != nil && allow {
			t.Errorf("the controller patches %s: %v", text, err)
		}
	}
	if err := k.Status().Patch(t.Context(), pod, client.RawPatch(types.MergePatchType, []byte(`{"status":{"message":"words"}}`))); err != nil {
		t.Errorf("the policy is about others than the controller too: %v", err)
	}
}
