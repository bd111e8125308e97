package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulinghelper "k8s.io/component-helpers/scheduling/corev1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/claims"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// shape is what a pod requires of the scheduler, except for its volumes. All pods of a Deployment have the same shape.
type shape struct {
	// queueText identifies the shape in the queue. load is its part of the work of a plan, in terms, and nodeLoad that of its node affinity. They are known before
	// the selectors are parsed.
	queueText      string
	load, nodeLoad int
	key            string
	// sum is a checksum of the key, and short a short form of it for annotations.
	sum   [sha256.Size]byte
	short string
	// gpu is the GPU resource that the pod requests, or "" if it requests none.
	gpu    corev1.ResourceName
	demand records.Demand
	terms  terms
	// gpuMemory is the device memory that the pod requests by annotation, in bytes. wrong is the error if the annotation is invalid.
	gpuMemory int64
	wrong     error
	// fault is why a pod that requests slots of memory cannot be served. It is nil if it can. The slots are then its device memory.
	fault *planner.Refusal
	// throughput is how much work a pod does on each model of GPU, or nil if plans do not depend on it.
	throughput facts.Throughput
	// claim is the GPU request in the pod's ResourceClaim, or nil if it has no claim for a GPU.
	claim *claims.Ask
	ports []facts.HostPort
	// deadline is how long the pod may run, or 0 if there is no limit or no reservation whose machines leave.
	deadline time.Duration
	// group is the text of the group that the pod names. Machines are launched for pods of a group, so that equal pods of another group do not take their places.
	group string
	// onNodes is equal for shapes with the same demands on the names, labels and taints of nodes. asks is equal if they also have the same requests and
	// other demands, except for those on other pods.
	onNodes, asks string
}

func (s *shape) pod() *corev1.Pod { return s.demand.Pod }

// shapes caches the shapes of pods. It is safe for concurrent use, because controllers share views.
type shapes struct {
	cluster *facts.Cluster
	// leaving reports whether there are reservations whose machines leave.
	leaving bool
	// mu guards the fields below.
	mu         sync.Mutex
	selections selections
	// byText has shapes by Content, which is fast, but may differ for pods with the same shape. The shape of a thousand pods of one Deployment is computed
	// once.
	byText map[string]*shape
}

// maxDeadline is a hundred years, in seconds.
const maxDeadline = 100 * 365 * 24 * 3600

func newShapes(c *facts.Cluster) *shapes {
	leaving := slices.ContainsFunc(c.Reservations(), func(r catalog.Reservation) bool { return !r.Leaves.IsZero() })
	return &shapes{cluster: c, leaving: leaving, byText: map[string]*shape{}}
}

func (s *shapes) shapeOf(pod *corev1.Pod) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := s.sketchLocked(pod)
	if found.key == "" {
		if found.gpu != "" {
			found.terms = termsOf(s.cluster, found.pod(), &s.selections)
		}
		found.key = found.writeKey()
		found.sum = sha256.Sum256([]byte(found.key))
		found.short = hex.EncodeToString(found.sum[:])[:shapeKeyLength]
	}
	return found
}

// sketchOf returns the shape of a pod without its terms and keys, which take time in proportion to the text of its selectors.
func (s *shapes) sketchOf(pod *corev1.Pod) *shape {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sketchLocked(pod)
}

func (s *shapes) sketchLocked(pod *corev1.Pod) *shape {
	text, deadline := facts.Content(pod), time.Duration(0)
	if s.leaving && pod.Spec.ActiveDeadlineSeconds != nil {
		deadline = time.Duration(min(*pod.Spec.ActiveDeadlineSeconds, maxDeadline)) * time.Second
		text += "\x00" + deadline.String()
	}
	group := ""
	if m, err := facts.MembershipOf(pod); err == nil && m.Group.Name != "" {
		group = m.Group.String()
		text += "\x00" + group
	}
	if known := s.byText[text]; known != nil {
		return known
	}
	load, nodeLoad := facts.LoadOf(&pod.Spec)
	made := &shape{queueText: shortened(text), load: load, nodeLoad: nodeLoad, demand: records.DemandOf(pod), ports: facts.HostPorts(pod), claim: claims.Of(pod), deadline: deadline, group: group}
	made.gpu, _ = facts.GPUResource(pod)
	made.gpuMemory, made.wrong = facts.GPUMemory(pod)
	made.throughput, _ = facts.ThroughputOf(pod) // An error is reported on the pod, which is planned without a throughput.
	if _, err := nodecontract.ParseThreads(pod.Annotations[nodecontract.GPUThreadsAnnotation]); made.wrong == nil {
		made.wrong = err
	}
	if facts.IsSlot(made.gpu) || len(facts.SlotSizes(pod)) > 0 {
		made.fault = records.SlotFault(pod, made.gpuMemory)
		_, mib := facts.SlotsIn(made.demand.Requests)
		made.gpuMemory = amount.Times(mib, facts.BytesPerMiB)
	}
	if why := facts.SetAsideWhy(pod); why != "" {
		made.fault = &planner.Refusal{Reason: planner.ReasonSetAside, Message: why}
	}
	s.byText[text] = made
	return made
}

