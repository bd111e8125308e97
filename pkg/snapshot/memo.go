package snapshot

import (
	"maps"
	"sync"
	"sync/atomic"
	"unsafe"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/planner"
)

// Results for a node or machine are cached with its objects in the index. A result is valid as long as its inputs are the same. The objects of an index
// are immutable, so comparing their addresses suffices.

// claimMemo caches the machine of a NodeClaim.
type claimMemo struct{ last atomic.Pointer[machineMemo] }

// machineMemo is a machine with its inputs and its cached room.
type machineMemo struct {
	machine Machine
	facts   facts
	site    *site
	types   identity
	room    atomic.Pointer[roomMemo]
	// inUse is the number of replicas that the pods hold, once summed.
	summed sync.Once
	inUse  int64
}

// identity identifies a slice by its memory, so that two slices can be compared cheaply.
type identity struct {
	first unsafe.Pointer
	size  int
}

func identityOf[T any](all []T) identity {
	return identity{unsafe.Pointer(unsafe.SliceData(all)), len(all)} //nolint:gosec // It is only compared.
}

// machine returns the machine of a NodeClaim. The site is nil if it has no Node.
func (c *claimed) machine(s *site, types []catalog.InstanceType) Machine {
	if m := c.last.Load(); m != nil && m.site == s && m.types == identityOf(types) {
		return m.machine
	}
	m := &machineMemo{machine: Machine{Claim: c.claim, Promise: PromiseOf(c.claim.Annotations)}, site: s, types: identityOf(types)}
	m.machine.memo = m
	m.machine.know(types)
	if s != nil {
		m.machine.Node, m.machine.Pods = s.node, s.pods
	}
	m.facts = *m.machine.learnFacts()
	c.last.Store(m)
	return m.machine
}

// kinTerms caches the terms of kin, which depend on the labels of namespaces.
type kinTerms struct{ last atomic.Pointer[kinTermsMemo] }

type kinTermsMemo struct {
	namespaces identity
	terms      []term
	selections map[string][]selector
}

// apart returns the terms of the kin's required anti-affinity, and registers their selections.
func (k *kin) apart(c *Cluster, known *selections) []term {
	m := k.terms.last.Load()
	if m == nil || m.namespaces != identityOf(c.Namespaces) {
		if known.selecting == nil {
			known.selecting = map[string]namespaceSet{}
		}
		own := &selections{selecting: known.selecting}
		m = &kinTermsMemo{namespaces: identityOf(c.Namespaces), terms: c.apart(k.pod, own), selections: own.byKey}
		k.terms.last.Store(m)
	}
	for key, all := range m.selections {
		known.set(key, all)
	}
	return m.terms
}

// siteMemo caches results for a node and its pods.
type siteMemo struct {
	once  sync.Once
	inUse use
	room  atomic.Pointer[roomMemo]
}

// use is the resource use of the pods on a node.
type use struct {
	// all and daemons are the requests of the pods, and of those that DaemonSets created, in the planner's units.
	all, daemons total
	ports        map[hostPort]bool
}

// total is the sum of the requests of pods.
type total struct {
	amounts map[corev1.ResourceName]int64
	pods    int64
}

func (t *total) add(requests corev1.ResourceList) {
	t.pods++
	for name := range requests {
		if t.amounts == nil {
			t.amounts = map[corev1.ResourceName]int64{}
		}
		t.amounts[name] = amount.Add(t.amounts[name], amountOf(requests, name))
	}
}

// all returns the sum by resource. Each pod counts as one of the resource pods.
func (t *total) all() map[corev1.ResourceName]int64 {
	all := maps.Clone(t.amounts)
	if all == nil {
		all = map[corev1.ResourceName]int64{}
	}
	all[corev1.ResourcePods] = t.pods
	return all
}

// resources returns the sum with the amount of the resource gpu as replicas.
func (t *total) resources(gpu corev1.ResourceName) planner.Resources {
	return planner.Resources{
		MilliCPU: t.amounts[corev1.ResourceCPU], MemoryBytes: t.amounts[corev1.ResourceMemory], EphemeralBytes: t.amounts[corev1.ResourceEphemeralStorage],
		Pods: t.pods, Replicas: t.replicas(gpu),
	}
}

// replicas returns the amount of a GPU resource, and for one of MIG instances that of instances of all profiles.
func (t *total) replicas(gpu corev1.ResourceName) int64 {
	if !isInstance(gpu) {
		return t.amounts[gpu]
	}
	var n int64
	for name, of := range t.amounts {
		if isInstance(name) {
			n = amount.Add(n, of)
		}
	}
	return n
}

// use returns what the pods of a node use.
func (s *site) use() *use {
	s.once.Do(func() {
		for _, pod := range s.pods {
			requests := PodRequests(pod)
			s.inUse.all.add(requests)
			if ofDaemonSet(pod) {
				s.inUse.daemons.add(requests)
			}
			for _, port := range hostPorts(pod) {
				if s.inUse.ports == nil {
					s.inUse.ports = map[hostPort]bool{}
				}
				s.inUse.ports[port] = true
			}
		}
	})
	return &s.inUse
}

// roomMemo is a room with its inputs other than its objects.
type roomMemo struct {
	room    room
	given   roomInput
	mu      sync.Mutex
	refuses map[string]bool
}

// roomInput is the input of a room other than its NodeClaim, its node, its pods and its instance type.
type roomInput struct {
	mostPerGPU int64
	raised     bool
	settling   bool
	daemons    identity
	types      identity
}

// maxRefuses limits the number of cached answers for each room.
const maxRefuses = 256

// refusing reports whether a room refuses pods with a demand. The key identifies the demand.
func (m *roomMemo) refusing(key string, d *demand) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	refuses, known := m.refuses[key]
	if known {
		return refuses
	}
	if len(m.refuses) >= maxRefuses || m.refuses == nil {
		m.refuses = map[string]bool{}
	}
	refuses = d.refusal(m.room.taints, m.room.nodeName, m.room.shown()) != nil
	m.refuses[key] = refuses
	return refuses
}
