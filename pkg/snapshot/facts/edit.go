package facts

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/karpenter"
)

// Changes has the changed objects in their current state, by name or namespace/name. A deleted object is nil.
type Changes struct {
	Pods                   map[string]*corev1.Pod
	Nodes                  map[string]*corev1.Node
	NodeClaims             map[string]*karpv1.NodeClaim
	PersistentVolumeClaims map[string]*corev1.PersistentVolumeClaim
	PersistentVolumes      map[string]*corev1.PersistentVolume
	CSINodes               map[string]*storagev1.CSINode
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
		ended: editOf(after.ended), kin: editOf(after.kin), repelling: editOf(after.repelling), holders: editOf(after.holders), members: editOf(after.members), touched: map[string]*Site{},
		id: &editID{},
	}
	for name, node := range c.Nodes {
		d.Machines = d.Machines || differ(e.editableSite(name).Node, node)
		e.setNode(name, node)
	}
	for _, p := range podsByNode(c.Pods) {
		if p.pod != nil {
			p.pod = Bounded(p.pod)
		}
		d.Others = d.Others || differ(e.pods.get(p.key), p.pod)
		e.setPod(p.key, p.pod)
	}
	e.putSites()
	after.pods, after.nodes, after.providers, after.gpus, after.pending = e.pods.table, e.nodes.table, e.providers.table, e.gpus.table, e.pending.table
	after.ended, after.kin, after.repelling, after.holders, after.members = e.ended.table, e.kin.table, e.repelling.table, e.holders.table, e.members.table
	after.ours, after.canaries = updateClaimed(after.ours, c.NodeClaims, IsOurClaim), updateClaimed(after.canaries, c.NodeClaims, IsCanary)
	d.Machines = applyChanges(&after.claims, c.NodeClaims) || d.Machines
	d.Others = applyChanges(&after.volumeClaims, c.PersistentVolumeClaims) || d.Others
	d.Others = applyChanges(&after.volumes, c.PersistentVolumes) || d.Others
	d.Others = applyChanges(&after.csiNodes, c.CSINodes) || d.Others
	return after, d
}

// keyedPod is a pod with its key. The pod is nil if it was deleted.
type keyedPod struct {
	key, node string
	pod       *corev1.Pod
}

// podsByNode returns pods sorted by node and key, so that they are appended to lists that are sorted by node. With 50,000 nodes, inserting anywhere in such
// lists took most of the time of a first index.
func podsByNode(pods map[string]*corev1.Pod) []keyedPod {
	all := make([]keyedPod, 0, len(pods))
	for key, pod := range pods {
		k := keyedPod{key: key, pod: pod}
		if pod != nil {
			k.node = pod.Spec.NodeName
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b keyedPod) int { return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.key, b.key)) })
	return all
}

