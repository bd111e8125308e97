package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// provisioning returns a controller that remembers no plans.
func (w *world) provisioning(edits ...func(*provisioning.Config)) *provisioning.Controller {
	config := provisioning.Config{
		Nominations: true,
		Client:      w.WithWatch, Gatherer: w.gatherer, Ledger: w.ledger, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock,
		BatchIdle: time.Second, BatchMax: 10 * time.Second, MaxUnlaunched: 10, Planner: w.planning(),
	}
	for _, edit := range edits {
		edit(&config)
	}
	return provisioning.New(config)
}

func TestElevenPodsGetTwoMachines(t *testing.T) {
	w := newWorld(t)
	pool := w.shared("eleven", snapshottest.Requiring("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, "g4dn", "g5"),
		snapshottest.Labeled(map[string]string{"team": "vision"}))
	w.pods("web", 11)
	w.reconciles(w.provisioning(), "")

	claims := w.wantClaims(2)
	for _, claim := range claims {
		physicalRequestsOnly(t, &claim)
		statesWhatItWants(t, &claim)
		staysApart(t, &claim, pool)
		if claim.Spec.TerminationGracePeriod == nil {
			t.Error("without a terminationGracePeriod one pod keeps a machine for good")
		}
		if ref := claim.Spec.NodeClassRef; ref.Group != innerClass.Group || ref.Kind != innerClass.Kind || ref.Name != innerClass.Name {
			t.Errorf("the claim names %v, which Karpenter does not launch", ref)
		}
	}
	// Labels become part of launch templates, so claims have few labels, and all claims of a pool have the same ones.
	want := map[string]string{"team": "vision", karpv1.NodePoolLabelKey: "eleven", v1alpha1.GPUNodeClassLabel: "eleven"}
	for _, claim := range claims {
		if diff := cmp.Diff(want, claim.Labels); diff != "" {
			t.Errorf("labels (-want +got):\n%s", diff)
		}
	}
	if n := w.counted("karve_nodeclaims_created_total"); n != 2 {
		t.Errorf("%v claims were counted, want 2", n)
	}
}

func TestProvisioningLaunchesWithoutSearchTime(t *testing.T) {
	w := newWorld(t)
	w.shared("hasty")
	w.pods("web", 11)
	w.reconciles(w.provisioning(func(c *provisioning.Config) { c.Planner.Budget = 0 }), "")
	if len(w.claims()) == 0 {
		t.Error("nothing is launched")
	}
	w.wantEvents(0, "Warning")
}

func physicalRequestsOnly(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	names := slices.Sorted(maps.Keys(claim.Spec.Resources.Requests))
	if !slices.Equal(names, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}) {
		t.Errorf("the claim requests %v; Karpenter refuses replicas, and waits forever for a GPU that its node renames", names)
	}
}

func statesWhatItWants(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	stated := map[string][]string{}
	for _, req := range claim.Spec.Requirements {
		stated[req.Key] = req.Values
	}
	for key, want := range map[string][]string{
		corev1.LabelInstanceTypeStable: {"g4dn.xlarge"}, karpv1.CapacityTypeLabelKey: {"on-demand"}, "karpenter.k8s.aws/instance-family": {"g4dn", "g5"},
		corev1.LabelTopologyZone: snapshottest.Zones, // All zones cost the same, and none is preferred.
	} {
		if !slices.Equal(stated[key], want) {
			t.Errorf("requirement %s is %v, want %v", key, stated[key], want)
		}
	}
}

func staysApart(t *testing.T, claim *karpv1.NodeClaim, pool *karpv1.NodePool) {
	t.Helper()
	if diff := cmp.Diff(pool.Spec.Template.Spec.Taints, claim.Spec.Taints); diff != "" {
		t.Errorf("taints (-pool +claim):\n%s", diff)
	}
	if !slices.Contains(claim.Spec.StartupTaints, render.ReplicasNotReadyTaint()) {
		t.Errorf("startup taints %v lack ours: pods would come before the replicas", claim.Spec.StartupTaints)
	}
}

