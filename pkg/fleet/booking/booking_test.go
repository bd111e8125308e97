package booking_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/booking"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// request returns a request for pods. As in users' templates, GPUs appear only in the limits.
func request(c *facts.Cluster, class string, count int32, edits ...func(*corev1.Pod)) *provreq.Request {
	pod := Pod("", edits...)
	r := &pod.Spec.Containers[0].Resources
	if shared, ok := r.Requests[v1alpha1.ResourceGPUShared]; ok {
		r.Limits = corev1.ResourceList{v1alpha1.ResourceGPUShared: shared}
		delete(r.Requests, v1alpha1.ResourceGPUShared)
	}
	c.Requests = append(c.Requests, provreq.Request{
		Namespace: "default", Name: fmt.Sprintf("train-%d", len(c.Requests)), UID: "1", Class: class, Created: c.Now.Add(-time.Second), ValidFor: time.Hour, Sets: []provreq.PodSet{
			{TemplateName: "worker", Count: count, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}, Spec: pod.Spec}},
		},
	})
	return &c.Requests[len(c.Requests)-1]
}

// started adds a machine without pods that has started.
func started(c *facts.Cluster, name string) {
	t := TypeNamed("g4dn.xlarge")
	claim := Claim(name, &c.NodePools[0], t, Launched(c.Now.Add(-time.Minute)), Registered(c.Now.Add(-time.Minute)), Initialized(c.Now.Add(-time.Minute)))
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, t, 10))
}

// as sets a condition of a request.
func as(r *provreq.Request, condition string, since time.Time) {
	r.Conditions = append(r.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(since)})
}

// nodes limits the number of machines of the pool.
func nodes(c *facts.Cluster, limit string) {
	c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts("nodes", limit))
}

// taking makes a pod take the room of the first request.
func taking(pod *corev1.Pod) {
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, provreq.ConsumeAnnotation, "train-0")
}

// texts formats conditions.
func texts(all []metav1.Condition) string {
	var lines []string
	for _, c := range all {
		lines = append(lines, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(lines, "\n")
}

const accepted = "Accepted=True Accepted: Karve plans for %d pods\n"

func TestNextConditionsOfRequests(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		cluster  func(c *facts.Cluster)
		want     string
		launches int
	}{
		"a request launches nodes for all of its pods": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 15) }, launches: 2,
			want: fmt.Sprintf(accepted, 15) + "Provisioned=False NodesAreStarting: 2 new nodes ($1.052 per hour) have not started with room for 15 of 15 pods",
		},
		"a request uses free room": {
			cluster: func(c *facts.Cluster) { started(c, "free"); request(c, provreq.Atomic, 15) }, launches: 1,
			want: fmt.Sprintf(accepted, 15) + "Provisioned=False NodesAreStarting: node free and 1 new node ($1.052 per hour) have not started with room for 5 of 15 pods",
		},
		"a request with room is provisioned": {
			cluster: func(c *facts.Cluster) { started(c, "free"); request(c, provreq.Atomic, 8) },
			want:    fmt.Sprintf(accepted, 8) + "Provisioned=True CapacityIsProvisioned: node free ($0.526 per hour) has room for 8 pods until 2026-03-01T12:10:00Z",
		},
		"a check finds room": {
			cluster: func(c *facts.Cluster) { started(c, "free"); request(c, provreq.CheckCapacity, 8) },
			want:    fmt.Sprintf(accepted, 8) + "Provisioned=True CapacityIsFound: node free ($0.526 per hour) has room for 8 pods until 2026-03-01T12:10:00Z",
		},
		"a check launches nothing and is tried again": {
			cluster: func(c *facts.Cluster) { started(c, "free"); request(c, provreq.CheckCapacity, 11) },
			want: fmt.Sprintf(accepted, 11) + "Provisioned=False CapacityIsNotFound: ProvisioningRequest default/train-0 needs a place for 11 pods at once, and there is room for 10; beside these: has no room on the 1 node that would take it, " +
				"and there is no free room for it on the nodes that have started; 2 new nodes would cost $1.052 per hour; it is tried again",
		},
		"a check without retries fails": {
			cluster: func(c *facts.Cluster) { request(c, provreq.CheckCapacity, 1).NoRetry = true },
			want:    "Failed=True CapacityIsNotFound: ProvisioningRequest default/train-0 needs a place for 1 pod at once, and there is room for 0; beside these: there is no free room for it on the nodes that have started; 1 new node would cost $0.526 per hour",
		},
		"a request larger than the limits fails at once": {
			cluster: func(c *facts.Cluster) { nodes(c, "2"); request(c, provreq.Atomic, 200) },
			want: "Failed=True NothingFits: even if there were no other nodes, spec.limits of NodePool gpu-shared would allow nodes for only 80 of its 200 pods: raise them, or ask for fewer pods; " +
				"20 new nodes would cost $10.520 per hour",
		},
		"a request waits while others use the limit": {
			cluster: func(c *facts.Cluster) {
				c.NodePools[0].Spec.Limits = karpv1.Limits(Amounts(v1alpha1.ResourceGPU, "2"))
				started(c, "busy")
				c.Pods = Pods("other", 10, Running("busy"))
				request(c, provreq.Atomic, 15)
			},
			want: fmt.Sprintf(accepted, 15) + "Provisioned=False CapacityIsNotFound: ProvisioningRequest default/train-0 needs a place for 15 pods at once, and there is room for 10",
		},
		"a request that no pool admits fails at once": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 2, Selecting("example.com/team", "a")) },
			want:    "Failed=True NothingFits: ",
		},
		"a request for pods that no machine holds fails at once": {
			cluster: func(c *facts.Cluster) {
				request(c, provreq.Atomic, 2, Asking("cpu", "90", v1alpha1.ResourceGPUShared, "1"))
			},
			want: "Failed=True NothingFits: ",
		},
		"a request waits while the pool is not ready": {
			cluster: func(c *facts.Cluster) {
				for ref, state := range c.NodeClasses {
					state.Ready = false
					c.NodeClasses[ref] = state
				}
				request(c, provreq.Atomic, 2)
			},
			want: fmt.Sprintf(accepted, 2) + "Provisioned=False CapacityIsNotFound: ",
		},
		"pods without a GPU are not Karve's": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 2, Asking("cpu", "1")) },
			want:    "Failed=True NoSharedGPU: PodTemplate worker requests no GPU that Karve shares: request one, or use a provisioning class of another autoscaler",
		},
		"a PodTemplate may follow its request": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 2).Sets[0].Missing = true },
		},
		"a PodTemplate that does not exist": {
			cluster: func(c *facts.Cluster) {
				r := request(c, provreq.Atomic, 2)
				r.Sets[0].Missing, r.Created = true, c.Now.Add(-time.Minute)
			},
			want: "Failed=True PodTemplateNotFound: there is no PodTemplate worker in namespace default: create it and another request",
		},
		"a request that got no room in time": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 2).ValidFor = time.Second },
			want:    "Failed=True Expired: there was no room for all of its 2 pods within 1s of its creation: make another request",
		},
		"a request with too many pods": {
			cluster: func(c *facts.Cluster) { request(c, provreq.Atomic, 2_000_000_000) },
			want:    "Failed=True TooManyPods: 2000000000 pods are more than the 10000 for which Karve plans: make several requests",
		},
		"a booking is kept": {
			cluster: func(c *facts.Cluster) {
				started(c, "free")
				as(request(c, provreq.Atomic, 8), provreq.Provisioned, c.Now.Add(-9*time.Minute))
			},
		},
		"a booking whose node is lost gets another one": {
			cluster: func(c *facts.Cluster) {
				as(request(c, provreq.Atomic, 8), provreq.Provisioned, c.Now.Add(-9*time.Minute))
			},
			launches: 1,
		},
		"a booked check whose node is lost": {
			cluster: func(c *facts.Cluster) {
				as(request(c, provreq.CheckCapacity, 8), provreq.Provisioned, c.Now.Add(-9*time.Minute))
			},
			want: "CapacityRevoked=True CapacityGone: room for 8 pods is gone: there is no free room for it on the nodes that have started",
		},
		"a booking expires": {
			cluster: func(c *facts.Cluster) {
				c.Pods = Pods("one", 1, taking)
				as(request(c, provreq.Atomic, 8), provreq.Provisioned, c.Now.Add(-10*time.Minute))
			},
			want: "BookingExpired=True CapacityReservationTimeExpired: 1 of 8 pods came within 10m0s: the room of the others is no longer kept", launches: 1,
		},
		"a failed request stays so": {
			cluster: func(c *facts.Cluster) { as(request(c, provreq.Atomic, 8), provreq.Failed, c.Now) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Shared()
			x.cluster(c)
			plan := checked.Of(snapshot.Build(c), 0)
			if plan.Err != nil {
				t.Fatal(plan.Err)
			}
			var got []metav1.Condition
			for _, f := range booking.Observe(&plan, checked.WithEffort(0)) {
				got = append(got, booking.Next(f)...)
			}
			if text := texts(got); !strings.HasPrefix(text, x.want) || x.want == "" && text != "" {
				t.Errorf("got\n%s\nwant\n%s", text, x.want)
			} else {
				t.Log(text)
			}
			if len(plan.Launches) != x.launches {
				t.Errorf("%d nodes are launched, want %d", len(plan.Launches), x.launches)
			}
		})
	}
}

