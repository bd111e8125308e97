package readiness

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwok "sigs.k8s.io/karpenter/kwok/apis"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
	"karve.sh/karve/test/harness/kubelet"
)

const (
	kwokGroup, kwokKind = "karpenter.kwok.sh", "KWOKNodeClass"
	fewPods             = 30
	maxMiB              = 40 << 10 // that pods have at a time. Four T4s have 58 GiB for slots.
	restartEvery        = 15       // pods
)

var sizesMiB = []int64{2048, 4096, 8192}

// slotted returns the objects of a pool whose GPUs are divided into slots. Nothing is launched: the limit is the machine that exists.
func slotted() []client.Object {
	nodeClass := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kwokGroup + "/v1alpha1", "kind": kwokKind, "metadata": map[string]any{"name": "shared"}, "spec": map[string]any{}}}
	class := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "shared"}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef: v1alpha1.NodeClassReference{Group: kwokGroup, Kind: kwokKind, Name: "shared"},
		Sharing:      v1alpha1.Sharing{Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi", "8Gi"}}},
	}}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "shared"}}
	pool.Spec.Template.Spec = karpv1.NodeClaimTemplateSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: "shared"},
		Taints:       []corev1.Taint{{Key: v1alpha1.ResourceGPU, Effect: corev1.TaintEffectNoSchedule}},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
			{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{"g4dn.12xlarge"}},
			{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
		},
		ExpireAfter: karpv1.MustParseNillableDuration("Never"),
	}
	pool.Spec.Limits = karpv1.Limits{v1alpha1.ResourceGPU: *resource.NewQuantity(gpus, resource.DecimalSI)}
	pool.Spec.Disruption = karpv1.Disruption{ConsolidateAfter: karpv1.MustParseNillableDuration("0s"), Budgets: []karpv1.Budget{{Nodes: "0"}}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "karve-kwok"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{kwokGroup}, Resources: []string{"*"}, Verbs: []string{"get"}}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: karve.Namespace, Name: "karve"}},
	}
	return []client.Object{role, binding, nodeClass, class, pool}
}

// TestNoPodFailsAdmissionForASlot lets pods with slots of random sizes come and go on a real kubelet with a real scheduler. The controller changes the slots of the
// node for them, and is killed at any time. The kubelet and the agent are killed while all pods run: a kubelet whose device plugin is away rejects the pods that are bound
// meanwhile, of any plugin. KARVE_SLOT_PODS is the number of pods.
func TestNoPodFailsAdmissionForASlot(t *testing.T) {
	cluster.Long(t)
	kubelet.Require(t)
	n := fewPods
	if text := os.Getenv("KARVE_SLOT_PODS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	crd := filepath.Join(t.TempDir(), "kwoknodeclasses.yaml")
	if err := os.WriteFile(crd, kwok.KWOKNodeClassCRD, 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorldWith(t, cluster.Config{Components: []cluster.Component{cluster.Scheduler, cluster.ControllerManager}, CRDs: []string{crd}},
		karve.Options{InstanceTypesFile: filepath.Join(root, "test/harness/cluster/instance-types.json")})
	for _, o := range slotted() {
		w.must(w.api.Create(t.Context(), o))
	}
	machine := kubelet.OnCluster(t, w.cluster, kubelet.Config{Name: name})
	one := []int64{1, 0, 0}
	promise := nodecontract.Slots{SizesMiB: sizesMiB, ReserveMiB: 512, Enforcement: nodecontract.EnforceWatch, GPUs: slices.Repeat([][]int64{one}, gpus)}
	claim := w.claim(map[string]string{nodecontract.ResourceAnnotation: nodecontract.SlotResource(sizesMiB[0]), nodecontract.SlotsAnnotation: promise.String()})
	w.eventually(func() error {
		node := w.node()
		register(node, claim)
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: v1alpha1.ResourceGPU, Effect: corev1.TaintEffectNoSchedule})
		return w.api.Update(t.Context(), node)
	})
	program, env := w.agent(w.placed(), filepath.Join(machine.Dir(), "agent"))
	start := func() *kubelet.Process {
		process, err := machine.Run(kubelet.Program{Name: "karve-node", Path: program, Env: env})
		w.must(err)
		return process
	}
	agent := start()
	w.eventually(func() error {
		if node := w.node(); tainted(node) {
			return fmt.Errorf("the startup taint is still there: %v", node.Status.Allocatable)
		}
		return nil
	})
	w.eventually(func() error {
		w.must(w.api.Get(t.Context(), client.ObjectKeyFromObject(claim), claim))
		initialized(claim)
		return w.api.Status().Update(t.Context(), claim)
	})
	w.eventually(func() error {
		node := w.node()
		node.Labels[karpv1.NodeInitializedLabelKey] = "true"
		return w.api.Update(t.Context(), node)
	})

	random := rand.New(rand.NewPCG(1, uint64(n))) //nolint:gosec // A repeatable test.
	pods := &slotPods{world: w, machine: machine, random: random, since: time.Now(), alive: map[string]int64{}, ran: map[string]bool{}}
	restarts := []func(){
		func() { pods.quiet(); w.must(machine.RestartKubelet(t.Context())); pods.again() },
		func() { pods.quiet(); agent.Kill(); agent = start(); pods.again() },
		func() {
			w.must(w.cluster.KillComponent(karve.Component))
			w.must(w.cluster.StartComponent(t.Context(), karve.Component))
		},
	}
	for created := 0; created < n || len(pods.alive) > 0; time.Sleep(100 * time.Millisecond) {
		mib := sizesMiB[random.IntN(len(sizesMiB))]
		if created < n && pods.usedMiB()+mib <= maxMiB {
			pods.create(fmt.Sprintf("pod-%04d", created), mib)
			if created++; created%restartEvery == 0 {
				restarts[random.IntN(len(restarts))]()
			}
			continue
		}
		pods.look()
		pods.deleteOne()
	}
	t.Logf("%d pods ran", len(pods.ran))
	if len(pods.ran) != n {
		t.Errorf("%d of %d pods ran", len(pods.ran), n)
	}
}