func TestProvisioningLaunchesNothingTwice(t *testing.T) {
	w := newWorld(t)
	w.shared("twice")
	w.pods("web", 11)
	controller := w.provisioning()
	w.reconciles(controller, "")
	first := w.wantClaims(2)

	w.reconciles(controller, "")
	w.wantClaims(2)
	w.wantEvents(11, "Normal Nominated")
	w.reconciles(controller, "")
	w.wantEvents(0, "")

	w.restart()
	w.reconciles(w.provisioning(), "")
	w.wantClaims(2)

	// The same holds while the machines start: one is launched, and one has registered without its replicas.
	w.launched(&first[0])
	registered := first[1]
	snapshottest.Registered(w.clock.Now())(&registered)
	w.updateStatus(&registered)
	w.node(&registered, 0)
	w.restart()
	w.reconciles(w.provisioning(), "")
	w.wantClaims(2)
}

// beforeAnyClaim is a cache that does not contain the claims that another controller has just created.
type beforeAnyClaim struct{ client.Reader }

func (r beforeAnyClaim) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if _, ok := list.(*karpv1.NodeClaimList); ok {
		return nil
	}
	return r.Reader.List(ctx, list, options...)
}

func TestConcurrentControllersCreateNoDuplicates(t *testing.T) {
	w := newWorld(t)
	w.shared("race")
	w.pods("web", 35)
	var errs [2]error
	var wg sync.WaitGroup
	for i := range errs {
		gatherer := w.gathering(beforeAnyClaim{w.WithWatch}, launching.NewLedger())
		controller := w.provisioning(func(c *provisioning.Config) { c.Gatherer, c.Ledger = gatherer, gatherer.Ledger })
		wg.Go(func() { _, errs[i] = controller.Reconcile(t.Context(), reconcile.Request{}) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Error(err)
	}
	w.wantClaims(4)
	if n := w.counted("karve_nodeclaims_created_total"); n != 4 {
		t.Errorf("%v claims were counted, want 4", n)
	}
}

func TestMaxUnlaunchedLimitsClaims(t *testing.T) {
	w := newWorld(t)
	w.shared("few")
	w.pods("web", 25)
	controller := w.provisioning(func(c *provisioning.Config) { c.MaxUnlaunched = 2 })
	if again := w.reconciles(controller, "").RequeueAfter; again <= 0 || again > time.Second {
		t.Errorf("look again after %s, want soon", again)
	}
	claims := w.wantClaims(2)
	w.reconciles(controller, "")
	w.wantClaims(2)
	w.launched(&claims[0])
	w.reconciles(controller, "")
	w.wantClaims(3)
}

func TestQuietPeriodDelaysLaunches(t *testing.T) {
	w := newWorld(t)
	w.shared("quiet")
	w.pods("web", 1)
	controller := w.provisioning()
	w.ledger.Quiet(w.clock.Now())
	again := w.reconciles(controller, "").RequeueAfter
	w.wantClaims(0)
	if again <= 0 || again > time.Minute {
		t.Errorf("look again after %s", again)
	}
	w.clock.Step(time.Minute)
	w.reconciles(controller, "")
	w.wantClaims(1)
}

func TestProvisioningAvoidsRefusedOffering(t *testing.T) {
	w := newWorld(t)
	w.shared("around")
	w.pods("web", 1)
	w.refuse("around", "g4dn.xlarge", snapshottest.Zones...)
	w.reconciles(w.provisioning(), "")
	if instanceType, _, _ := records.ShapeOf(&w.wantClaims(1)[0]); instanceType != "g4dn.2xlarge" {
		t.Errorf("launched %s, want the next in price", instanceType)
	}
}

func TestLimitsCountHardware(t *testing.T) {
	w := newWorld(t)
	// Two GPUs make twenty replicas. Karpenter would count these as twenty GPUs and launch nothing.
	w.shared("limits", func(np *karpv1.NodePool) {
		np.Spec.Limits = karpv1.Limits(snapshottest.Amounts(v1alpha1.ResourceGPU, "2"))
	})
	w.pods("web", 25)
	controller := w.provisioning()
	for range 2 {
		w.reconciles(controller, "")
		w.wantClaims(2)
	}
	w.wantEvents(5, "Warning LimitReached")
}

// priority creates a PriorityClass and returns the edit of a pod that has it.
func (w *world) priority(name string, value int32) func(*corev1.Pod) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	w.create(class)
	w.t.Cleanup(func() { _ = w.Delete(context.Background(), class) }) //nolint:usetesting // The test's context has ended.
	probe := snapshottest.Pods("probe", 1)[0]
	probe.Spec = corev1.PodSpec{PriorityClassName: name, Containers: []corev1.Container{{Name: "app", Image: "app"}}}
	if err := wait.PollUntilContextTimeout(w.t.Context(), 20*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		return w.Create(ctx, probe.DeepCopy(), client.DryRunAll) == nil, nil
	}); err != nil {
		w.t.Fatalf("admission, which has its own cache, does not know PriorityClass %s: %v", name, err)
	}
	return func(pod *corev1.Pod) { pod.Spec.PriorityClassName = name }
}