// TestPodsTakeTheRoomOfTheirRequest launches nothing more while the pods of a request replace those that stand for it.
func TestPodsTakeTheRoomOfTheirRequest(t *testing.T) {
	t.Parallel()
	for came := range 9 {
		c := Shared()
		started(c, "free")
		c.Pods = append(Pods("worker", came, taking), Pods("other", 2, Running("free"))...)
		for i := range came / 2 {
			c.Pods[i].Spec.NodeName = "free"
		}
		as(request(c, provreq.Atomic, 8), provreq.Provisioned, c.Now.Add(-time.Minute))
		plan := checked.Of(snapshot.Build(c), 0)
		if r := plan.View.Requested[0]; len(r.Pods) != 8-came || r.Taken != int64(came) || r.Wants != 8 {
			t.Errorf("with %d pods, %d stand for the request, %d of %d came", came, len(r.Pods), r.Taken, r.Wants)
		}
		if len(plan.Launches) > 0 || len(plan.Unplaced) > 0 {
			t.Errorf("with %d pods, %d nodes are launched and %d pods have no room", came, len(plan.Launches), len(plan.Unplaced))
		}
		if waiting := len(plan.View.Waiting()); waiting != came-came/2 {
			t.Errorf("%d pods wait, want %d", waiting, came-came/2)
		}
	}
}

// TestOldestRequestComesFirst has room for one of two requests.
func TestOldestRequestComesFirst(t *testing.T) {
	t.Parallel()
	c := Shared()
	nodes(c, "1")
	started(c, "free")
	request(c, provreq.Atomic, 8)
	request(c, provreq.Atomic, 7)
	c.Requests[1].UID = "2"
	plan := checked.Of(snapshot.Build(c), 0)
	all := booking.Observe(&plan, checked.WithEffort(0))
	if len(all) != 2 || all[0].Ready != 8 || all[1].Ready != 0 || all[1].Refused == nil || all[1].Never != nil {
		t.Errorf("got %+v", all)
	}
}
