package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/provreq"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/cluster"
)

// errDead is the error of every write after the process has died.
var errDead = errors.New("the process is dead")

// life is the controllers of one process, from its start to its death.
type life struct {
	w *world
	// left is how many more writes succeed before the process dies.
	left int
	// writes counts the successful writes, and made the NodeClaims among them.
	writes, made int
	dead         bool

	once   []reconcile.Reconciler // that have a single request
	launch reconcile.Reconciler
	ready  reconcile.Reconciler
	// known are all NodeClaims and Nodes that ever existed.
	known map[string]bool
}

// live starts all controllers with empty memory. The process dies when it attempts more than the given number of writes.
func (w *world) live(writes int) *life {
	w.restart()
	l := &life{w: w, left: writes, known: map[string]bool{}}
	c := l.client()
	l.once = []reconcile.Reconciler{
		w.poolControllerWith(c),
		w.provisioning(func(config *provisioning.Config) { config.Client, config.Planner = c, w.planner }),
		disruption.New(disruption.Config{Client: c, Gatherer: w.gatherer, Planner: w.planner, Metrics: w.metrics, Recorder: w.recorder, Clock: w.clock, Settle: settle, Tolerations: tolerations}),
	}
	if w.requests {
		l.once = append(l.once, &provreq.Controller{Config: provreq.Config{Client: c, Gatherer: w.gatherer, Planner: w.planner, Recorder: w.recorder, Clock: w.clock}})
	}
	// The API server sets creation times by its own clock, while the controllers' clock runs ahead.
	l.launch = w.launch(func(config *launch.Config) { config.Client, config.Timeout = c, time.Hour })
	l.ready = w.readiness(func(config *readiness.Config) { config.Client = c })
	return l
}

