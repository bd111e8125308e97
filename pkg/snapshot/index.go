package snapshot

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/nodecontract"
)

// Index holds the objects of which a cluster may have thousands, keyed for lookups. It is immutable: With returns a new one, which shares the unchanged
// parts. So the cost of a change does not depend on the size of the cluster, and a decision reads an Index without copying or locking it. Results that
// are computed for a node or a machine are cached with it.
type Index struct {
	pods  table[*corev1.Pod]
	nodes table[*site]
	// providers has the sorted names of the nodes with a provider ID.
	providers table[[]string]
	// gpus has the nodes that have a GPU resource.
	gpus table[*site]
	// pending has the pods that are not bound. ended has the Jobs' pods that have succeeded.
	pending, ended table[*corev1.Pod]
	// kin has the pods that rules of other pods count, by namespace. repelling has those of them with anti-affinity.
	kin       table[[]*kin]
	repelling table[*kin]
	// holders has the bound pods that request a GPU resource, by their text (Content).
	holders table[*holders]
	claims  table[*karpv1.NodeClaim]
	// ours and canaries are Karve's NodeClaims, sorted by name.
	ours, canaries []*claimed
	volumeClaims   table[*corev1.PersistentVolumeClaim]
	volumes        table[*corev1.PersistentVolume]
	csiNodes       table[*storagev1.CSINode]
}

// Changes has the changed objects in their current state, by name or namespace/name. A deleted object is nil.
type Changes struct {
	Pods                   map[string]*corev1.Pod
	Nodes                  map[string]*corev1.Node
	NodeClaims             map[string]*karpv1.NodeClaim
	PersistentVolumeClaims map[string]*corev1.PersistentVolumeClaim
	PersistentVolumes      map[string]*corev1.PersistentVolume
	CSINodes               map[string]*storagev1.CSINode
}

// site is a node with the pods that are bound to it.
type site struct {
	name string
	// node is nil if pods are bound to a node that does not exist.
	node *corev1.Node
	// pods have not ended. They are sorted by name.
	pods []*corev1.Pod
	// heard is the time of the latest heartbeat of the node.
	heard time.Time
	once  sync.Once
	inUse use
	// room is for the room of the node.
	room Slot
}

// kin are running pods of one namespace with the same labels and required anti-affinity.
type kin struct {
	key string
	// pod is any of these pods, which may be gone by now.
	pod *corev1.Pod
	// on has the number of pods by node.
	on tally
	// terms is for the terms of their required anti-affinity.
	terms *Slot
}

// holders are bound pods with the same text (Content).
type holders struct {
	pod *corev1.Pod
	on  tally
}

// tally has the number of pods by node.
type tally struct {
	// numbers are sorted by node.
	numbers []number
	// by is the edit that created the tally. Only that edit may change it.
	by *editID
}

type number struct {
	node string
	pods int
}

// editID identifies an edit by its address.
type editID struct{ _ byte }

// claimed is one of Karve's NodeClaims.
type claimed struct {
	claim *karpv1.NodeClaim
	// machine is for the machine of the NodeClaim.
	machine Slot
}

// Indexed returns the index of a cluster. If the cluster has none, it makes one from the objects.
func (c *Cluster) Indexed() *Index {
	if c.Index != nil {
		return c.Index
	}
	x, _ := (*Index)(nil).With(Changes{
		Pods: byName(c.Pods, PodName), Nodes: byName(c.Nodes, (*corev1.Node).GetName), NodeClaims: byName(c.NodeClaims, (*karpv1.NodeClaim).GetName),
		PersistentVolumeClaims: byName(c.PersistentVolumeClaims, func(o *corev1.PersistentVolumeClaim) string { return o.Namespace + "/" + o.Name }),
		PersistentVolumes:      byName(c.PersistentVolumes, (*corev1.PersistentVolume).GetName), CSINodes: byName(c.CSINodes, (*storagev1.CSINode).GetName),
	})
	return x
}

func byName[T any](all []T, name func(*T) string) map[string]*T {
	named := make(map[string]*T, len(all))
	for i := range all {
		named[name(&all[i])] = &all[i]
	}
	return named
}

// Difference reports which objects differ between two indexes, as far as decisions are concerned.
type Difference struct {
	// Machines covers Nodes and NodeClaims, and Others all other objects.
	Machines, Others bool
}

