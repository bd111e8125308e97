// Package migration runs the steps of docs/migrate on a real API server with Karpenter's CRDs, there and back again, and plans for the pods after each step.
package migration

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/test/harness/cluster"
)

// recipe is a directory of docs/migrate.
type recipe struct {
	folder string
	// old is Karpenter's NodePool, "" if there is none: the pods wait, and Karve serves them as soon as it has pools.
	old string
	// pools are Karve's NodePools, the first for the pods that move.
	pools []string
	// moves are the beginnings of the names of the pods that get Karve's machines.
	moves          []string
	pods, machines int
	// price is what the pods' machines cost per hour on demand in us-east-1, in micro-dollars.
	price planner.MicroUSD
	// stays is a Deployment that stays with Karpenter, "" for none.
	stays string
	// aliases says that the pods keep the names of another plugin, which Karve's chart replaces when pods are created.
	aliases bool
}

var recipes = []recipe{
	{folder: "two-pools", old: "gpu-shared", pools: []string{"shared"}, moves: []string{"test-gpu-shared"}, pods: 12, machines: 2, price: 2 * 526_000, stays: "test-gpu"},
	{folder: "configmap", old: "g4-nodepool", pools: []string{"g4-shared"}, moves: []string{"lab"}, pods: 4, machines: 2, price: 2 * 526_000},
	{folder: "gpushare", old: "gpushare-nodepool", pools: []string{"gpu-memory"}, moves: []string{"binpack-1"}, pods: 3, machines: 1, price: 526_000, aliases: true},
	{folder: "hami", old: "hami-nodepool", pools: []string{"gpu-memory"}, moves: []string{"inference"}, pods: 7, machines: 3, price: 3 * 526_000, aliases: true},
	{folder: "gpu-operator", pools: []string{"a100-mig", "whole"}, moves: []string{"small", "medium", "pod-a100-ec2", "pod-a100-mig-ec2"}, pods: 38, machines: 2, price: 2 * 21_957_642},
	{folder: "mig", old: "mig-nodepool", pools: []string{"mig-shared"}, moves: []string{"classify"}, pods: 40, machines: 1, price: 21_957_642},
	{folder: "mig-manager", old: "operator-nodepool", pools: []string{"operator-shared"}, moves: []string{"notebooks"}, pods: 40, machines: 1, price: 21_957_642},
	{folder: "mps", old: "mps-nodepool", pools: []string{"mps-shared"}, moves: []string{"serve"}, pods: 11, machines: 2, price: 2 * 526_000},
	{folder: "nodeoverlay", old: "gpu", pools: []string{"gpu-shared"}, moves: []string{"inference"}, pods: 11, machines: 2, price: 2 * 526_000},
}

