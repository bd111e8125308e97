// Command bench-launch measures how long it takes until many pods that each need a node have one, with a pool of Karve's and with a pool of Karpenter's alone. Each side
// has a cluster of its own, with the real Karpenter on a local AWS and simulated machines. It prints a table and writes it as JSON. `make bench-launch` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/bench/results"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

func main() {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-launch:", err)
		os.Exit(1)
	}
}

// side is one way to provision the nodes.
type side struct {
	name  string
	class karpv1.NodeClassReference
	// asks is the extended resource that each pod requests one of.
	asks  corev1.ResourceName
	karve bool
	// release is the folder of an earlier release of Karve, or empty.
	release string
}

var sides = []side{
	{"karve", karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "gpu-shared"}, v1alpha1.ResourceGPUShared, true, ""},
	{"karpenter", karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}, v1alpha1.ResourceGPU, false, ""},
}

// figures are the measurements of a side: how many NodeClaims were created, launched and registered, and the seconds from the first pod until the last of them was.
// The side is incomplete if fewer than Pods registered. Terminated counts the machines that were terminated although each pod needs one.
type figures struct {
	Side       string `json:"side"`
	Pods       int    `json:"pods"`
	Created    step   `json:"created"`
	Launched   step   `json:"launched"`
	Registered step   `json:"registered"`
	Terminated int    `json:"terminatedMachines"`
}

// step is how many NodeClaims have taken a step, and when the last of them took it.
type step struct {
	NodeClaims int     `json:"nodeClaims"`
	Last       float64 `json:"lastSeconds"`
}

// standstill is how long nothing may change before a side is incomplete. Karpenter waits 15 minutes for the node of a machine that was terminated.
const standstill = 90 * time.Second

func run(ctx context.Context) error {
	out := flag.String("o", filepath.Join("..", "_output", "bench-launch.json"), "where the figures go")
	pods := flag.Int("pods", 500, "how many pods need a node each")
	old := flag.String("old", "", "folder of an earlier release, as tools/old-release makes it, to measure as well")
	flag.Parse()
	if err := cluster.Missing(); err != nil {
		return err
	}
	if _, err := karve.Build(ctx); err != nil {
		return err
	}
	measured := sides
	if *old != "" {
		earlier := sides[0]
		earlier.name, earlier.release = "old", *old
		measured = append(slices.Clip(sides), earlier)
	}
	var all []figures
	for _, s := range measured {
		f, err := measure(ctx, s, *pods)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", s.name, err)
		}
		all = append(all, f)
	}
	printTable(*pods, all)
	return results.Save(*out, all)
}

// printTable prints a table, in which the first side is compared with each of the others.
func printTable(pods int, all []figures) {
	fmt.Printf("| %d pods, NodeClaims and seconds to the last |", pods)
	for _, f := range all {
		fmt.Printf(" %s |", f.Side)
	}
	for _, f := range all[1:] {
		fmt.Printf(" over %s |", f.Side)
	}
	fmt.Printf("\n|---|%s\n", strings.Repeat("---|", 2*len(all)-1))
	for _, line := range []struct {
		name string
		of   func(figures) step
	}{
		{"created", func(f figures) step { return f.Created }},
		{"launched", func(f figures) step { return f.Launched }},
		{"registered", func(f figures) step { return f.Registered }},
	} {
		fmt.Printf("| %s |", line.name)
		for _, f := range all {
			fmt.Printf(" %s |", line.of(f))
		}
		for _, f := range all[1:] {
			ratio := "-"
			if all[0].complete() && f.complete() {
				ratio = fmt.Sprintf("%.2f", line.of(all[0]).Last/line.of(f).Last)
			}
			fmt.Printf(" %s |", ratio)
		}
		fmt.Println()
	}
	for _, f := range all {
		if !f.complete() {
			fmt.Printf("%s: nothing changed for %s, and %d machines had been terminated.\n", f.Side, standstill, f.Terminated)
		}
	}
}

// measure starts a cluster, creates the pods and waits until each has a node.
func measure(ctx context.Context, s side, n int) (f figures, err error) {
	f = figures{Side: s.name, Pods: n}
	components := []cluster.Component{cluster.Scheduler, cluster.AWS, cluster.Karpenter, cluster.Machines, cluster.KWOK}
	c, err := cluster.Start(ctx, cluster.Config{Components: components})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	k, err := karve.Client(c)
	if err != nil {
		return f, err
	}
	if s.karve {
		if _, err := karve.Start(ctx, c, karve.Options{Release: s.release}); err != nil {
			return f, err
		}
	}
	if err := makePool(ctx, c, k, s); err != nil {
		return f, err
	}
	w := &watcher{created: map[string]time.Time{}, launched: map[string]time.Time{}, registered: map[string]time.Time{}}
	if err := w.watch(ctx, c, k); err != nil {
		return f, err
	}
	fmt.Fprintf(os.Stderr, "%s: creating %d pods\n", s.name, n)
	began := time.Now()
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return k.Create(creating, pod(s, i)) })
	}
	if err := group.Wait(); err != nil {
		return f, fmt.Errorf("creating the pods: %w", err)
	}
	fmt.Fprintf(os.Stderr, "%s: %d pods after %.1f s\n", s.name, n, time.Since(began).Seconds())
	var told time.Time
	err = wait.PollUntilContextTimeout(ctx, time.Second, 15*time.Minute, true, func(context.Context) (bool, error) {
		f.Created, f.Launched, f.Registered = w.steps(began)
		if time.Since(told) > 10*time.Second {
			told = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %.0f s, %d NodeClaims are created, %d launched, %d registered\n",
				s.name, time.Since(began).Seconds(), f.Created.NodeClaims, f.Launched.NodeClaims, f.Registered.NodeClaims)
		}
		last := max(f.Created.Last, f.Launched.Last, f.Registered.Last)
		return f.complete() || time.Since(began).Seconds()-last > standstill.Seconds(), nil
	})
	for _, i := range c.AWS().Instances() {
		if i.State != aws.Running && i.State != aws.Pending {
			f.Terminated++
		}
	}
	return f, err
}