// Any reports whether there is any difference.
func (d Difference) Any() bool { return d.Machines || d.Others }

// With returns the index after changes, and how it differs.
func (x *Index) With(c Changes) (after *Index, d Difference) {
	after = &Index{}
	if x != nil {
		*after = *x
	}
	e := indexEdit{
		pods: editOf(after.pods), nodes: editOf(after.nodes), providers: editOf(after.providers), gpus: editOf(after.gpus), pending: editOf(after.pending),
		ended: editOf(after.ended), kin: editOf(after.kin), repelling: editOf(after.repelling), holders: editOf(after.holders), touched: map[string]*site{},
		id: &editID{},
	}
	for name, node := range c.Nodes {
		d.Machines = d.Machines || differ(e.site(name).node, node)
		e.setNode(name, node)
	}
	for _, p := range byNode(c.Pods) {
		if p.pod != nil {
			p.pod = withinBounds(p.pod)
		}
		d.Others = d.Others || differ(e.pods.get(p.key), p.pod)
		e.setPod(p.key, p.pod)
	}
	e.finish()
	after.pods, after.nodes, after.providers, after.gpus, after.pending = e.pods.table, e.nodes.table, e.providers.table, e.gpus.table, e.pending.table
	after.ended, after.kin, after.repelling, after.holders = e.ended.table, e.kin.table, e.repelling.table, e.holders.table
	after.ours, after.canaries = withClaims(after.ours, c.NodeClaims, IsOurClaim), withClaims(after.canaries, c.NodeClaims, IsCanary)
	d.Machines = with(&after.claims, c.NodeClaims) || d.Machines
	d.Others = with(&after.volumeClaims, c.PersistentVolumeClaims) || d.Others
	d.Others = with(&after.volumes, c.PersistentVolumes) || d.Others
	d.Others = with(&after.csiNodes, c.CSINodes) || d.Others
	return after, d
}

// keyed is a pod with its key. The pod is nil if it was deleted.
type keyed struct {
	key, node string
	pod       *corev1.Pod
}

// byNode returns pods sorted by node and key, so that they are appended to lists that are sorted by node. With 50,000 nodes, inserting anywhere in such
// lists took most of the time of a first index.
func byNode(pods map[string]*corev1.Pod) []keyed {
	all := make([]keyed, 0, len(pods))
	for key, pod := range pods {
		k := keyed{key: key, pod: pod}
		if pod != nil {
			k.node = pod.Spec.NodeName
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b keyed) int { return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.key, b.key)) })
	return all
}

// with changes a table, and reports whether the change can affect decisions.
func with[T any, P interface {
	*T
	metav1.Object
}](t *table[P], changes map[string]P) (differs bool) {
	e := editOf(*t)
	for key, o := range changes {
		differs = differs || differ(e.get(key), o)
		if o == nil {
			e.remove(key)
		} else {
			e.set(key, o)
		}
	}
	*t = e.table
	return differs
}

func withClaims(before []*claimed, changes map[string]*karpv1.NodeClaim, wanted func(*karpv1.NodeClaim) bool) []*claimed {
	var more []*claimed
	for _, claim := range changes {
		if claim != nil && wanted(claim) {
			more = append(more, &claimed{claim: claim})
		}
	}
	gone := func(c *claimed) bool { _, ok := changes[c.claim.Name]; return ok }
	if len(more) == 0 && !slices.ContainsFunc(before, gone) {
		return before
	}
	after := slices.Concat(slices.DeleteFunc(slices.Clone(before), gone), more)
	slices.SortFunc(after, func(a, b *claimed) int { return strings.Compare(a.claim.Name, b.claim.Name) })
	return after
}

// indexEdit is an index under construction.
type indexEdit struct {
	pods      *edit[*corev1.Pod]
	nodes     *edit[*site]
	providers *edit[[]string]
	gpus      *edit[*site]
	pending   *edit[*corev1.Pod]
	ended     *edit[*corev1.Pod]
	kin       *edit[[]*kin]
	repelling *edit[*kin]
	holders   *edit[*holders]
	// touched has the sites that were copied, so that they may be changed.
	touched map[string]*site
	id      *editID
}

// site returns the site of a node, which may be changed.
func (e *indexEdit) site(name string) *site {
	if s := e.touched[name]; s != nil {
		return s
	}
	s := &site{name: name}
	if was := e.nodes.get(name); was != nil {
		s.node, s.pods = was.node, slices.Clone(was.pods)
	}
	e.touched[name] = s
	return s
}

