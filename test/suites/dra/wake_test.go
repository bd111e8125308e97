package dra

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

// backoff is longer than the scheduler waits after the second attempt for a pod.
const backoff = 5 * time.Second

// The scheduler counts a share twice between the write of a claim and that of its name to the pod. A pod that finds no replica then stays pending, and the
// controller changes a label of a Node to make the scheduler try it again. An annotation is not enough.
func TestPodsThatTheSchedulerHasForgottenAreTriedAgainWhenALabelOfANodeChanges(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newWorld(t)
	w.slowly(time.Second)
	n := w.node("label", 1)
	for i := range 10 {
		n.ask(fmt.Sprintf("pod-%d", i), 1)
		time.Sleep(100 * time.Millisecond)
	}
	pending := func() int {
		pods, err := w.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName="})
		w.must(err)
		return len(pods.Items)
	}
	change := func(field, value string) {
		n.patch(fmt.Sprintf(`{"metadata":{%q:{%q:%q}}}`, field, v1alpha1.SchedulingRetriedLabel, value))
	}
	time.Sleep(backoff)
	left := pending()
	if left == 0 || left == 10 {
		t.Fatalf("%d of 10 pods are pending: does the scheduler still count the shares of claims twice?", left)
	}
	change("annotations", "1")
	time.Sleep(backoff)
	if now := pending(); now != left {
		t.Errorf("%d pods are pending after an annotation has changed, and %d before", now, left)
	}
	for tries := 1; left > 0 && tries <= 3; tries++ { // Pods that are tried together can be in each other's way again.
		change("labels", fmt.Sprint(tries))
		time.Sleep(backoff)
		left = pending()
	}
	if left > 0 {
		t.Errorf("%d pods are pending after labels have changed", left)
	}
}

func (n *node) patch(patch string) {
	n.t.Helper()
	_, err := n.client.CoreV1().Nodes().Patch(n.t.Context(), n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	n.must(err)
}

// slowly delays the scheduler's write of the name of a pod's claim, which follows the claim itself.
func (w *world) slowly(by time.Duration) {
	w.t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		time.Sleep(by)
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		_ = json.NewEncoder(rw).Encode(review) // A failure delays nothing, which the test notices.
	}))
	w.t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_, err := w.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(w.t.Context(), &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "slow"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "slow.example.com", SideEffects: new(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL, CABundle: ca},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"*"}, Resources: []string{"pods/status"}},
			}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{
				Name: "claim", Expression: "has(object.status.extendedResourceClaimStatus) && !has(oldObject.status.extendedResourceClaimStatus)",
			}},
		}},
	}, metav1.CreateOptions{})
	w.must(err)
	time.Sleep(3 * time.Second) // The API server takes a moment to call a new webhook.
}