// initialized sets the condition that Karpenter sets when a node has started.
func initialized(c *karpv1.NodeClaim) {
	condition := c.Status.Conditions[len(c.Status.Conditions)-1]
	condition.Type, condition.Reason = karpv1.ConditionTypeInitialized, karpv1.ConditionTypeInitialized
	c.Status.Conditions = append(c.Status.Conditions, condition)
}

// slotPods are the pods of the test.
type slotPods struct {
	*world
	machine *kubelet.Node
	random  *rand.Rand
	// alive is the memory of the pods that exist, in MiB.
	alive map[string]int64
	ran   map[string]bool
	// since is when a pod ran last, or none waited.
	since time.Time
}

func (p *slotPods) usedMiB() (sum int64) {
	for _, mib := range p.alive {
		sum += mib
	}
	return sum
}

func (p *slotPods) create(name string, mib int64) {
	p.t.Helper()
	pod := p.machine.Pod(name, nodecontract.SlotResource(mib), 1)
	pod.Spec.Tolerations = []corev1.Toleration{{Key: v1alpha1.ResourceGPU, Operator: corev1.TolerationOpExists}}
	p.must(p.api.Create(p.t.Context(), pod))
	p.alive[name] = mib
}

// look notes which pods have run, and fails the test if one has failed or if all wait for too long.
func (p *slotPods) look() {
	p.t.Helper()
	var list corev1.PodList
	p.must(p.api.List(p.t.Context(), &list, client.InNamespace(p.machine.Namespace())))
	there, waiting := map[string]bool{}, ""
	for i := range list.Items {
		pod := &list.Items[i]
		there[pod.Name] = true
		switch pod.Status.Phase {
		case corev1.PodRunning:
			p.ran[pod.Name] = true
		case corev1.PodFailed:
			if pod.DeletionTimestamp == nil {
				p.t.Fatalf("%s failed: %s: %s %v", pod.Name, pod.Status.Reason, pod.Status.Message, pod.Status.ContainerStatuses)
			}
		default:
			waiting = fmt.Sprintf("%s with %d MiB: %v", pod.Name, p.alive[pod.Name], pod.Status.Conditions)
		}
	}
	maps.DeleteFunc(p.alive, func(name string, _ int64) bool { return !there[name] })
	if waiting == "" || slices.ContainsFunc(slices.Collect(maps.Keys(p.alive)), func(name string) bool { return p.ran[name] }) {
		p.since = time.Now()
	}
	if time.Since(p.since) > 90*time.Second {
		node := p.node()
		p.t.Fatalf("nothing runs any more and %s\nnode: %v %v %v", waiting, node.Spec.Taints, node.Annotations, node.Status.Allocatable)
	}
}

// quiet lets pods go until none waits.
func (p *slotPods) quiet() {
	p.t.Helper()
	for {
		p.look()
		waits := slices.ContainsFunc(slices.Collect(maps.Keys(p.alive)), func(name string) bool { return !p.ran[name] })
		if !waits {
			return
		}
		p.deleteOne()
		time.Sleep(100 * time.Millisecond)
	}
}

// again waits until the agent serves the slots again, and the Node has all that it is to have.
func (p *slotPods) again() {
	p.t.Helper()
	before := time.Now()
	p.eventually(func() error {
		node := p.node()
		promise, err := nodecontract.ParseSlots(node.Annotations[nodecontract.SlotsAnnotation])
		p.must(err)
		for i, n := range promise.Wanted() {
			if q := node.Status.Allocatable[corev1.ResourceName(nodecontract.SlotResource(promise.SizesMiB[i]))]; q.Value() != n {
				return fmt.Errorf("the Node has %s slots of %d MiB, want %d", q.String(), promise.SizesMiB[i], n)
			}
		}
		// The Node has what the kubelet knew when it last wrote the Node. It writes times in seconds.
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && !c.LastHeartbeatTime.After(before.Add(time.Second)) {
				return fmt.Errorf("the kubelet has not written the Node since the restart, but at %s", c.LastHeartbeatTime)
			}
		}
		return nil
	})
}

// deleteOne deletes one of the pods that run.
func (p *slotPods) deleteOne() {
	p.t.Helper()
	var running []string
	for name := range p.alive {
		if p.ran[name] {
			running = append(running, name)
		}
	}
	if len(running) == 0 {
		return
	}
	slices.Sort(running)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.machine.Namespace(), Name: running[p.random.IntN(len(running))]}}
	p.must(client.IgnoreNotFound(p.api.Delete(p.t.Context(), pod, client.GracePeriodSeconds(1))))
}