func TestMigrationGuidesWork(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	for _, r := range recipes {
		t.Run(r.folder, func(t *testing.T) { w.thereAndBack(t, r) })
	}
	t.Run("every guide is tested", func(t *testing.T) {
		folders, err := filepath.Glob(filepath.Join(w.root, "docs", "migrate", "*", "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, readme := range folders {
			folder := filepath.Base(filepath.Dir(readme))
			if !slices.ContainsFunc(recipes, func(r recipe) bool { return r.folder == folder }) {
				t.Errorf("nothing tests %s", folder)
			}
		}
	})
}

func (w *world) thereAndBack(t *testing.T, r recipe) {
	t.Helper()
	folder := filepath.Join("docs", "migrate", r.folder)
	w.kubectl(t, "apply", "--validate=strict", "-f", filepath.Join(folder, "before"))
	defer w.kubectl(t, "delete", "--ignore-not-found", "--wait=false", "-f", filepath.Join(folder, "before"), "-f", filepath.Join(folder, "after"))
	if r.old == "" {
		w.kubectl(t, "taint", "node", "--all", corev1.TaintNodeNotReady+"-") // The hosts are ready, and no controller says so here.
	}
	objects, plan := w.objects(t), w.plan(t, r)
	if len(plan.Claims) > 0 {
		t.Fatalf("Karve has no pool and would launch %v", plan.Claims)
	}
	w.there(t, r, folder)
	if t.Failed() {
		return
	}
	w.back(t, r, folder)
	if diff := cmp.Diff(plan, w.plan(t, r), cmpopts.IgnoreUnexported(quote.Quote{}, quote.Unserved{})); diff != "" {
		t.Errorf("the plan after the way back (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(objects, w.objects(t)); diff != "" {
		t.Errorf("the objects after the way back (-before +after):\n%s", diff)
	}
}

// there runs the commands of a page's steps.
func (w *world) there(t *testing.T, r recipe, folder string) {
	t.Helper()
	var applied, switched bool
	for _, command := range w.commands(t, folder, "Steps") {
		w.does(t, command)
		switch {
		case strings.HasPrefix(command, "kubectl apply"):
			applied = true
			switch {
			case r.aliases: // Karpenter knows no slots.
				w.untilSlots(t, true)
				switched = true
			case r.old == "":
				switched = true
			default:
				r.isLeftToKarpenter(t, w.plan(t, r))
			}
		case strings.HasPrefix(command, "kubectl patch nodepool "+r.old):
			switched = true
		}
		if applied {
			w.onePluginOnEachMachine(t, r)
		}
		if switched {
			r.isServed(t, w.plan(t, r))
		}
	}
	if !applied || !switched {
		t.Error("the document neither makes the new pool nor switches the old one off")
	}
	w.oldPoolIsGone(t, r)
}

// back runs the commands of a page's way back, after its last step.
func (w *world) back(t *testing.T, r recipe, folder string) {
	t.Helper()
	off := 0
	for _, command := range w.commands(t, folder, "Back again") {
		w.does(t, command)
		if strings.HasPrefix(command, "helm") {
			w.untilSlots(t, false)
		}
		if slices.ContainsFunc(list[karpv1.NodePool](t, w, "nodepools"), func(p karpv1.NodePool) bool { return p.Name == r.pools[0] }) {
			w.onePluginOnEachMachine(t, r)
		}
		if !strings.HasPrefix(command, "kubectl patch nodepool") || !slices.ContainsFunc(r.pools, func(pool string) bool { return strings.Contains(command, " "+pool+" ") }) {
			continue
		}
		if off++; off < len(r.pools) {
			continue
		}
		plan := w.plan(t, r)
		if len(plan.Claims) > 0 {
			t.Errorf("after %s, Karve would launch %v", command, plan.Claims)
		}
		if r.old != "" && !r.aliases {
			r.isLeftToKarpenter(t, plan)
		}
	}
	if off != len(r.pools) {
		t.Errorf("%d of Karve's %d pools are switched off", off, len(r.pools))
	}
}

// moved says whether a pod is one of those that get Karve's machines.
func (r recipe) moved(pod string) bool {
	return slices.ContainsFunc(r.moves, func(name string) bool { return pod == "default/"+name || strings.HasPrefix(pod, "default/"+name+"-") })
}

func (r recipe) isLeftToKarpenter(t *testing.T, q quote.Quote) {
	t.Helper()
	left := 0
	for _, u := range q.Unplaced {
		if u.Reason == planner.ReasonLeftToKarpenter && r.moved(u.Pod) {
			left++
		}
	}
	if len(q.Claims) > 0 || left != r.pods {
		t.Errorf("both pools are there: %d of %d pods are left to Karpenter, and Karve would launch %v", left, r.pods, q.Claims)
	}
}

func (r recipe) isServed(t *testing.T, q quote.Quote) {
	t.Helper()
	pods := 0
	for _, claim := range q.Claims {
		if !slices.Contains(r.pools, claim.NodePool) {
			t.Errorf("a machine of the pool %s", claim.NodePool)
		}
		for _, pod := range claim.Pods {
			if r.moved(pod) {
				pods++
			}
		}
	}
	if pods != r.pods || len(q.Claims) != r.machines || q.Price != r.price {
		t.Errorf("%d of %d pods are on %d machines for %d, want %d for %d: %v", pods, r.pods, len(q.Claims), q.Price, r.machines, r.price, q.Unplaced)
	}
	for _, u := range q.Unplaced {
		if r.stays == "" || !strings.HasPrefix(u.Pod, "default/"+r.stays+"-") {
			t.Errorf("%s has no place: %s", u.Pod, u.Message)
		}
	}
}

// oldPoolIsGone checks that only Karve's pools and the pools of the remaining Deployment exist.
func (w *world) oldPoolIsGone(t *testing.T, r recipe) {
	t.Helper()
	want := slices.Clone(r.pools)
	for _, d := range list[appsv1.Deployment](t, w, "deployments") {
		if d.Name == r.stays {
			want = append(want, d.Spec.Template.Spec.NodeSelector[karpv1.NodePoolLabelKey])
		}
	}
	var got []string
	for _, pool := range list[karpv1.NodePool](t, w, "nodepools") {
		got = append(got, pool.Name)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the pools in the end: %s", diff)
	}
}

// onePluginOnEachMachine checks that no DaemonSet of a device plugin runs on Karve's machines.
func (w *world) onePluginOnEachMachine(t *testing.T, r recipe) {
	t.Helper()
	pools := list[karpv1.NodePool](t, w, "nodepools")
	i := slices.IndexFunc(pools, func(p karpv1.NodePool) bool { return p.Name == r.pools[0] })
	if i < 0 {
		t.Fatalf("the pool %s is not there", r.pools[0])
	}
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{
		v1alpha1.GPUNodeClassLabel: r.pools[0], "nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-10de.present": "true",
	}}}
	maps.Copy(machine.Labels, pools[i].Spec.Template.Labels)
	plugins := list[appsv1.DaemonSet](t, w, "daemonsets")
	values, err := os.ReadFile(filepath.Join(w.root, "docs", "migrate", r.folder, "nvdp.yml"))
	if err == nil {
		var chart struct {
			NodeSelector map[string]string `json:"nodeSelector"`
		}
		decode(t, values, &chart)
		plugin := appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "of nvdp.yml"}}
		plugin.Spec.Template.Spec.NodeSelector = chart.NodeSelector
		plugins = append(plugins, plugin)
	}
	for _, plugin := range plugins {
		runs, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: plugin.Spec.Template.Spec}).Match(machine)
		if err != nil || runs {
			t.Errorf("the device plugin %s would run on a machine of Karve's: %t, %v", plugin.Name, runs, err)
		}
	}
}
