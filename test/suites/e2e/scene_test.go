package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// enough is the timeout for steps that take seconds on an idle computer.
const enough = 4 * time.Minute

// scene is a test's part of a world: the name of its NodePool, GPUNodeClass, node class and namespace, and the value of the taint that keeps other pods out.
type scene struct {
	*world
	t    *testing.T
	name string
}

// scene creates the namespace and the cloud's node class. It removes what the test leaves behind unless the test failed.
func (w *world) scene(t *testing.T, name string, change ...func(spec map[string]any)) *scene {
	t.Helper()
	s := &scene{w, t, name}
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	s.nodeClass(name, change...)
	t.Cleanup(func() {
		if !t.Failed() {
			s.clear(context.WithoutCancel(t.Context()))
			return
		}
		for _, c := range s.claims() {
			if !c.deleting.IsZero() && s.karve != nil {
				t.Logf("the controller on the NodeClaim %s:\n%s", c.name, about(s.Log(s.karve.Name), c.name))
			}
		}
	})
	return s
}

func (s *scene) clear(ctx context.Context) {
	in, background := client.InNamespace(s.name), client.PropagationPolicy(metav1.DeletePropagationBackground)
	for _, o := range []client.Object{&appsv1.Deployment{}, &appsv1.DaemonSet{}, &corev1.Pod{}} {
		if err := s.api.DeleteAllOf(ctx, o, in, background); err != nil {
			s.t.Error(err)
		}
	}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if err := client.IgnoreNotFound(s.api.Delete(ctx, pool, background)); err != nil {
		s.t.Error(err)
	}
}

func (s *scene) create(o client.Object) {
	s.t.Helper()
	if err := s.api.Create(s.t.Context(), o); err != nil {
		s.t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

func (s *scene) patch(o client.Object, patch string) {
	s.t.Helper()
	if err := s.api.Patch(s.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		s.t.Fatalf("patching %T %s: %v", o, o.GetName(), err)
	}
}

func (s *scene) delete(o client.Object) {
	s.t.Helper()
	if err := s.api.Delete(s.t.Context(), o, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		s.t.Fatalf("deleting %T %s: %v", o, o.GetName(), err)
	}
}

// The cloud's node classes are Karpenter's own.
const (
	cloud     = "karpenter.k8s.aws"
	cloudKind = "EC2NodeClass"
)

// nodeClass creates the cloud's node class as a user does, with changes.
func (s *scene) nodeClass(name string, change ...func(spec map[string]any)) {
	s.t.Helper()
	ours := []any{map[string]any{"tags": map[string]any{"karpenter.sh/discovery": "karve"}}}
	spec := map[string]any{
		"amiSelectorTerms": []any{map[string]any{"alias": "al2023@latest"}}, "role": "KarpenterNodeRole-karve",
		"subnetSelectorTerms": ours, "securityGroupSelectorTerms": ours,
	}
	for _, f := range change {
		f(spec)
	}
	s.create(manifest(cloud+"/v1", cloudKind, name, spec))
}

// class creates the GPUNodeClass with ten replicas per GPU, with changes. In DRA mode it has backend DRA.
func (s *scene) class(idleAfter string, change ...func(*v1alpha1.GPUNodeClassSpec)) {
	s.t.Helper()
	c := &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef:  v1alpha1.NodeClassReference{Group: cloud, Kind: cloudKind, Name: s.name},
		Sharing:       v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10))},
		Consolidation: v1alpha1.Consolidation{IdleAfter: idleAfter},
	}}
	for _, f := range change {
		f(&c.Spec)
	}
	s.inMode(&c.Spec.Sharing)
	s.create(c)
}

// poolOptions are the differences from the default NodePool: a pool of Karve with on-demand g4dn, the scene's taint and a disruption budget of 100 %.
type poolOptions struct {
	name         string
	stock        bool
	requirements map[string]string // added or replaced, with values separated by commas; "" removes the key
	minValues    map[string]int64  // minValues by key
	labels       map[string]string
	taintKey     string // "none" for no taint
	limits       map[string]string
	budget       string
	// consolidateAfter is the NodePool's. If it is empty, Karve's pools have 0s.
	consolidateAfter string
}

