package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/test/harness/aws"
)

// picture is the state of the cluster at one moment.
type picture struct {
	pods         []corev1.Pod
	deployments  []appsv1.Deployment
	statefulSets []appsv1.StatefulSet
	jobs         []batchv1.Job
	nodes        []corev1.Node
	claims       []karpv1.NodeClaim
	instances    []aws.Instance
	// seen is how many claims of a name there were, one after another. A claim's name is made from its pool, offering and pods, so it may be used again once
	// the claim is gone.
	seen map[string]int
	// wanted is what the machines of each NodePool should be made from.
	wanted map[string]made
	// versions are the versions of images by their IDs.
	versions map[string]string
}

// made is what a machine was made from, as far as the script changes it.
type made struct {
	generation string // generationLabel of the NodePool's template
	image      string // the version that the EC2NodeClass selects
}

const generationLabel = "example.com/generation"

// problem is something that must not be so once the cluster has settled.
type problem struct {
	kind, name string
	what       string
}

func (w problem) String() string { return fmt.Sprintf("%s %s %s", w.kind, w.name, w.what) }

// problems returns what must not be so once the cluster has settled.
func (p *picture) problems() []problem {
	return slices.Concat(p.wrongPods(), p.wrongOwners(), p.wrongNodes(), p.wrongClaims(), p.wrongInstances())
}

func (p *picture) wrongPods() []problem {
	var all []problem
	for i := range p.pods {
		pod := &p.pods[i]
		switch {
		case !pod.DeletionTimestamp.IsZero():
			all = append(all, problem{"Pod", pod.Name, "does not end, on node " + pod.Spec.NodeName})
		case karpenter.IsTerminal(pod):
		case !healthy(pod) && (pod.Namespace != tenant || whyUnschedulable(pod) == ""):
			all = append(all, problem{"Pod", pod.Name, fmt.Sprintf("is %s and not ready, on node %q", pod.Status.Phase, pod.Spec.NodeName)})
		}
	}
	return all
}

func (p *picture) wrongOwners() []problem {
	var all []problem
	for i := range p.deployments {
		if d := &p.deployments[i]; d.Status.ReadyReplicas != *d.Spec.Replicas || d.Status.Replicas != *d.Spec.Replicas {
			all = append(all, problem{"Deployment", d.Name, fmt.Sprintf("has %d pods and %d ready ones, wants %d", d.Status.Replicas, d.Status.ReadyReplicas, *d.Spec.Replicas)})
		}
	}
	for i := range p.statefulSets {
		if s := &p.statefulSets[i]; s.Status.ReadyReplicas != *s.Spec.Replicas || s.Status.Replicas != *s.Spec.Replicas {
			all = append(all, problem{"StatefulSet", s.Name, fmt.Sprintf("has %d pods and %d ready ones, wants %d", s.Status.Replicas, s.Status.ReadyReplicas, *s.Spec.Replicas)})
		}
	}
	for i := range p.jobs {
		if j := &p.jobs[i]; j.Status.Succeeded != *j.Spec.Completions {
			all = append(all, problem{"Job", j.Name, fmt.Sprintf("has completed %d times, wants %d", j.Status.Succeeded, *j.Spec.Completions)})
		}
	}
	return all
}

// leftovers are the annotations of operations in progress.
var leftovers = []string{v1alpha1.IdleSinceAnnotation, v1alpha1.DisruptingSinceAnnotation, v1alpha1.ReplacingAnnotation, v1alpha1.ReplacingSinceAnnotation}

func (p *picture) wrongNodes() []problem {
	var all []problem
	claimed := map[string]bool{}
	for i := range p.claims {
		claimed[p.claims[i].Status.ProviderID] = true
	}
	// The surplus taint is not a leftover but reflects the state: the machine has room, the fleet would be cheaper without it, and other machines have room.
	roomElsewhere := slices.ContainsFunc(p.nodes, func(n corev1.Node) bool { return p.free(&n) > 0 && !steersAway(&n) })
	for i := range p.nodes {
		n := &p.nodes[i]
		say := func(what string) { all = append(all, problem{"Node", n.Name, what}) }
		for _, t := range n.Spec.Taints {
			switch {
			case !strings.HasPrefix(t.Key, v1alpha1.Group+"/"):
			case t.Key != v1alpha1.SurplusTaintKey:
				say("carries the taint " + t.Key)
			case p.free(n) == 0:
				say("is full and carries the taint " + t.Key)
			case !roomElsewhere:
				say("carries the taint " + t.Key + ", and no other has room")
			}
		}
		for _, key := range leftovers {
			if value, ok := n.Annotations[key]; ok {
				say(fmt.Sprintf("carries %s: %s", key, value))
			}
		}
		if !claimed[n.Spec.ProviderID] {
			say("has no NodeClaim")
		}
		if !n.DeletionTimestamp.IsZero() {
			say("is being deleted")
		}
		needed := slices.ContainsFunc(p.pods, func(pod corev1.Pod) bool {
			return pod.Spec.NodeName == n.Name && !karpenter.IsTerminal(&pod) && !karpenter.IsDaemon(&pod)
		})
		if !needed {
			say("holds no pod")
		}
		promise := facts.PromiseOf(n.Annotations)
		if has := n.Status.Allocatable[promise.Resource]; has.Value() != promise.Replicas() {
			say(fmt.Sprintf("exposes %s of the %d replicas that it promised", &has, promise.Replicas()))
		}
	}
	return all
}

