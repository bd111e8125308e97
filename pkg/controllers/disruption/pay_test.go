package disruption

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/planning/checked"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// accountant is a client that counts the NodeClaims that are marked. If fails is set, no account can be written.
type accountant struct {
	client.Client
	fails  error
	marked int
}

func (a *accountant) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if claim, ok := o.(*karpv1.NodeClaim); ok && claim.Annotations[v1alpha1.ReplacingAnnotation] != "" {
		a.marked++
	}
	return nil
}

func (a *accountant) Status() client.SubResourceWriter { return accounts{a: a} }

type accounts struct {
	client.SubResourceWriter
	a *accountant
}

func (s accounts) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return s.a.fails
}

// halfEmpty returns what a round sees of two machines that have been half empty for an hour, in which the account has saved enough for a step.
func halfEmpty(t *testing.T) *disruption.Seen {
	t.Helper()
	c, xlarge := snapshottest.Shared(), snapshottest.TypeNamed("g4dn.xlarge")
	c.NodePools[0].Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "1"}}
	c.GPUNodeClasses[0].Spec.Consolidation.RestartCost = "0.05"
	c.GPUNodeClasses[0].Status.Waste = &v1alpha1.Waste{USD: "1.000", USDPerHour: "0.526", AsOf: metav1.NewTime(c.Now.Add(-time.Hour))}
	for _, name := range []string{"a", "b"} {
		claim := snapshottest.Claim(name, &c.NodePools[0], xlarge, snapshottest.Initialized(c.Now.Add(-2*time.Hour)))
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, snapshottest.Node(&claim, xlarge, 10))
		c.Pods = append(c.Pods, snapshottest.Pods(name, 4, snapshottest.OwnedBy("apps/v1", "ReplicaSet", "web"), snapshottest.Running(name), func(p *corev1.Pod) {
			p.Status.StartTime = &metav1.Time{Time: c.Now.Add(-time.Hour)}
		})...)
	}
	evictions, err := karpenter.NewEvictions(t.Context(), fake.NewClientBuilder().Build(), clocktesting.NewFakeClock(c.Now))
	if err != nil {
		t.Fatal(err)
	}
	plan, headroom := checked.Suppose(snapshot.Build(c), 0)
	return disruption.Look(c, &plan, &headroom, repair.Diagnosis{}, evictions, 0)
}

// silent is an event recorder that discards all events.
type silent struct{}

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// Otherwise a restarted controller would spend the same waste again.
func TestNoMachineIsMarkedBeforeItsPaymentIsWritten(t *testing.T) {
	t.Parallel()
	writer := &accountant{}
	c := New(Config{
		Client: writer, Gatherer: &gather.Gatherer{}, Planner: &planning.Planner{}, Metrics: metrics.New(prometheus.NewRegistry()), Recorder: silent{}, Clock: clocktesting.NewFakeClock(now),
	})
	no := errors.New("no")
	for _, writer.fails = range []error{no, no, nil} {
		round, _ := disruption.Begin(halfEmpty(t), c.memory, c.limits())
		_, err := c.cheapen(t.Context(), round, time.Minute, c.limits())
		if !errors.Is(err, writer.fails) || (writer.marked > 0) != (writer.fails == nil) {
			t.Fatalf("%d machines are marked: %v", writer.marked, err)
		}
	}
}