// pool creates a NodePool. It is unstructured, so that unset fields are absent as in a user's manifest.
func (s *scene) pool(o poolOptions) {
	s.t.Helper()
	ref := map[string]any{"group": v1alpha1.Group, "kind": v1alpha1.Kind, "name": s.name}
	if o.stock {
		ref = map[string]any{"group": cloud, "kind": cloudKind, "name": s.name}
	}
	wanted := map[string]string{"karpenter.k8s.aws/instance-family": "g4dn", karpv1.CapacityTypeLabelKey: "on-demand"}
	maps.Copy(wanted, o.requirements)
	var requirements []any
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if wanted[key] != "" {
			var values []any
			for value := range strings.SplitSeq(wanted[key], ",") {
				values = append(values, value)
			}
			requirements = append(requirements, map[string]any{"key": key, "operator": "In", "values": values})
		}
	}
	for key, n := range o.minValues {
		requirements = append(requirements, map[string]any{"key": key, "operator": "Exists", "minValues": n})
	}
	spec := map[string]any{"nodeClassRef": ref, "requirements": requirements}
	if o.taintKey != "none" {
		spec["taints"] = []any{map[string]any{"key": or(o.taintKey, v1alpha1.ResourceGPUShared), "value": s.name, "effect": "NoSchedule"}}
	}
	template := map[string]any{"spec": spec}
	if o.labels != nil {
		template["metadata"] = map[string]any{"labels": o.labels}
	}
	np := map[string]any{"template": template}
	if o.limits != nil {
		np["limits"] = o.limits
	}
	switch {
	case !o.stock:
		np["disruption"] = map[string]any{
			"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": or(o.consolidateAfter, "0s"), "budgets": []any{map[string]any{"nodes": or(o.budget, "100%")}},
		}
	case o.consolidateAfter != "":
		np["disruption"] = map[string]any{"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": o.consolidateAfter}
	}
	s.create(manifest("karpenter.sh/v1", "NodePool", or(o.name, s.name), np))
}

func manifest(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	u.Object["spec"] = jsonable(spec)
	return u
}

// jsonable converts maps of strings to types that an unstructured object may hold.
func jsonable(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = jsonable(v[key])
		}
		return v
	case map[string]string:
		m := map[string]any{}
		for key, value := range v {
			m[key] = value
		}
		return m
	case []any:
		for i := range v {
			v[i] = jsonable(v[i])
		}
		return v
	}
	return v
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// podSpec returns the spec of a pod that requests one replica and tolerates the scene's taint, with changes.
func (s *scene) podSpec(change ...func(*corev1.PodSpec)) corev1.PodSpec {
	spec := corev1.PodSpec{
		Tolerations: []corev1.Toleration{{Key: v1alpha1.ResourceGPUShared, Value: s.name, Effect: corev1.TaintEffectNoSchedule}},
		Containers: []corev1.Container{{
			Name: "main", Image: "example.com/nothing",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("300m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
				Limits:   corev1.ResourceList{v1alpha1.ResourceGPUShared: resource.MustParse("1")},
			},
		}},
		TerminationGracePeriodSeconds: new(int64(1)),
	}
	for _, f := range change {
		f(&spec)
	}
	if q := spec.Containers[0].Resources.Limits[v1alpha1.ResourceGPUShared]; draMode && q.Value() > 1 {
		s.t.Skip("A container that requests several replicas of a GPU needs backend DevicePlugin")
	}
	return spec
}

// asks sets the GPU resource of a pod to an amount of one resource.
func asks(name corev1.ResourceName, amount string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse(amount)}
	}
}

func tolerates(key, value string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

func selects(key, value string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) { spec.NodeSelector = map[string]string{key: value} }
}

func (s *scene) pod(name string, change ...func(*corev1.PodSpec)) {
	s.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name, Labels: map[string]string{"app": name}}, Spec: s.podSpec(change...)}
	s.create(pod)
}

func (s *scene) deploy(name string, n int32, change ...func(*corev1.PodSpec)) *appsv1.Deployment {
	s.t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(n), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: s.podSpec(change...)},
		},
	}
	s.create(d)
	return d
}