func (e *indexEdit) setNode(name string, node *corev1.Node) {
	s := e.site(name)
	if s.node != nil && s.node.Spec.ProviderID != "" {
		id := s.node.Spec.ProviderID
		if names := slices.DeleteFunc(slices.Clone(e.providers.get(id)), func(n string) bool { return n == name }); len(names) > 0 {
			e.providers.set(id, names)
		} else {
			e.providers.remove(id)
		}
	}
	if s.node = node; node != nil && node.Spec.ProviderID != "" {
		names := append(slices.Clone(e.providers.get(node.Spec.ProviderID)), name)
		slices.Sort(names)
		e.providers.set(node.Spec.ProviderID, names)
	}
}

func (e *indexEdit) setPod(key string, pod *corev1.Pod) {
	if before := e.pods.get(key); before != nil {
		e.removePod(key, before)
	}
	if pod == nil {
		e.pods.remove(key)
		return
	}
	e.pods.set(key, pod)
	e.addPod(key, pod)
}

// A pod is in each part of the index to which it belongs. removePod removes exactly what addPod adds.

func (e *indexEdit) addPod(key string, pod *corev1.Pod) {
	switch {
	case karpenter.IsTerminal(pod):
		if completes(pod) {
			e.ended.set(key, pod)
		}
		return
	case pod.Spec.NodeName == "":
		e.pending.set(key, pod)
		return
	}
	s := e.site(pod.Spec.NodeName)
	at, _ := slices.BinarySearchFunc(s.pods, pod, comparePods)
	s.pods = slices.Insert(s.pods, at, pod)
	if claims.RequestsGPU(&pod.Spec) {
		text := Content(pod)
		h := holders{pod: pod}
		if known := e.holders.get(text); known != nil {
			h = *known
		}
		h.on = e.added(h.on, pod.Spec.NodeName, 1)
		e.holders.set(text, &h)
	}
	if isCounted(pod) {
		e.countSiblings(pod, 1)
	}
}

func (e *indexEdit) removePod(key string, pod *corev1.Pod) {
	switch {
	case karpenter.IsTerminal(pod):
		if completes(pod) {
			e.ended.remove(key)
		}
		return
	case pod.Spec.NodeName == "":
		e.pending.remove(key)
		return
	}
	s := e.site(pod.Spec.NodeName)
	s.pods = slices.DeleteFunc(s.pods, func(p *corev1.Pod) bool { return p == pod })
	if claims.RequestsGPU(&pod.Spec) {
		text := Content(pod)
		h := *e.holders.get(text)
		if h.on = e.added(h.on, pod.Spec.NodeName, -1); len(h.on.numbers) > 0 {
			e.holders.set(text, &h)
		} else {
			e.holders.remove(text)
		}
	}
	if isCounted(pod) {
		e.countSiblings(pod, -1)
	}
}

// isCounted reports whether rules of other pods count a pod if its node exists. As in Karpenter, a pod that is being deleted does not count, because
// its place will become free.
func isCounted(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.DeletionTimestamp.IsZero() && !karpenter.IsTerminal(pod)
}

// completes reports whether a pod shows how long the pods of its Job take.
func completes(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return pod.Status.Phase == corev1.PodSucceeded && owner != nil && owner.Kind == "Job" && owner.APIVersion == "batch/v1"
}

// countSiblings adds more to the number of a pod's kin on its node.
func (e *indexEdit) countSiblings(pod *corev1.Pod, more int) {
	key, repels := kinKey(pod), len(requiredAntiAffinity(pod)) > 0
	all := e.kin.get(pod.Namespace)
	at, known := slices.BinarySearchFunc(all, key, func(k *kin, key string) int { return strings.Compare(k.key, key) })
	k := &kin{key: key, pod: pod, terms: &Slot{}}
	if known {
		*k = *all[at]
	}
	k.on = e.added(k.on, pod.Spec.NodeName, more)
	switch gone := len(k.on.numbers) == 0; {
	case gone:
		all = slices.Delete(slices.Clone(all), at, at+1)
	case known:
		all = slices.Clone(all)
		all[at] = k
	default:
		all = slices.Insert(slices.Clone(all), at, k)
	}
	if len(all) > 0 {
		e.kin.set(pod.Namespace, all)
	} else {
		e.kin.remove(pod.Namespace)
	}
	switch {
	case !repels:
	case len(k.on.numbers) > 0:
		e.repelling.set(pod.Namespace+"\x00"+key, k)
	default:
		e.repelling.remove(pod.Namespace + "\x00" + key)
	}
}

