package e2e

import (
	"fmt"
	"testing"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/test/harness/batch"
	"karve.sh/karve/test/harness/cluster"
)

// controllerJob is the job of an example. Its group needs all of its pods, of which the nodes for those with a GPU are Karve's.
type controllerJob struct {
	kind, group string
	pods, gpus  int
	podGroup    bool
}

// TestJobsOfControllersStartWhole runs the examples of groups with the controllers of their jobs and the scheduler of scheduler-plugins, and once more with Kueue.
func TestJobsOfControllersStartWhole(t *testing.T) {
	cluster.Long(t)
	requireRoot(t)
	t.Parallel()
	crds, err := batch.JobCRDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	requests, err := batch.ProvisioningRequests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w := coschedulingWorld(t, append(crds, requests)...)
	if err := batch.StartJobControllers(t.Context(), w.Cluster, w.api); err != nil {
		t.Fatal(err)
	}
	if err := batch.StartKueue(t.Context(), w.Cluster, w.api, "batch/job", "jobset.x-k8s.io/jobset", "kubeflow.org/pytorchjob", "ray.io/raycluster"); err != nil {
		t.Fatal(err)
	}
	for _, job := range []controllerJob{
		{kind: "jobset", group: "jobset-train", pods: 17, gpus: 17},
		{kind: "pytorchjob", group: "train", pods: 16, gpus: 16, podGroup: true},
		{kind: "raycluster", group: "train", pods: 13, gpus: 12, podGroup: true},
	} {
		t.Run(job.kind, func(t *testing.T) { t.Parallel(); w.scene(t, job.kind).runsAsGroup(job) })
		t.Run(job.kind+" with Kueue", func(t *testing.T) { t.Parallel(); w.scene(t, job.kind+"-queued").runsWithKueue(job) })
	}
}

// runsAsGroup runs a job. While the limit of the pool has room for one machine, which is too few, the pods say how many they are. Then the limit is raised.
func (s *scene) runsAsGroup(job controllerJob) {
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{limits: map[string]string{v1alpha1.ResourceGPU: "1"}})
	if job.gpus < job.pods {
		s.pool(poolOptions{name: s.name + "-others", stock: true, taintKey: "none", requirements: map[string]string{"karpenter.k8s.aws/instance-family": "m5"}})
	}
	for _, o := range s.exampleOf("groups/" + job.kind + ".yaml") {
		s.removed(o)
	}
	s.until(enough, "the controller has created all pods", func() (bool, string) { return len(s.pods()) == job.pods, fmt.Sprint(len(s.pods())) })
	says := fmt.Sprintf("%s/%s needs a place for %d pods at once, and there is room for 10", s.name, job.group, job.gpus)
	for _, pod := range s.pods() {
		if pod.Spec.NodeSelector != nil { // It needs a GPU.
			s.untilEvent("Pod", pod.Name, "GroupDoesNotFit", says, "spec.limits")
			break
		}
	}
	if job.podGroup {
		s.untilEvent("PodGroup", "train", "GroupDoesNotFit", says)
	}
	if n := len(s.claims()); n > 0 {
		s.t.Errorf("%d machines for a part of the job:\n%s", n, lines(s.claims()))
	}
	s.patch(s.nodePool(s.name), `{"spec":{"limits":{"nvidia.com/gpu":"3"}}}`)
	s.wantWhole(job)
}

// runsWithKueue runs a job that Kueue holds back until Karve has nodes for its pods.
func (s *scene) runsWithKueue(job controllerJob) {
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{limits: map[string]string{v1alpha1.ResourceGPU: "3"}})
	for _, o := range s.exampleOf("integrations/kueue-provisioning.yaml") {
		if o.GetKind() != "Job" {
			s.create(o)
		}
	}
	for _, o := range s.exampleOf("groups/" + job.kind + ".yaml") {
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels["kueue.x-k8s.io/queue-name"] = s.name
		o.SetLabels(labels)
		s.removed(o)
	}
	provisioned := s.untilRequest(job.kind+"-train-", provreq.Provisioned)
	s.wantWhole(job)
	for _, pod := range s.pods() {
		if pod.CreationTimestamp.Before(&provisioned.LastTransitionTime) {
			s.t.Errorf("pod %s was created at %s, and its node was there at %s", pod.Name, pod.CreationTimestamp, provisioned.LastTransitionTime)
		}
	}
}

// wantWhole waits until all pods of a job have had a node, and fails if they got theirs one by one or Karve launched more than two machines.
func (s *scene) wantWhole(job controllerJob) {
	s.t.Helper()
	s.until(enough, "all pods have a node", func() (bool, string) {
		n := 0
		for _, at := range s.history.bound(s.name) {
			if !at.IsZero() {
				n++
			}
		}
		return n == job.pods, fmt.Sprint(n)
	})
	s.wantTogether("train")
	if n := len(s.claims()); n != 2 {
		s.t.Errorf("%d machines for a job that fills two:\n%s", n, lines(s.claims()))
	}
}