func (s *scene) scale(d *appsv1.Deployment, n int32) {
	s.t.Helper()
	s.patch(d, fmt.Sprintf(`{"spec":{"replicas":%d}}`, n))
}

// until waits until look reports true. look also describes the current state, for the failure message. until returns how long it waited.
func (s *scene) until(within time.Duration, what string, look func() (is bool, now string)) time.Duration {
	s.t.Helper()
	began, now := time.Now(), ""
	for {
		var is bool
		if is, now = look(); is {
			return time.Since(began)
		}
		if time.Since(began) > within {
			s.t.Fatalf("%s: not within %s; it is: %s\n%s", what, within, now, s.dump())
		}
		select {
		case <-s.t.Context().Done():
			s.t.Fatalf("%s: the test was ended; it is: %s", what, now)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stays fails if look reports false within the time.
func (s *scene) stays(during time.Duration, what string, look func() (is bool, now string)) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < during; time.Sleep(100 * time.Millisecond) {
		if is, now := look(); !is {
			s.t.Fatalf("%s: no more after %s; it is: %s\n%s", what, time.Since(began), now, s.dump())
		}
	}
}

// untilRunning waits until exactly n pods of the namespace exist and all of them run.
func (s *scene) untilRunning(n int) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("%d pods run", n), func() (bool, string) {
		running, all := s.running(), len(s.pods())
		return running == n && all == n, fmt.Sprintf("%d of %d run", running, all)
	})
}

func (s *scene) running() int {
	n := 0
	for _, pod := range s.pods() {
		if pod.Status.Phase == corev1.PodRunning {
			n++
		}
	}
	return n
}

func (s *scene) pods() []corev1.Pod {
	var list corev1.PodList
	s.list(&list, client.InNamespace(s.name))
	return list.Items
}

// nodes returns the nodes of a pool, sorted by name.
func (s *scene) nodes(pool string) []corev1.Node {
	var list corev1.NodeList
	s.list(&list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})
	slices.SortFunc(list.Items, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return list.Items
}

func (s *scene) list(list client.ObjectList, o ...client.ListOption) {
	if err := s.seen.List(s.t.Context(), list, o...); err != nil {
		s.t.Fatalf("listing %T: %v", list, err)
	}
}

// claims returns all claims that the scene's pool ever had.
func (s *scene) claims() []claim { return s.history.claimsOf(s.name) }

// untilGone waits until the pool has no NodeClaims and no Nodes.
func (s *scene) untilGone(pool string) {
	s.t.Helper()
	s.until(enough, "the machines of "+pool+" are gone", func() (bool, string) {
		left := 0
		for _, c := range s.history.claimsOf(pool) {
			if c.gone.IsZero() {
				left++
			}
		}
		nodes := len(s.nodes(pool))
		return left == 0 && nodes == 0, fmt.Sprintf("%d claims, %d nodes", left, nodes)
	})
}

// cheapest is the cheapest instance type with a GPU. For the pods of these tests it is also the cheapest per replica.
const cheapest = "g4dn.xlarge"

// wantClaims fails unless there are n claims, all of the cheapest type, with the given total price in micro-dollars per hour.
func (s *scene) wantClaims(got []claim, n int, capacityType string, price int64) {
	s.t.Helper()
	bad := len(got) != n || total(got) != price
	for _, c := range got {
		bad = bad || c.instanceType != cheapest || c.capacityType != capacityType
	}
	if bad {
		s.t.Errorf("claims cost %d micro-USD an hour, want %d × %s %s for %d:\n%s", total(got), n, capacityType, cheapest, price, lines(got))
	}
}

func lines(claims []claim) string {
	var b strings.Builder
	for i := range claims {
		fmt.Fprintf(&b, "  %s\n", &claims[i])
	}
	return b.String()
}

// nodePool returns the pool; an empty one if it does not exist.
func (s *scene) nodePool(name string) *karpv1.NodePool {
	np := &karpv1.NodePool{}
	if err := client.IgnoreNotFound(s.seen.Get(s.t.Context(), client.ObjectKey{Name: name}, np)); err != nil {
		s.t.Fatal(err)
	}
	return np
}