// kinKey is equal for pods of a namespace with the same labels and required anti-affinity.
func kinKey(pod *corev1.Pod) string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		b.WriteString(key)
		b.WriteByte('=')
		b.WriteString(pod.Labels[key])
		b.WriteByte(0)
	}
	for _, term := range requiredAntiAffinity(pod) {
		b.WriteByte(1)
		b.WriteString(term.String())
	}
	return b.String()
}

func requiredAntiAffinity(pod *corev1.Pod) []corev1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// added returns the tally with more additional pods on a node.
func (e *indexEdit) added(t tally, node string, more int) tally {
	if t.by != e.id {
		t = tally{slices.Clone(t.numbers), e.id}
	}
	at, ok := slices.BinarySearchFunc(t.numbers, node, func(n number, node string) int { return strings.Compare(n.node, node) })
	switch {
	case !ok:
		t.numbers = slices.Insert(t.numbers, at, number{node, more})
	case t.numbers[at].pods+more == 0:
		t.numbers = slices.Delete(t.numbers, at, at+1)
	default:
		t.numbers[at].pods += more
	}
	return t
}

// finish puts the changed sites in place.
func (e *indexEdit) finish() {
	for name, s := range e.touched {
		if s.node == nil && len(s.pods) == 0 {
			e.nodes.remove(name)
			e.gpus.remove(name)
			continue
		}
		s.heard = heartbeat(s.node)
		e.nodes.set(name, s)
		if s.node != nil && gpuOf(s.node) != "" {
			e.gpus.set(name, s)
		} else {
			e.gpus.remove(name)
		}
	}
}