func TestPodsBelowThePriorityCutoffCauseNoMachine(t *testing.T) {
	w := newWorld(t)
	w.shared("cutoff")
	w.gatherer.PriorityCutoff = new(int32(-10))
	w.pods("balloon", 12, w.priority("balloon", -11))
	controller := w.provisioning()
	w.reconciles(controller, "")
	w.wantClaims(0)
	w.wantEvents(12, "Warning BelowPriorityCutoff no machine is launched for its priority -11, which is below settings.priorityCutoff -10")
	w.pods("web", 3, w.priority("lowest", -10))
	for range 2 {
		w.reconciles(controller, "")
		w.wantClaims(1)
	}
}

func TestEventSaysHowManyPodsWentFirst(t *testing.T) {
	w := newWorld(t)
	w.shared("first", func(np *karpv1.NodePool) {
		np.Spec.Limits = karpv1.Limits(snapshottest.Amounts(v1alpha1.ResourceGPU, "1"))
	})
	w.pods("batch", 10)
	w.pods("service", 4, w.priority("service", 1000))
	w.reconciles(w.provisioning(), "")
	w.wantClaims(1)
	w.wantEvents(4, "; 4 pods of higher priority were placed first")
}

func TestThroughputThatDoesNotCountIsReportedOnce(t *testing.T) {
	w := newWorld(t)
	w.shared("work")
	stating := func(text string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Annotations = map[string]string{v1alpha1.ThroughputAnnotation: text} }
	}
	w.pods("fixed", 1, stating("t4=1"))
	w.pods("wrong", 1, stating("t4:1"))
	controller := w.provisioning()
	w.reconciles(controller, "")
	w.wantClaims(1)
	seen := strings.Join(w.events(), "\n")
	for _, want := range []string{"Warning ThroughputIgnored annotation karve.sh/throughput is ignored, because no Job owns the pod", `Warning ThroughputIgnored annotation karve.sh/throughput: "t4:1" is no throughput`} {
		if strings.Count(seen, want) != 1 {
			t.Errorf("no event has %s:\n%s", want, seen)
		}
	}
	w.reconciles(controller, "")
	w.wantEvents(0, "ThroughputIgnored")
}

func TestPodThatStockKarpenterCanServeGetsEvent(t *testing.T) {
	w := newWorld(t)
	w.class("ours", func(c *v1alpha1.GPUNodeClass) { c.Spec.Sharing.ResourceName = v1alpha1.ResourceGPU })
	w.pool("ours")
	stock := snapshottest.KarpenterPool("theirs", budget("100%"), snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand"))
	w.create(&stock)
	w.pods("web", 2, snapshottest.Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPU, "1"))
	controller := w.provisioning()
	w.reconciles(controller, "")
	w.wantClaims(0)
	w.wantEvents(2, "Warning LeftToKarpenter NodePool theirs")
	w.reconciles(controller, "")
	w.wantEvents(0, "LeftToKarpenter")
}