// untilCondition waits until a NodePool's condition has the status, and its reason and message contain all the words.
func (s *scene) untilCondition(pool, conditionType, status string, words ...string) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("condition %s of NodePool %s is %s", conditionType, pool, status), func() (bool, string) {
		c := facts.Condition(s.nodePool(pool).Status.Conditions, conditionType)
		if c == nil {
			return false, "not there"
		}
		now := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
		return string(c.Status) == status && containsAll(now, words), now
	})
}

func containsAll(message string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(message, w) })
}

// events returns the reasons and notes of the events about an object.
func (s *scene) events(kind, name string) []string {
	var list eventsv1.EventList
	s.list(&list)
	var notes []string
	for i := range list.Items {
		e := &list.Items[i]
		if e.Regarding.Kind == kind && e.Regarding.Name == name && (e.Regarding.Namespace == "" || e.Regarding.Namespace == s.name) {
			notes = append(notes, e.Reason+": "+e.Note)
		}
	}
	slices.Sort(notes)
	return notes
}

// untilEvent waits for an event about an object that has the reason and contains all the words.
func (s *scene) untilEvent(kind, name, reason string, words ...string) {
	s.t.Helper()
	s.until(enough, fmt.Sprintf("an event %s about %s %s that says %q", reason, kind, name, words), func() (bool, string) {
		notes := s.events(kind, name)
		return slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, reason+": ") && containsAll(n, words) }), strings.Join(notes, "\n")
	})
}

// dump returns the state of the scene for failure messages.
func (s *scene) dump() string {
	var b strings.Builder
	fmt.Fprintf(&b, "claims of pool %s:\n%s", s.name, lines(s.claims()))
	for _, n := range s.nodes(s.name) {
		fmt.Fprintf(&b, "node %s has %s; taints:", n.Name, exposed(&n))
		for _, t := range n.Spec.Taints {
			fmt.Fprintf(&b, " %s", t.Key)
		}
		for _, key := range []string{v1alpha1.IdleSinceAnnotation, v1alpha1.DisruptingSinceAnnotation, karpv1.DoNotDisruptAnnotationKey} {
			if value, ok := n.Annotations[key]; ok {
				fmt.Fprintf(&b, ", %s: %s", key, value)
			}
		}
		fmt.Fprintln(&b)
	}
	for _, c := range s.nodePool(s.name).Status.Conditions {
		fmt.Fprintf(&b, "condition %s of pool %s: %s %s: %s\n", c.Type, s.name, c.Status, c.Reason, c.Message)
	}
	shown := 0
	for _, pod := range s.pods() {
		if pod.Status.Phase != corev1.PodRunning && shown < 3 {
			shown++
			fmt.Fprintf(&b, "pod %s is %s on %q: %s\n", pod.Name, pod.Status.Phase, pod.Spec.NodeName, strings.Join(s.events("Pod", pod.Name), "\n  "))
		}
	}
	if s.karve != nil {
		fmt.Fprintf(&b, "the controller's log:\n%s", tail(s.Log(s.karve.Name), s.name))
	}
	return b.String()
}

// exposed says how much a node has of the resource that it promises.
func exposed(n *corev1.Node) string {
	promise := facts.PromiseOf(n.Annotations)
	has := n.Status.Allocatable[promise.Resource]
	return fmt.Sprintf("%s of %d %s", &has, promise.Replicas(), promise.Resource)
}

// tail returns the last lines of a log that contain the name, and the last lines of all.
func tail(path, name string) string {
	return about(path, name) + "\n…\n" + last(8, linesOf(path)) + "\n"
}

// about returns the last lines of a log that contain the name.
func about(path, name string) string {
	return last(25, slices.DeleteFunc(linesOf(path), func(l string) bool { return !strings.Contains(l, name) }))
}

// linesOf returns the lines of a log without those about events.
func linesOf(path string) []string {
	log, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	all := strings.Split(strings.TrimSpace(string(log)), "\n")
	return slices.DeleteFunc(all, func(l string) bool { return strings.Contains(l, `"logger":"events"`) })
}

func last(n int, lines []string) string { return strings.Join(lines[max(0, len(lines)-n):], "\n") }