// heartbeat returns the time of the latest heartbeat of a Node.
func heartbeat(node *corev1.Node) time.Time {
	var last time.Time
	if node == nil {
		return last
	}
	for i := range node.Status.Conditions {
		if at := node.Status.Conditions[i].LastHeartbeatTime.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// site returns a node with its pods, or nil if there is no such Node.
func (x *Index) site(name string) *site {
	if s := x.nodes.get(name); s != nil && s.node != nil {
		return s
	}
	return nil
}

// siteOf returns the node of a NodeClaim with its pods, or nil if it has none.
func (x *Index) siteOf(claim *karpv1.NodeClaim) *site {
	if s := x.site(claim.Status.NodeName); s != nil || claim.Status.ProviderID == "" {
		return s
	}
	if names := x.providers.get(claim.Status.ProviderID); len(names) > 0 {
		return x.site(names[0])
	}
	return nil
}

// Node returns a Node with the pods that are bound to it and have not ended, sorted by name. The Node is nil if it does not exist.
func (x *Index) Node(name string) (*corev1.Node, []*corev1.Pod) {
	if s := x.nodes.get(name); s != nil {
		return s.node, s.pods
	}
	return nil, nil
}

// NodeOf returns the Node with a provider ID, or nil if there is none.
func (x *Index) NodeOf(providerID string) *corev1.Node {
	for _, name := range x.providers.get(providerID) {
		return x.site(name).node
	}
	return nil
}

// AllNodes returns all Nodes, in no order.
func (x *Index) AllNodes() iter.Seq[*corev1.Node] {
	return func(yield func(*corev1.Node) bool) {
		for s := range x.sites() {
			if !yield(s.node) {
				return
			}
		}
	}
}

// Used returns all Nodes with the total requests of their pods in the planner's units, where each pod counts as one of the resource pods. They are in no
// order.
func (x *Index) Used() iter.Seq2[*corev1.Node, map[corev1.ResourceName]int64] {
	return func(yield func(*corev1.Node, map[corev1.ResourceName]int64) bool) {
		for s := range x.sites() {
			if !yield(s.node, s.use().all.all()) {
				return
			}
		}
	}
}

func (x *Index) sites() iter.Seq[*site] {
	return func(yield func(*site) bool) {
		for _, s := range x.nodes.all() {
			if s.node != nil && !yield(s) {
				return
			}
		}
	}
}

// LastHeartbeat returns the time of the latest heartbeat of any Node.
func (x *Index) LastHeartbeat() time.Time {
	var last time.Time
	for s := range x.sites() {
		if s.heard.After(last) {
			last = s.heard
		}
	}
	return last
}

// NodeClaim returns the NodeClaim with a name, or nil if there is none.
func (x *Index) NodeClaim(name string) *karpv1.NodeClaim { return x.claims.get(name) }

// HasNodeClaim reports whether there is a NodeClaim with a name.
func (x *Index) HasNodeClaim(name string) bool { return x.claims.get(name) != nil }

// NodeClaims returns all NodeClaims, in no order.
func (x *Index) NodeClaims() iter.Seq2[string, *karpv1.NodeClaim] { return x.claims.all() }

// Pod returns the pod with a name, which is namespace/name, or nil if there is none.
func (x *Index) Pod(name string) *corev1.Pod { return x.pods.get(name) }

// Pending returns the pods that are not bound to a node and have not ended, sorted by name.
func (x *Index) Pending() []*corev1.Pod { return sortedPods(x.pending) }

// Ended returns the pods of Jobs that have succeeded, in no order.
func (x *Index) Ended() iter.Seq2[string, *corev1.Pod] { return x.ended.all() }

// VolumeClaim returns the PersistentVolumeClaim with a name, which is namespace/name, or nil if there is none.
func (x *Index) VolumeClaim(name string) *corev1.PersistentVolumeClaim {
	return x.volumeClaims.get(name)
}

// Volume returns the PersistentVolume with a name, or nil if there is none.
func (x *Index) Volume(name string) *corev1.PersistentVolume { return x.volumes.get(name) }

// CSINode returns the CSINode with a name, or nil if there is none.
func (x *Index) CSINode(name string) *storagev1.CSINode { return x.csiNodes.get(name) }

// CSINodes returns all CSINodes, in no order.
func (x *Index) CSINodes() iter.Seq2[string, *storagev1.CSINode] { return x.csiNodes.all() }

// unbound returns the pods that are not bound to a node and have not ended, in no order.
func (x *Index) unbound() iter.Seq2[string, *corev1.Pod] { return x.pending.all() }

// withGPU returns the nodes that have a GPU resource, by name, in no order.
func (x *Index) withGPU() iter.Seq2[string, *site] { return x.gpus.all() }

// bound returns the bound pods that request a GPU resource, one of each text (Content), in no order.
func (x *Index) bound() iter.Seq2[string, *holders] { return x.holders.all() }

// repellers returns the kin with required anti-affinity, in no order.
func (x *Index) repellers() iter.Seq2[string, *kin] { return x.repelling.all() }

// kinIn returns the kin in the namespaces, in no order. Nil means all namespaces.
func (x *Index) kinIn(namespaces []string) iter.Seq[*kin] {
	return func(yield func(*kin) bool) {
		in := func(all []*kin) bool { return !slices.ContainsFunc(all, func(k *kin) bool { return !yield(k) }) }
		if namespaces == nil {
			for _, all := range x.kin.all() {
				if !in(all) {
					return
				}
			}
			return
		}
		for _, namespace := range namespaces {
			if !in(x.kin.get(namespace)) {
				return
			}
		}
	}
}

// claimed returns Karve's NodeClaims, sorted by name, and those of canaries.
func (x *Index) claimed() (ours, canaries []*claimed) { return x.ours, x.canaries }

func sortedPods(t table[*corev1.Pod]) []*corev1.Pod {
	pods := make([]*corev1.Pod, 0, t.size)
	for _, pod := range t.all() {
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, comparePods)
	return pods
}

// gpuOf returns the GPU resource that a Node has, or "" if it has none. If it has several, it is the whole GPU, or else the renamed one, or else the
// first.
func gpuOf(node *corev1.Node) corev1.ResourceName {
	for _, gpu := range []corev1.ResourceName{v1alpha1.ResourceGPU, v1alpha1.ResourceGPUShared} {
		if valueOf(node.Status.Allocatable, gpu) > 0 {
			return gpu
		}
	}
	for _, name := range slices.Sorted(maps.Keys(node.Status.Allocatable)) {
		if nodecontract.IsGPUResource(string(name)) && valueOf(node.Status.Allocatable, name) > 0 {
			return name
		}
	}
	return ""
}
