package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/simulator"
	"karve.sh/karve/test/harness/karve"
)

// standstill is how long nothing may change before a run fails. On a computer that is too slow, Karve pauses launches for up to two minutes.
const standstill = 3 * time.Minute

// measure starts a cluster, lets the pods come and waits until all of them run.
func measure(ctx context.Context, s situation, load *workload, machines bool) (f figures, err error) {
	f = figures{situation: s, Name: s.String(), Pods: len(load.pods)}
	by, err := prices()
	if err != nil {
		return f, err
	}
	before, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return f, fmt.Errorf("reading the load average: %w", err)
	}
	f.Load = strings.TrimSpace(string(before))
	c, err := cluster.Start(ctx, cluster.Config{
		Components: cluster.Everything(), SchedulerQPS: s.QPS, FeatureGates: "NodeOverlay=true",
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	k, err := karve.Client(c)
	if err != nil {
		return f, err
	}
	kill := func() error { return nil }
	if !s.Karpenter {
		controller, err := karve.Start(ctx, c, karve.Options{Alone: true})
		if err != nil {
			return f, err
		}
		kill = func() error {
			return errors.Join(c.KillComponent(controller.Name), c.StartComponent(ctx, controller.Name))
		}
	}
	if err := makePool(ctx, c, k, s); err != nil {
		return f, err
	}
	w := &watcher{timeline: newTimeline(), machines: machines}
	if err := w.watch(ctx, c, k); err != nil {
		return f, err
	}
	if s.Busy {
		stop, err := loop(ctx)
		if err != nil {
			return f, err
		}
		defer stop()
	}
	used, err := cpuSeconds()
	if err != nil {
		return f, err
	}
	began := time.Now()
	kills := killing(ctx, s.Kills, kill)
	if err := create(ctx, k, load.inOrder(s.Mixed)); err != nil {
		return f, err
	}
	created := time.Now()
	f.Created = seconds(created.Sub(began))
	fmt.Fprintf(os.Stderr, "%s: %d pods after %.1f s\n", s, len(load.pods), f.Created)
	if err := w.until(ctx, s, len(load.pods), began); err != nil {
		return f, err
	}
	if err := kills.Wait(); err != nil {
		return f, fmt.Errorf("killing the controller: %w", err)
	}
	if f.CPU, err = cpuSeconds(); err != nil {
		return f, err
	}
	for name, n := range used {
		f.CPU[name] -= n
	}
	if err := w.fill(&f, by, created); err != nil || s.Karpenter {
		return f, err
	}
	return f, w.explain(ctx, &f, load, by, began, created)
}

// killing kills the controller so many times, the first time after four seconds.
func killing(ctx context.Context, times int, kill func() error) *errgroup.Group {
	kills := &errgroup.Group{}
	for i := range times {
		kills.Go(func() error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(4+7*i) * time.Second):
				return kill()
			}
		})
	}
	return kills
}

// create creates pods, many at a time.
func create(ctx context.Context, k client.Client, pods []*corev1.Pod) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for _, pod := range pods {
		group.Go(func() error { return k.Create(ctx, pod.DeepCopy()) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("creating the pods: %w", err)
	}
	return nil
}

// explain sets where the price comes from, and reports it.
func (w *watcher) explain(ctx context.Context, f *figures, load *workload, prices map[string]float64, began, created time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	keys, err := load.keys(ctx, w.stored)
	if err != nil {
		return err
	}
	p := &pricing{keys: keys, pods: load.counts(), prices: prices, best: func(pods []int) (float64, error) { return load.onePlan(ctx, pods) }}
	plans, err := p.plans(&w.timeline)
	if err != nil {
		return err
	}
	if f.Excess, err = p.explain(plans, created); err != nil {
		return err
	}
	r := &report{timeline: &w.timeline, pricing: p, w: os.Stderr, began: began, shape: load.shapeOf}
	r.causes(f.Excess, plans)
	r.progress()
	r.places()
	r.processors(f.CPU)
	if w.machines {
		r.machines()
	}
	return nil
}

// loop starts a program that uses a core, and returns a function that ends it.
func loop(ctx context.Context) (stop func(), err error) {
	busy := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		return nil, fmt.Errorf("starting a busy loop: %w", err)
	}
	return func() {
		_ = busy.Process.Kill()
		_ = busy.Wait() // It was killed.
	}, nil
}

// watcher records what happens to NodeClaims, Nodes and pods.
type watcher struct {
	mu sync.Mutex
	timeline
	ran  int
	last time.Time // of a new NodeClaim or a pod that runs
	// machines is whether to report each machine.
	machines bool
}

func (w *watcher) watch(ctx context.Context, c *cluster.Cluster, k client.Client) error {
	seen, err := cache.New(c.RESTConfig(), cache.Options{Scheme: k.Scheme()})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	for _, o := range []client.Object{&karpv1.NodeClaim{}, &corev1.Node{}, &corev1.Pod{}} {
		informer, err := seen.GetInformer(ctx, o, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
		if _, err := informer.AddEventHandler(cluster.Notes(w.note, func(any) {})); err != nil {
			return fmt.Errorf("watching %T: %w", o, err)
		}
	}
	go func() { _ = seen.Start(ctx) }() // Start returns when the context ends.
	if !seen.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	return nil
}

func (w *watcher) note(o any, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	switch o := o.(type) {
	case *karpv1.NodeClaim:
		if w.noteClaim(o, now) {
			w.last = now
		}
	case *corev1.Node:
		w.noteNode(o, now)
	case *corev1.Pod:
		if !gone && w.notePod(o, now) {
			w.ran, w.last = w.ran+1, now
		}
	}
}

// until waits until n pods run.
func (w *watcher) until(ctx context.Context, s situation, n int, began time.Time) error {
	var told time.Time
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 15*time.Minute, true, func(context.Context) (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %.0f s, %d NodeClaims, %d pods run\n", s, time.Since(began).Seconds(), len(w.claims), w.ran)
		}
		if !w.last.IsZero() && time.Since(w.last) > standstill {
			return false, fmt.Errorf("nothing changed for %s: %d NodeClaims, %d of %d pods run", standstill, len(w.claims), w.ran, n)
		}
		return w.ran >= n, nil
	})
}