// free returns how many replicas of a Node no pod holds.
func (p *picture) free(n *corev1.Node) int64 {
	resource := facts.PromiseOf(n.Annotations).Resource
	exposed := n.Status.Allocatable[resource]
	left := exposed.Value()
	for i := range p.pods {
		pod := &p.pods[i]
		if pod.Spec.NodeName != n.Name || karpenter.IsTerminal(pod) {
			continue
		}
		for j := range pod.Spec.Containers {
			held := pod.Spec.Containers[j].Resources.Limits[resource]
			left -= held.Value()
		}
	}
	return left
}

func steersAway(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.SurplusTaintKey })
}

// steered returns the Nodes that pods are steered away from. This is wrong if nothing is to be moved.
func (p *picture) steered() []problem {
	var all []problem
	for i := range p.nodes {
		if n := &p.nodes[i]; steersAway(n) {
			all = append(all, problem{"Node", n.Name, "carries the taint " + v1alpha1.SurplusTaintKey + ", and nothing is to be moved"})
		}
	}
	return all
}

func (p *picture) wrongClaims() []problem {
	var all []problem
	running := map[string]bool{}
	for _, i := range p.instances {
		running[i.ProviderID()] = i.State == aws.Running
	}
	for i := range p.claims {
		c := &p.claims[i]
		say := func(what string) { all = append(all, problem{"NodeClaim", c.Name, what}) }
		if !c.DeletionTimestamp.IsZero() {
			say("is being deleted")
		}
		if !c.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
			say("has not started")
		}
		if c.Status.ProviderID == "" || !running[c.Status.ProviderID] {
			say(fmt.Sprintf("has no running machine, provider ID %q", c.Status.ProviderID))
		}
		want := p.wanted[c.Labels[karpv1.NodePoolLabelKey]]
		// A machine whose replacement did not come is left alone for a while, even if the cause was a wrong clock.
		rests := c.Annotations[v1alpha1.ReplaceAfterAnnotation] != ""
		if is := (made{c.Labels[generationLabel], p.versions[c.Status.ImageID]}); is != want && !rests {
			say(fmt.Sprintf("has drifted: it is of %+v, its pool of %+v", is, want))
		}
		for _, key := range leftovers {
			if value, ok := c.Annotations[key]; ok {
				say(fmt.Sprintf("carries %s: %s", key, value))
			}
		}
	}
	return all
}

// claimTag is the tag that Karpenter puts on the machine of a NodeClaim.
const claimTag = "karpenter.sh/nodeclaim"

// wrongInstances returns machines without a claim, and claims that were launched twice, including claims that are gone.
func (p *picture) wrongInstances() []problem {
	var all []problem
	claimed, of := map[string]bool{}, map[string][]string{}
	for i := range p.claims {
		claimed[p.claims[i].Status.ProviderID] = true
	}
	for _, i := range p.instances {
		of[i.Tags[claimTag]] = append(of[i.Tags[claimTag]], i.ID)
		if i.State != aws.Terminated && !claimed[i.ProviderID()] {
			all = append(all, problem{"Instance", i.ID, fmt.Sprintf("is %s and has no NodeClaim; it was launched for %q", i.State, i.Tags[claimTag])})
		}
	}
	// Karpenter tags a machine a moment after its launch, so machines that were lost at once have no tag.
	delete(of, "")
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if ids := of[name]; len(ids) > max(1, p.seen[name]) {
			all = append(all, problem{"NodeClaim", name, fmt.Sprintf("was launched %d times: %s", len(ids), strings.Join(ids, ", "))})
		}
	}
	return all
}

// settledPicture returns a picture with nothing wrong: one pod of each owner, on the node of a claim with an instance.
func settledPicture() *picture {
	meta := metav1.ObjectMeta{Name: "web"}
	claim := karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "gpu-1", Labels: map[string]string{karpv1.NodePoolLabelKey: "gpu", generationLabel: "1"}, Annotations: map[string]string{},
	}}
	claim.Status.ProviderID, claim.Status.NodeName, claim.Status.ImageID = "aws:///us-east-1a/i-1", "node-1", "ami-1"
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
	replicas := corev1.ResourceList{v1alpha1.ResourceGPUShared: *resource.NewQuantity(10, resource.DecimalSI)}
	return &picture{
		pods: []corev1.Pod{{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: "node-1"}, Status: corev1.PodStatus{
			Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}}},
		deployments:  []appsv1.Deployment{{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32(1))}, Status: appsv1.DeploymentStatus{Replicas: 1, ReadyReplicas: 1}}},
		statefulSets: []appsv1.StatefulSet{{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}, Status: appsv1.StatefulSetStatus{Replicas: 1, ReadyReplicas: 1}}},
		jobs:         []batchv1.Job{{ObjectMeta: meta, Spec: batchv1.JobSpec{Completions: new(int32(1))}, Status: batchv1.JobStatus{Succeeded: 1}}},
		nodes: []corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "node-1", Annotations: map[string]string{
				nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared, nodecontract.GPUsAnnotation: "1", nodecontract.ReplicasPerGPUAnnotation: "10",
			}},
			Spec:   corev1.NodeSpec{ProviderID: claim.Status.ProviderID},
			Status: corev1.NodeStatus{Allocatable: replicas},
		}},
		claims:    []karpv1.NodeClaim{claim},
		wanted:    map[string]made{"gpu": {"1", "v1"}},
		versions:  map[string]string{"ami-1": "v1", "ami-2": "v2"},
		instances: []aws.Instance{{ID: "i-1", Zone: "us-east-1a", State: aws.Running, Tags: map[string]string{claimTag: "gpu-1"}}},
	}
}