// applyChanges changes a table, and reports whether the change can affect decisions.
func applyChanges[T any, P interface {
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

func updateClaimed(before []*Claimed, changes map[string]*karpv1.NodeClaim, wanted func(*karpv1.NodeClaim) bool) []*Claimed {
	var more []*Claimed
	for _, claim := range changes {
		if claim != nil && wanted(claim) {
			more = append(more, &Claimed{Claim: claim})
		}
	}
	gone := func(c *Claimed) bool { _, ok := changes[c.Claim.Name]; return ok }
	if len(more) == 0 && !slices.ContainsFunc(before, gone) {
		return before
	}
	after := slices.Concat(slices.DeleteFunc(slices.Clone(before), gone), more)
	slices.SortFunc(after, func(a, b *Claimed) int { return strings.Compare(a.Claim.Name, b.Claim.Name) })
	return after
}

// indexEdit is an index under construction.
type indexEdit struct {
	pods      *edit[*corev1.Pod]
	nodes     *edit[*Site]
	providers *edit[[]string]
	gpus      *edit[*Site]
	pending   *edit[*corev1.Pod]
	ended     *edit[*corev1.Pod]
	kin       *edit[[]*Kin]
	repelling *edit[*Kin]
	holders   *edit[*Holders]
	members   *edit[*memberSet]
	// touched has the sites that were copied, so that they may be changed.
	touched map[string]*Site
	id      *editID
}

// editableSite returns the site of a node, which may be changed.
func (e *indexEdit) editableSite(name string) *Site {
	if s := e.touched[name]; s != nil {
		return s
	}
	s := &Site{Name: name}
	if was := e.nodes.get(name); was != nil {
		s.Node, s.Pods = was.Node, slices.Clone(was.Pods)
	}
	e.touched[name] = s
	return s
}

func (e *indexEdit) setNode(name string, node *corev1.Node) {
	s := e.editableSite(name)
	if s.Node != nil && s.Node.Spec.ProviderID != "" {
		id := s.Node.Spec.ProviderID
		if names := slices.DeleteFunc(slices.Clone(e.providers.get(id)), func(n string) bool { return n == name }); len(names) > 0 {
			e.providers.set(id, names)
		} else {
			e.providers.remove(id)
		}
	}
	if s.Node = node; node != nil && node.Spec.ProviderID != "" {
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
	e.setMember(key, pod, true)
	switch {
	case karpenter.IsTerminal(pod):
		if showsDuration(pod) {
			e.ended.set(key, pod)
		}
		return
	case pod.Spec.NodeName == "":
		e.pending.set(key, pod)
		return
	}
	s := e.editableSite(pod.Spec.NodeName)
	at, _ := slices.BinarySearchFunc(s.Pods, pod, ComparePods)
	s.Pods = slices.Insert(s.Pods, at, pod)
	if claims.RequestsGPU(&pod.Spec) {
		text := Content(pod)
		h := Holders{Pod: pod}
		if known := e.holders.get(text); known != nil {
			h = *known
		}
		h.On = e.addToTally(h.On, pod.Spec.NodeName, 1)
		e.holders.set(text, &h)
	}
	if IsCounted(pod) {
		e.countSiblings(pod, 1)
	}
}

func (e *indexEdit) removePod(key string, pod *corev1.Pod) {
	e.setMember(key, pod, false)
	switch {
	case karpenter.IsTerminal(pod):
		if showsDuration(pod) {
			e.ended.remove(key)
		}
		return
	case pod.Spec.NodeName == "":
		e.pending.remove(key)
		return
	}
	s := e.editableSite(pod.Spec.NodeName)
	s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p == pod })
	if claims.RequestsGPU(&pod.Spec) {
		text := Content(pod)
		h := *e.holders.get(text)
		if h.On = e.addToTally(h.On, pod.Spec.NodeName, -1); len(h.On.Numbers) > 0 {
			e.holders.set(text, &h)
		} else {
			e.holders.remove(text)
		}
	}
	if IsCounted(pod) {
		e.countSiblings(pod, -1)
	}
}

// countSiblings adds more to the number of a pod's kin on its node.
func (e *indexEdit) countSiblings(pod *corev1.Pod, more int) {
	key, repels := KinKey(pod), len(requiredAntiAffinity(pod)) > 0
	all := e.kin.get(pod.Namespace)
	at, known := slices.BinarySearchFunc(all, key, func(k *Kin, key string) int { return strings.Compare(k.Key, key) })
	k := &Kin{Key: key, Pod: pod}
	if known {
		*k = *all[at]
	}
	k.On = e.addToTally(k.On, pod.Spec.NodeName, more)
	switch gone := len(k.On.Numbers) == 0; {
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
	case len(k.On.Numbers) > 0:
		e.repelling.set(pod.Namespace+"\x00"+key, k)
	default:
		e.repelling.remove(pod.Namespace + "\x00" + key)
	}
}

// KinKey is equal for pods of a namespace with the same labels and required anti-affinity.
func KinKey(pod *corev1.Pod) string {
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

// addToTally returns the tally with more additional pods on a node.
func (e *indexEdit) addToTally(t Tally, node string, more int) Tally {
	if t.madeBy != e.id {
		t = Tally{slices.Clone(t.Numbers), e.id}
	}
	at, ok := slices.BinarySearchFunc(t.Numbers, node, func(n NodeCount, node string) int { return strings.Compare(n.Node, node) })
	switch {
	case !ok:
		t.Numbers = slices.Insert(t.Numbers, at, NodeCount{node, more})
	case t.Numbers[at].Pods+more == 0:
		t.Numbers = slices.Delete(t.Numbers, at, at+1)
	default:
		t.Numbers[at].Pods += more
	}
	return t
}

// putSites puts the changed sites in place.
func (e *indexEdit) putSites() {
	for name, s := range e.touched {
		if s.Node == nil && len(s.Pods) == 0 {
			e.nodes.remove(name)
			e.gpus.remove(name)
			continue
		}
		s.heartbeat = lastHeartbeat(s.Node)
		e.nodes.set(name, s)
		if s.Node != nil && GPUOf(s.Node) != "" {
			e.gpus.set(name, s)
		} else {
			e.gpus.remove(name)
		}
	}
}

// setMember adds a pod to its group, or removes it.
func (e *indexEdit) setMember(key string, pod *corev1.Pod, is bool) {
	m, err := MembershipOf(pod)
	if err != nil || m.Group.Name == "" || pod.Status.Phase == corev1.PodFailed {
		return
	}
	group := m.Group.String()
	set := e.members.get(group)
	if set == nil || set.madeBy != e.id {
		own := &memberSet{pods: map[string]*corev1.Pod{}, madeBy: e.id}
		if set != nil {
			maps.Copy(own.pods, set.pods)
		}
		set = own
	}
	if is {
		set.pods[key] = pod
	} else {
		delete(set.pods, key)
	}
	if len(set.pods) == 0 {
		e.members.remove(group)
		return
	}
	e.members.set(group, set)
}