// fill sets what was seen.
func (w *watcher) fill(f *figures, prices map[string]float64, created time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var claims, pods []time.Time
	for name, c := range w.claims {
		price, ok := prices[c.Type]
		if !ok {
			return fmt.Errorf("NodeClaim %s is a %q, which has no price", name, c.Type)
		}
		f.Price += price
		claims = append(claims, c.Seen)
	}
	for _, p := range w.pods {
		pods = append(pods, p.Ran)
	}
	slices.SortFunc(claims, time.Time.Compare)
	slices.SortFunc(pods, time.Time.Compare)
	at := func(times []time.Time, percent int) float64 {
		return seconds(times[(len(times)*percent+99)/100-1].Sub(created))
	}
	f.Claims, f.First, f.Most, f.Last, f.Running = len(claims), seconds(claims[0].Sub(created)), at(claims, 97), at(claims, 100), at(pods, 100)
	return nil
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }

// gpuClass returns the GPUNodeClass of the pool.
func gpuClass() *v1alpha1.GPUNodeClass {
	class := &v1alpha1.GPUNodeClass{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.Group + "/v1alpha1", Kind: v1alpha1.Kind}, ObjectMeta: metav1.ObjectMeta{Name: poolName}}
	class.Spec.NodeClassRef = v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}
	class.Spec.Sharing = v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(replicas))}
	class.Spec.Consolidation.IdleAfter = "1h"
	return class
}

// pool returns the NodePool. Without Karve, it names the cloud's node class.
func pool(s situation) *karpv1.NodePool {
	np := &karpv1.NodePool{TypeMeta: metav1.TypeMeta{APIVersion: "karpenter.sh/v1", Kind: "NodePool"}, ObjectMeta: metav1.ObjectMeta{Name: poolName}}
	np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: poolName}
	if s.Karpenter {
		np.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}
	}
	np.Spec.Template.Spec.Taints = []corev1.Taint{{Key: v1alpha1.ResourceGPUShared, Effect: corev1.TaintEffectNoSchedule}}
	np.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: "karpenter.k8s.aws/instance-family", Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn"}},
		{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
	}
	np.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h")
	np.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	np.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1h")
	return np
}

// makePool creates the pool and what it refers to, and waits until it is ready.
func makePool(ctx context.Context, c *cluster.Cluster, k client.Client, s situation) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	apply := exec.CommandContext(ctx, c.Kubectl(), "--kubeconfig="+c.Kubeconfig(), "apply", "-f", filepath.Join(root, "examples", "nodeclass.yaml"))
	if said, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("applying the node class: %w: %s", err, said)
	}
	var ready []client.Object
	if s.Karpenter {
		if ready, err = overlays(ctx, c, k); err != nil {
			return err
		}
	} else if err := k.Create(ctx, gpuClass()); err != nil {
		return fmt.Errorf("creating the GPUNodeClass: %w", err)
	}
	np := pool(s)
	if err := k.Create(ctx, np); err != nil {
		return fmt.Errorf("creating the NodePool: %w", err)
	}
	for _, o := range append(ready, np) {
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
			if err := k.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return false, fmt.Errorf("reading %s: %w", o.GetName(), err)
			}
			conditioned, ok := o.(status.Object)
			return ok && conditioned.StatusConditions().IsTrue(status.ConditionReady), nil
		})
		if err != nil {
			return fmt.Errorf("%T %s is not Ready: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// overlays tells Karpenter and the simulated device plugin how many replicas machines have.
func overlays(ctx context.Context, c *cluster.Cluster, k client.Client) (made []client.Object, err error) {
	clients, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if err := simulator.Configure(ctx, clients, map[string]string{poolName: fmt.Sprintf("{replicasPerGPU: %d, resource: %s}", replicas, v1alpha1.ResourceGPUShared)}); err != nil {
		return nil, err
	}
	for _, gpus := range []int64{1, 4, 8} {
		o := &karpv1alpha1.NodeOverlay{ObjectMeta: metav1.ObjectMeta{Name: poolName + "-" + strconv.FormatInt(gpus, 10)}, Spec: karpv1alpha1.NodeOverlaySpec{
			Requirements: []karpv1alpha1.NodeSelectorRequirement{
				{Key: karpv1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{poolName}},
				{Key: "karpenter.k8s.aws/instance-gpu-count", Operator: corev1.NodeSelectorOpIn, Values: []string{strconv.FormatInt(gpus, 10)}},
			},
			Capacity: corev1.ResourceList{v1alpha1.ResourceGPUShared: *resource.NewQuantity(gpus*replicas, resource.DecimalSI)},
		}}
		if err := k.Create(ctx, o); err != nil {
			return nil, fmt.Errorf("creating NodeOverlay %s: %w", o.Name, err)
		}
		made = append(made, o)
	}
	return made, nil
}