func (f figures) complete() bool { return f.Registered.NodeClaims >= f.Pods }

func (s step) String() string { return fmt.Sprintf("%d, %.1f s", s.NodeClaims, s.Last) }

// stepOf counts the times of a step. The seconds have one decimal.
func stepOf(times map[string]time.Time, began time.Time) step {
	last := began
	for _, at := range times {
		if at.After(last) {
			last = at
		}
	}
	return step{len(times), math.Round(last.Sub(began).Seconds()*10) / 10}
}

// watcher records when NodeClaims take their steps, as a watch shows them.
type watcher struct {
	mu                            sync.Mutex
	created, launched, registered map[string]time.Time
}

func (w *watcher) watch(ctx context.Context, c *cluster.Cluster, k client.Client) error {
	seen, err := cache.New(c.RESTConfig(), cache.Options{Scheme: k.Scheme()})
	if err != nil {
		return fmt.Errorf("watching: %w", err)
	}
	informer, err := seen.GetInformer(ctx, &karpv1.NodeClaim{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watching NodeClaims: %w", err)
	}
	if _, err := informer.AddEventHandler(cluster.Notes(w.note, func(any) {})); err != nil {
		return fmt.Errorf("watching NodeClaims: %w", err)
	}
	go func() { _ = seen.Start(ctx) }() // Start returns when the context ends.
	if !seen.WaitForCacheSync(ctx) {
		return ctx.Err()
	}
	return nil
}

func (w *watcher) note(o any, gone bool) {
	claim, ok := o.(*karpv1.NodeClaim)
	if !ok || gone {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for steps, done := range map[*map[string]time.Time]bool{
		&w.created: true, &w.launched: claim.StatusConditions().IsTrue(karpv1.ConditionTypeLaunched), &w.registered: claim.StatusConditions().IsTrue(karpv1.ConditionTypeRegistered),
	} {
		if _, known := (*steps)[claim.Name]; done && !known {
			(*steps)[claim.Name] = now
		}
	}
}

func (w *watcher) steps(began time.Time) (created, launched, registered step) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return stepOf(w.created, began), stepOf(w.launched, began), stepOf(w.registered, began)
}

// makePool creates the node classes of examples/ and a NodePool, and waits until it is ready.
func makePool(ctx context.Context, c *cluster.Cluster, k client.Client, s side) error {
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	for _, file := range []string{"nodeclass.yaml", "gpunodeclass.yaml"} {
		cmd := exec.CommandContext(ctx, c.Kubectl(), "--kubeconfig="+c.Kubeconfig(), "apply", "-f", filepath.Join(root, "examples", file))
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("applying %s: %w: %s", file, err, said)
		}
	}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	pool.Spec.Template.Spec.NodeClassRef = &s.class
	pool.Spec.Template.Spec.Taints = []corev1.Taint{{Key: string(s.asks), Effect: corev1.TaintEffectNoSchedule}}
	pool.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
		{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn.xlarge"}},
		{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
	}
	pool.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h")
	pool.Spec.Disruption.ConsolidationPolicy = karpv1.ConsolidationPolicyWhenEmpty
	pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1h")
	if err := k.Create(ctx, pool); err != nil {
		return fmt.Errorf("creating the NodePool: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 2*time.Minute, true, func(ctx context.Context) (bool, error) {
		if err := k.Get(ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
			return false, fmt.Errorf("reading the NodePool: %w", err)
		}
		return pool.StatusConditions().IsTrue(status.ConditionReady), nil
	})
	if err != nil {
		return fmt.Errorf("NodePool %s is not Ready: %w: %+v", pool.Name, err, pool.Status.Conditions)
	}
	return nil
}

// pod returns a pod that fills a g4dn.xlarge.
func pod(s side, i int) *corev1.Pod {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3"), corev1.ResourceMemory: resource.MustParse("1Gi"), s.asks: resource.MustParse("1")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("pod-%04d", i)},
		Spec: corev1.PodSpec{
			Tolerations: []corev1.Toleration{{Key: string(s.asks), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}},
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.example.com/main", Resources: corev1.ResourceRequirements{Requests: resources, Limits: corev1.ResourceList{s.asks: resources[s.asks]}},
			}},
		},
	}
}
