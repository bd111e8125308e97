package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/test/harness/batch"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestMultiKueueSendsJobsToKarve runs the examples of MultiKueue in a manager cluster, which has no nodes, and a worker cluster with Karve.
func TestMultiKueueSendsJobsToKarve(t *testing.T) {
	cluster.Long(t)
	requireRoot(t)
	t.Parallel()
	crd, err := batch.ProvisioningRequests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := ownWorld(t, cluster.Config{CRDs: []string{crd}}, settings)
	s := w.scene(t, "sent")
	s.class("5s")
	s.pool(poolOptions{limits: map[string]string{v1alpha1.ResourceGPU: "3"}})
	if err := batch.StartKueue(t.Context(), w.Cluster, w.api, "batch/job"); err != nil {
		t.Fatal(err)
	}
	for _, o := range s.exampleOf("integrations/kueue-provisioning.yaml") {
		if o.GetKind() != "Job" {
			s.create(o)
		}
	}

	manager := cluster.ForTest(t, cluster.Config{})
	api, err := karve.Client(manager)
	if err != nil {
		t.Fatal(err)
	}
	if err := batch.StartKueue(t.Context(), manager, api, "batch/job"); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(w.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: batch.KueueNamespace, Name: "worker-1-kubeconfig"}, Data: map[string][]byte{"kubeconfig": kubeconfig}},
	}
	for _, o := range s.exampleOf("integrations/multikueue.yaml") {
		objects = append(objects, o)
	}
	for _, o := range objects {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatalf("creating %s: %v", o.GetName(), err)
		}
	}

	provisioned := s.untilRequest("job-train-", provreq.Provisioned)
	var job batchv1.Job
	s.until(enough, "the Job of the manager ends", func() (bool, string) {
		if err := api.Get(t.Context(), client.ObjectKey{Namespace: s.name, Name: "train"}, &job); err != nil {
			t.Fatal(err)
		}
		return job.Status.Succeeded == 20, fmt.Sprint(job.Status)
	})
	s.wantClaims(s.claims(), 2, karpv1.CapacityTypeOnDemand, 1_052_000)
	bound := s.history.bound(s.name)
	for name, at := range bound {
		if at.Before(provisioned.LastTransitionTime.Time) {
			t.Errorf("pod %s has had a node since %s, and the nodes are there since %s", name, at, provisioned.LastTransitionTime)
		}
	}
	if len(bound) != 20 {
		t.Errorf("%d pods ran in the worker cluster, want 20", len(bound))
	}

	// A Job that is larger than the limit of the worker cluster starts nowhere.
	large := job.DeepCopy()
	large.ObjectMeta = metav1.ObjectMeta{Namespace: s.name, Name: "large", Labels: map[string]string{"kueue.x-k8s.io/queue-name": s.name}}
	large.Status, large.Spec.Selector, large.Spec.Template.Labels = batchv1.JobStatus{}, nil, nil
	large.Spec.Suspend, large.Spec.Parallelism, large.Spec.Completions = new(true), new(int32(40)), new(int32(40))
	if err := api.Create(t.Context(), large); err != nil {
		t.Fatal(err)
	}
	s.until(enough, "the worker cluster is asked for the nodes of the large Job", func() (bool, string) {
		_, _, found := statusOf[conditions](s, provreq.Kind, "job-large-")
		return found, "no request"
	})
	s.stays(10*time.Second, "nothing is launched for the large Job", func() (bool, string) { return len(s.claims()) == 2, lines(s.claims()) })
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(large), large); err != nil {
		t.Fatal(err)
	}
	if large.Status.StartTime != nil {
		t.Errorf("the large Job has started: %+v", large.Status)
	}
}

// requireRoot skips a test of programs that read a fixed folder, which only root can give them alone.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the programs of the test read a fixed folder, which only root can give them alone")
	}
}