func TestLeftoversAreFound(t *testing.T) {
	t.Parallel()
	if got := settledPicture().problems(); len(got) > 0 {
		t.Fatalf("nothing is wrong, but %q", got)
	}
	again := settledPicture()
	again.instances = append(again.instances, aws.Instance{ID: "i-2", State: aws.Terminated, Tags: again.instances[0].Tags})
	again.seen = map[string]int{"gpu-1": 2}
	if got := again.problems(); len(got) > 0 {
		t.Fatalf("two successive claims of one name got a machine each, want nothing wrong: %q", got)
	}
	hindered := settledPicture()
	hindered.pods = append(hindered.pods, *hostile{name: "scheduler-of-nobody", edit: func(p *corev1.Pod) { p.Spec.SchedulerName = "nobody" }}.pod(standing, steady))
	if got := hindered.problems(); len(got) > 0 {
		t.Fatalf("a pod of an unknown scheduler is pending, want nothing wrong: %q", got)
	}
	now := metav1.Now()
	for want, change := range map[string]func(*picture){
		"Pod web is Pending": func(p *picture) { p.pods[0].Status.Phase = corev1.PodPending },
		"Pod kept-steady-1 is": func(p *picture) {
			p.pods = append(p.pods, *hostile{name: "kept"}.pod("1", steady))
		},
		"Pod web does not end":          func(p *picture) { p.pods[0].DeletionTimestamp = &now },
		"Deployment web has":            func(p *picture) { p.deployments[0].Status.ReadyReplicas = 0 },
		"StatefulSet web has":           func(p *picture) { p.statefulSets[0].Status.Replicas = 0 },
		"Job web has completed 0 times": func(p *picture) { p.jobs[0].Status.Succeeded = 0 },
		"Node node-1 carries the taint karve": func(p *picture) {
			p.nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.DisruptingTaintKey}}
		},
		"Node node-1 is full and carries the taint karve.sh/surplus": func(p *picture) {
			p.nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.SurplusTaintKey}}
			p.pods[0].Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: p.nodes[0].Status.Allocatable}}}
		},
		"Node node-1 carries the taint karve.sh/surplus, and no other": func(p *picture) {
			p.nodes[0].Spec.Taints = []corev1.Taint{{Key: v1alpha1.SurplusTaintKey}}
		},
		"Node node-1 carries karve.sh/idle-since": func(p *picture) { p.nodes[0].Annotations[v1alpha1.IdleSinceAnnotation] = "" },
		"Node node-1 has no NodeClaim":            func(p *picture) { p.claims[0].Status.ProviderID = "" },
		"Node node-1 is being deleted":            func(p *picture) { p.nodes[0].DeletionTimestamp = &now },
		"Node node-1 holds no pod":                func(p *picture) { p.pods[0].Spec.NodeName = "" },
		"Node node-1 exposes 9 of the 10": func(p *picture) {
			p.nodes[0].Status.Allocatable[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(9, resource.DecimalSI)
		},
		"NodeClaim gpu-1 is being deleted":             func(p *picture) { p.claims[0].DeletionTimestamp = &now },
		"NodeClaim gpu-1 has not started":              func(p *picture) { p.claims[0].Status.Conditions = nil },
		"NodeClaim gpu-1 has drifted":                  func(p *picture) { p.claims[0].Status.ImageID = "ami-2" },
		"NodeClaim gpu-1 has no running machine":       func(p *picture) { p.instances[0].State = aws.ShuttingDown },
		"NodeClaim gpu-1 carries karve.sh/replacing":   func(p *picture) { p.claims[0].Annotations[v1alpha1.ReplacingAnnotation] = "Drifted" },
		"Instance i-1 is running and has no NodeClaim": func(p *picture) { p.claims = nil },
		"NodeClaim gpu-1 was launched 2 times: i-1, i-2": func(p *picture) {
			p.instances = append(p.instances, aws.Instance{ID: "i-2", State: aws.Terminated, Tags: p.instances[0].Tags})
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			p := settledPicture()
			change(p)
			if got := p.problems(); !slices.ContainsFunc(got, func(w problem) bool { return strings.HasPrefix(w.String(), want) }) {
				t.Errorf("got %q", got)
			}
		})
	}
}