func TestRejectedClaimDoesNotBlockOthers(t *testing.T) {
	w := newWorld(t)
	w.shared("bad", snapshottest.Tainted("bad"))
	w.shared("good")
	w.pods("bad", 1, snapshottest.Selecting(karpv1.NodePoolLabelKey, "bad"), snapshottest.Tolerating("bad", v1alpha1.ResourceGPUShared))
	w.pods("good", 1, snapshottest.Selecting(karpv1.NodePoolLabelKey, "good"))
	refusing := interceptor.NewClient(w.WithWatch, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetLabels()[karpv1.NodePoolLabelKey] == "bad" {
				return errors.New("the API refuses")
			}
			return c.Create(ctx, o, options...)
		},
	})
	controller := w.provisioning(func(c *provisioning.Config) { c.Client = refusing })
	if _, err := controller.Reconcile(t.Context(), reconcile.Request{}); err == nil || !strings.Contains(err.Error(), "the API refuses") {
		t.Errorf("got %v, want the API's refusal, to be tried again", err)
	}
	claims := w.wantClaims(1)
	if claims[0].Labels[karpv1.NodePoolLabelKey] != "good" {
		t.Errorf("the claim is %s's", claims[0].Labels[karpv1.NodePoolLabelKey])
	}
	if w.ledger.Await(claims[0].Name, claims[0].UID, launching.ShapeOf(&claims[0])) {
		t.Error("the claim that was created is not on the ledger")
	}
}

func TestUnreadyNodeClassBlocksLaunches(t *testing.T) {
	w := newWorld(t)
	w.class("unready", func(c *v1alpha1.GPUNodeClass) { c.Spec.NodeClassRef.Name = "unready" })
	w.pool("unready")
	inner := w.inner("unready", []any{condition("False", 0)})
	w.create(inner)
	w.pods("web", 1)
	controller := w.provisioning()
	inner.Object["status"] = map[string]any{"conditions": []any{condition("False", 0)}}
	w.updateStatus(inner)
	w.reconciles(controller, "")
	w.wantClaims(0)
	w.wantEvents(1, "Warning PoolClosed")

	inner.Object["status"] = map[string]any{"conditions": []any{condition("True", inner.GetGeneration()+1)}}
	w.updateStatus(inner)
	w.reconciles(controller, "")
	w.wantClaims(0)

	inner.Object["status"] = map[string]any{"conditions": []any{condition("True", inner.GetGeneration())}}
	w.updateStatus(inner)
	w.reconciles(controller, "")
	w.wantClaims(1)
}

func TestMachineIsLaunchedInZoneOfVolume(t *testing.T) {
	w := newWorld(t)
	w.shared("volumes")
	w.volume("data", "us-east-1b")
	w.pods("reads", 1, snapshottest.Claiming("data"))
	w.pods("waits", 1, snapshottest.Claiming("nowhere"))
	w.reconciles(w.provisioning(), "")
	w.wantEvents(1, "VolumesNotReady PersistentVolumeClaim default/nowhere does not exist")
	claim := w.wantClaims(1)[0]
	if _, zone, _ := records.ShapeOf(&claim); zone != "us-east-1b" {
		t.Errorf("the machine is in %s", zone)
	}
}

// volume creates a PersistentVolumeClaim that is bound to a volume in the zone.
func (w *world) volume(name, zone string) {
	w.t.Helper()
	size := snapshottest.Amounts("storage", "1Gi")
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}},
		}}}},
	}}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{"pv.kubernetes.io/bind-completed": "yes"}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: name, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}},
	}
	for _, o := range []client.Object{pv, claim} {
		w.create(o)
		w.t.Cleanup(func() {
			// No controller removes the finalizers here.
			if err := w.Patch(cleanup(w.t), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
				w.t.Error(err)
			}
			if err := w.Delete(cleanup(w.t), o); err != nil {
				w.t.Error(err)
			}
		})
	}
}