// writeKey returns the key, which is equal for pods with the same demands even if their specs differ. It sets onNodes and asks.
func (s *shape) writeKey() string {
	pod := s.pod()
	key := struct {
		NodeSelector map[string]string
		NodeAffinity *corev1.NodeAffinity
		Tolerations  []corev1.Toleration
		Requests     map[corev1.ResourceName]int64
		GPUMemory    int64
		Wrong        string
		Ports        []facts.HostPort
		Priority     int32
		Unsupported  string
		// MostInOne is omitted for pods with a GPU resource in one container, whose key must equal that of earlier releases too.
		MostInOne int64  `json:",omitempty"`
		Claim     string `json:",omitempty"` // Without a claim, the key must equal that of earlier releases, which is in the annotations of NodeClaims.
		// Deadline, Throughput and Group are omitted for pods without them, for the same reason.
		Deadline   time.Duration    `json:",omitempty"`
		Throughput facts.Throughput `json:",omitempty"`
		Group      string           `json:",omitempty"`
		Terms      []string
	}{
		pod.Spec.NodeSelector, nil, pod.Spec.Tolerations,
		map[corev1.ResourceName]int64{},
		s.gpuMemory, "", s.ports,
		schedulinghelper.PodPriority(pod), facts.Unsupported(pod), 0, claims.Text(pod), s.deadline, s.throughput, s.group, nil,
	}
	if most := facts.MostInOne(pod, s.gpu); most != s.replicas() {
		key.MostInOne = most
	}
	if s.wrong != nil {
		key.Wrong = s.wrong.Error()
	}
	if s.fault != nil {
		key.Wrong += s.fault.Message
	}
	key.Wrong += facts.TooLarge(pod)
	if affinity := pod.Spec.Affinity; affinity != nil {
		key.NodeAffinity = affinity.NodeAffinity
	}
	for name := range s.demand.Requests {
		if n := facts.AmountOf(s.demand.Requests, name); n != 0 {
			key.Requests[name] = n
		}
	}
	s.onNodes = facts.ShortText(encoded(pod, struct {
		NodeSelector map[string]string
		NodeAffinity *corev1.NodeAffinity
		Tolerations  []corev1.Toleration
	}{key.NodeSelector, key.NodeAffinity, key.Tolerations}))
	s.asks = facts.ShortText(encoded(pod, key))
	for _, part := range [][]term{s.terms.required, s.terms.affinity, s.terms.spread} {
		for i := range part {
			key.Terms = append(key.Terms, part[i].id())
		}
		key.Terms = append(key.Terms, "") // Separates the required, affinity and spread terms.
	}
	return encoded(pod, key)
}

// encoded encodes a value that belongs to a pod. If that fails, it returns the name of the pod.
func encoded(pod *corev1.Pod, value any) string {
	b, err := json.Marshal(value)
	if err != nil {
		return facts.PodName(pod) // As in Content.
	}
	return string(b)
}

// statesMemory reports whether the agent's choice of GPUs matters to a shape: it states device memory, other than in a claim or as slots.
func (s *shape) statesMemory() bool {
	return s.gpuMemory > 0 && s.gpu != "" && s.claim == nil && !facts.IsSlot(s.gpu)
}

// replicas returns the number of replicas that pods of the shape request.
func (s *shape) replicas() int64 { return facts.ReplicasIn(s.demand.Requests, s.gpu) }

// holdsOn reports whether a replica of each resource that a shape requests has the device memory that it states.
func (s *shape) holdsOn(offers []mig.Offer) bool {
	for name := range s.demand.Requests {
		if o, ok := records.OfferOf(offers, name); ok && o.MemoryMiB > 0 && s.gpuMemory > records.ReplicaMiB(o)*facts.BytesPerMiB {
			return false
		}
	}
	return true
}

func (s *shape) hasTerms() bool {
	return s.load > 0 || slices.ContainsFunc(s.selectors(), func(selector string) bool { return claims.Work(selector) > 0 })
}

func (s *shape) selectors() []string {
	if s.claim == nil {
		return nil
	}
	return s.claim.Selectors
}

func (s *shape) markSeen(seen map[string]bool) {
	for _, selector := range s.selectors() {
		seen[selector] = true
	}
}