// client returns a client that counts writes, and fails them once the process is dead.
func (l *life) client() client.WithWatch {
	return interceptor.NewClient(l.w.WithWatch, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return l.write(func() error {
				err := c.Create(ctx, o, options...)
				if _, ok := o.(*karpv1.NodeClaim); ok && err == nil {
					l.made++
				}
				return err
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return l.write(func() error { return c.Update(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			return l.write(func() error { return c.Patch(ctx, o, patch, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return l.write(func() error { return c.Delete(ctx, o, options...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, sub string, o, what client.Object, options ...client.SubResourceCreateOption) error {
			return l.write(func() error { return c.SubResource(sub).Create(ctx, o, what, options...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, options ...client.SubResourceUpdateOption) error {
			return l.write(func() error { return c.SubResource(sub).Update(ctx, o, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
			return l.write(func() error { return c.SubResource(sub).Patch(ctx, o, patch, options...) })
		},
	})
}

func (l *life) write(do func() error) error {
	if l.left == 0 {
		l.dead = true
	}
	if l.dead {
		return errDead
	}
	l.left--
	l.writes++
	return do()
}

// reconcilesAll runs every controller once. It stops when the process dies.
func (l *life) reconcilesAll() {
	l.w.t.Helper()
	for _, r := range l.once {
		l.reconciles(r, "")
	}
	for _, claim := range l.w.claims() {
		l.known[claim.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(l.known)) {
		l.reconciles(l.launch, name)
		l.reconciles(l.ready, name)
	}
	l.w.events() // The recorder's buffer is bounded.
}

func (l *life) reconciles(r reconcile.Reconciler, name string) {
	l.w.t.Helper()
	if l.dead {
		return
	}
	_, err := r.Reconcile(l.w.t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: name}})
	if err != nil && !l.dead {
		l.w.t.Fatalf("%T of %q: %v", r, name, err)
	}
}

// simulates runs a number of minutes. In each minute the controllers run, then Karpenter, the cloud, the scheduler and the pods' owner act.
func (l *life) simulates(minutes int) {
	l.w.t.Helper()
	for range minutes {
		if l.reconcilesAll(); l.dead {
			return
		}
		l.w.others()
		l.w.clock.Step(time.Minute)
	}
}

// others simulates the other components: Karpenter and the cloud launch and terminate machines, the scheduler binds pods, and the owner of evicted pods
// replaces them.
func (w *world) others() {
	w.t.Helper()
	claims := w.claims()
	for i := range claims {
		claim := &claims[i]
		machine := records.Machine{Claim: claim, Node: &corev1.Node{}}
		machine.Node.Name = claim.Name
		there := w.read(machine.Node)
		switch {
		case going(claim):
			w.drained(claim.Name)
			if there {
				w.delete(machine.Node)
			}
			w.release(claim)
		case !there:
			snapshottest.Registered(w.clock.Now())(claim)
			w.updateStatus(claim)
			w.node(claim, 10)
		case !machine.Initialized() && !tainted(machine.Node, v1alpha1.ReplicasNotReadyTaintKey):
			claim.Status.Conditions = nil
			snapshottest.Initialized(w.clock.Now())(claim)
			w.updateStatus(claim)
			machine.Node.Labels[karpv1.NodeInitializedLabelKey] = "true"
			w.update(machine.Node)
		}
	}
	w.schedule()
}

// drained evicts the pods of a node. Their owner replaces them.
func (w *world) drained(node string) {
	w.t.Helper()
	for _, pod := range w.podsOf(node) {
		w.delete(&pod, noGrace)
		other := snapshottest.Pod(pod.Name+"x", web)
		w.pod(&other)
	}
}

// podsOf returns the pods of a node; for "", the pending pods.
func (w *world) podsOf(node string) []corev1.Pod {
	w.t.Helper()
	var list corev1.PodList
	if err := w.List(w.t.Context(), &list, client.InNamespace("default"), client.MatchingFields{"spec.nodeName": node}); err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// schedule binds each pending pod to the first node that admits it and has a free replica.
func (w *world) schedule() {
	w.t.Helper()
	var nodes corev1.NodeList
	if err := w.List(w.t.Context(), &nodes); err != nil {
		w.t.Fatal(err)
	}
	room := map[string]int{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if n.Labels[karpv1.NodeInitializedLabelKey] == "true" && !tainted(n, v1alpha1.DisruptingTaintKey) && !tainted(n, v1alpha1.ReplicasNotReadyTaintKey) {
			room[n.Name] = 10 - len(w.podsOf(n.Name))
		}
	}
	for _, pod := range w.podsOf("") {
		for _, name := range slices.Sorted(maps.Keys(room)) {
			if room[name] == 0 {
				continue
			}
			room[name]--
			binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: name}}
			if err := w.SubResource("binding").Create(w.t.Context(), &pod, binding); err != nil {
				w.t.Fatal(err)
			}
			w.read(&pod)
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
			w.updateStatus(&pod)
			break
		}
	}
}

// outcome returns the final state, without generated names.
func (w *world) outcome() []string {
	w.t.Helper()
	var all []string
	for _, claim := range w.claims() {
		var line strings.Builder
		fmt.Fprintf(&line, "machine of NodePool %s of generation %q with %d pods", claim.Labels[karpv1.NodePoolLabelKey], claim.Labels["generation"], len(w.podsOf(claim.Name)))
		node := &corev1.Node{}
		node.Name = claim.Name
		w.read(node)
		for _, o := range []client.Object{&claim, node} {
			for _, key := range slices.Sorted(maps.Keys(o.GetAnnotations())) {
				if strings.HasPrefix(key, v1alpha1.Group+"/") {
					line.WriteString(", " + key)
					if key == nodecontract.ReplicasPerGPUAnnotation {
						line.WriteString(": " + o.GetAnnotations()[key])
					}
				}
			}
		}
		for _, t := range node.Spec.Taints {
			line.WriteString(", tainted " + t.Key)
		}
		all = append(all, line.String())
	}
	all = append(all, fmt.Sprintf("%d pods wait", len(w.podsOf(""))))
	var pools karpv1.NodePoolList
	if err := w.List(w.t.Context(), &pools); err != nil {
		w.t.Fatal(err)
	}
	for i := range pools.Items {
		for _, c := range pools.Items[i].Status.Conditions {
			all = append(all, fmt.Sprintf("%s of %s is %s %s", c.Type, pools.Items[i].Name, c.Status, c.Reason))
		}
	}
	slices.Sort(all)
	return all
}

// TestCrashBetweenWritesDoesNotChangeResult kills the controllers before the first write, after the first, and so on. The next process must reach the same
// state as without a crash, with as many launches in total.
func TestCrashBetweenWritesDoesNotChangeResult(t *testing.T) {
	t.Parallel()
	const minutes = 9 // Twice as long as any of the cases takes.
	small := []func(*karpv1.NodePool){
		snapshottest.Requiring(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, "g4dn.xlarge"),
		snapshottest.Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeOnDemand),
	}
	quick := func(c *v1alpha1.GPUNodeClass) { c.Spec.Consolidation.IdleAfter = "1m" }
	for name, c := range map[string]struct {
		begin func(w *world)
		want  []string
		made  int
	}{
		"launching": {
			begin: func(w *world) {
				w.class("crash", quick)
				w.pool("crash", small...)
				w.pods("web", 11, web)
			},
			want: []string{"with 1 pods", "with 10 pods", "0 pods wait"}, made: 2,
		},
		"booking": {
			begin: func(w *world) {
				w.class("crash", quick)
				w.pool("crash", small...)
				w.request("train", "atomic.karve.sh", 11)
			},
			want: []string{"with 0 pods", "with 0 pods", "0 pods wait"}, made: 2,
		},
		"replacing": {
			begin: func(w *world) {
				w.class("crash", quick)
				pool := w.pool("crash", small...)
				w.inUse("old", pool, 7)
				w.read(pool)
				snapshottest.Labeled(map[string]string{"generation": "2"})(pool)
				w.update(pool)
			},
			want: []string{`of generation "2" with 7 pods`, "0 pods wait"}, made: 1,
		},
		"removing idle machines": {
			begin: func(w *world) {
				w.class("crash", quick)
				pool := w.pool("crash", small...)
				w.inUse("kept", pool, 2)
				w.inUse("idle", pool, 0)
			},
			want: []string{"with 2 pods", "0 pods wait"},
		},
		"consolidating": {
			begin: func(w *world) {
				w.class("crash", quick, func(c *v1alpha1.GPUNodeClass) {
					c.Spec.Consolidation.RestartCost = "0.001"
				})
				pool := w.pool("crash", small...)
				w.inUse("more", pool, 3)
				w.inUse("less", pool, 2)
			},
			want: []string{"with 5 pods", "0 pods wait"},
		},
		"changing replicas": {
			begin: func(w *world) {
				class := w.class("crash", quick)
				w.inUse("shared", w.pool("crash", small...), 2)
				class.Spec.Sharing.Replicas = new(int32(12))
				w.update(class)
			},
			want: []string{"with 2 pods, karve.sh/gpus, karve.sh/micro-usd-per-hour, karve.sh/replicas-per-gpu: 12", "0 pods wait"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "launching" {
				cluster.Long(t)
			}
			w := newWorld(t)
			c.begin(w)
			l := w.live(math.MaxInt)
			l.simulates(minutes)
			want := w.outcome()
			for _, words := range c.want {
				if !slices.ContainsFunc(want, func(line string) bool { return strings.Contains(line, words) }) {
					t.Fatalf("without a crash there is no %q among\n%s", words, strings.Join(want, "\n"))
				}
			}
			if l.made != c.made {
				t.Fatalf("without a crash %d machines are launched, want %d", l.made, c.made)
			}
			t.Logf("%d writes", l.writes)
			for n := range l.writes {
				w.reset()
				c.begin(w)
				first := w.live(n)
				first.simulates(minutes)
				if !first.dead {
					t.Fatalf("no crash after %d writes", n)
				}
				second := w.live(math.MaxInt)
				second.simulates(minutes)
				if diff := cmp.Diff(want, w.outcome()); diff != "" {
					t.Errorf("after a crash upon %d writes (-without a crash +with it)\n%s", n, diff)
				}
				if made := first.made + second.made; made != c.made {
					t.Errorf("after a crash upon %d writes %d machines were launched, want %d", n, made, c.made)
				}
			}
		})
	}
}