// TestMachineDoesNotWaitForNominationsOfAnother keeps the API server from answering the nominations for one machine until another has started to take pods.
func TestMachineDoesNotWaitForNominationsOfAnother(t *testing.T) {
	w := newWorld(t)
	w.shared("beside")
	w.pods("web", 10)
	w.pods("other", 10, snapshottest.Asking("cpu", "400m", v1alpha1.ResourceGPUShared, "1"))
	w.reconciles(w.provisioning(), "")
	claims := w.wantClaims(2)
	var nodes []*corev1.Node
	for i := range claims {
		snapshottest.Registered(w.clock.Now())(&claims[i])
		w.updateStatus(&claims[i])
		nodes = append(nodes, w.node(&claims[i], 10))
	}
	slow, goes := nodes[0].Name, make(chan struct{})
	var mu sync.Mutex
	nominations := map[string]int{}
	controller := w.readiness(func(c *readiness.Config) {
		c.Client = interceptor.NewClient(w.WithWatch, interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, c client.Client, subresource string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
				if pod, ok := o.(*corev1.Pod); ok {
					mu.Lock()
					nominations[pod.Name]++
					mu.Unlock()
					if pod.Status.NominatedNodeName == slow {
						<-goes
					}
				}
				return c.SubResource(subresource).Patch(ctx, o, patch, options...)
			},
		})
	})
	first := make(chan error, 1)
	go func() {
		_, err := controller.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&claims[0])})
		first <- err
	}()
	w.reconciles(controller, claims[1].Name)
	if w.read(nodes[1]); tainted(nodes[1], v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the second machine takes no pods")
	}
	if w.read(nodes[0]); !tainted(nodes[0], v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the first machine takes pods before they are nominated")
	}
	close(goes)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if w.read(nodes[0]); tainted(nodes[0], v1alpha1.ReplicasNotReadyTaintKey) {
		t.Error("the first machine takes no pods")
	}
	for pod, n := range nominations {
		if n != 1 {
			t.Errorf("pod %s is nominated %d times", pod, n)
		}
	}
	if len(nominations) != 20 {
		t.Errorf("%d of 20 pods are nominated", len(nominations))
	}
}

func TestPodsAreNominatedForPlannedMachines(t *testing.T) {
	w := newWorld(t)
	w.shared("nominated")
	w.pods("web", 10)
	w.pods("other", 1, snapshottest.Asking("cpu", "400m", v1alpha1.ResourceGPUShared, "1"))
	w.reconciles(w.provisioning(), "")
	claims := w.wantClaims(2)
	nominated := func() map[string]int {
		t.Helper()
		nodes := map[string]int{}
		for _, pod := range w.podsOf("") {
			nodes[pod.Status.NominatedNodeName]++
		}
		return nodes
	}
	want := func(nodes map[string]int) {
		t.Helper()
		if diff := cmp.Diff(nodes, nominated()); diff != "" {
			t.Fatalf("pods nominated for nodes (-want +got):\n%s", diff)
		}
	}
	want(map[string]int{"": 11})
	var nodes []*corev1.Node
	for i := range claims {
		snapshottest.Registered(w.clock.Now())(&claims[i])
		w.updateStatus(&claims[i])
		nodes = append(nodes, w.node(&claims[i], 0))
	}
	w.reconciles(w.provisioning(), "")
	want(map[string]int{"": 11}) // The scheduler would clear a nomination for a node that admits no pods.
	for i, node := range nodes {
		w.exposes(node, 10)
		w.reconciles(w.readiness(), claims[i].Name)
		if w.read(node); tainted(node, v1alpha1.ReplicasNotReadyTaintKey) {
			t.Fatal("the startup taint stays")
		}
	}
	got := nominated()
	if got[nodes[0].Name]+got[nodes[1].Name] != 11 || max(got[nodes[0].Name], got[nodes[1].Name]) != 10 {
		t.Fatalf("pods nominated for nodes: %v", got)
	}
	// A restarted controller knows that the pods wait for these nodes, and writes nothing.
	before := w.podsOf("")
	for range 2 {
		w.restart()
		w.reconciles(w.provisioning(), "")
		w.wantClaims(2)
	}
	if diff := cmp.Diff(before, w.podsOf("")); diff != "" {
		t.Errorf("pods (-before +after):\n%s", diff)
	}

	// If a machine is lost, its pods wait for another one.
	lost, stays := nodes[0], nodes[1]
	w.delete(&claims[0])
	w.delete(lost)
	w.restart()
	controller := w.provisioning()
	w.reconciles(controller, "")
	w.wantClaims(2)
	w.clock.Step(5 * time.Second)
	w.reconciles(controller, "")
	w.wantClaims(2)
	want(map[string]int{"": got[lost.Name], stays.Name: got[stays.Name]})
}
