package gather

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/capacity"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/sizing"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/watchdog"
)

// asideObjects has the objects that are set aside: see package watchdog.
type asideObjects struct {
	// version is that of the entries at the last read.
	version uint64
	// held has the entry of each object that is set aside.
	held map[watchdog.Object]watchdog.Object
}

// readAllAgain makes the next read complete.
func (g *Gatherer) readAllAgain() {
	g.fresh.kinds, g.claiming.stale = true, true
	if g.followed != nil {
		g.followed.forget()
	}
}

// claimingPods has the pods that have ResourceClaims, by namespace/name. Pods of an index are as [claims.Objects.On] returns them.
type claimingPods struct {
	pods map[string]*corev1.Pod
	// texts has the requests in the claims of each pod, as in the index.
	texts map[string]string
	// stale reports whether claims, templates or DeviceClasses have changed since the last update.
	stale bool
}

// unlessOptional returns the error unless it means that a user lacks the right to read optional objects. The controller needs its rights.
func (g *Gatherer) unlessOptional(err error) error {
	if g.followed == nil && apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

// Held returns the number of cached objects of the kinds with many objects.
func (g *Gatherer) Held() sizing.Objects {
	f := g.followed
	if f == nil {
		return sizing.Objects{}
	}
	return sizing.Objects{Pods: len(f.pods.store.ListKeys()), Nodes: len(f.nodes.store.ListKeys()), NodeClaims: len(f.nodeClaims.store.ListKeys())}
}

// Gatherer reads the cluster. It is safe for concurrent use.
type Gatherer struct {
	Kinds

	// Cached reads from the informers' caches, including unstructured objects.
	Cached client.Reader
	// Live reads from the API server.
	Live client.Reader
	// Mapper knows which kinds the API server serves.
	Mapper  meta.RESTMapper
	Catalog cloud.Catalog
	Ledger  *launching.Ledger
	Clock   clock.PassiveClock
	// Metrics may be nil.
	Metrics *metrics.Metrics
	// ReplicasTimeout is how long a registered node may have no replicas.
	ReplicasTimeout time.Duration
	// PriorityCutoff is the lowest priority of pods for which machines are launched. It is nil if they are launched for all.
	PriorityCutoff *int32
	// Prices returns the rules for prices. It is nil if there are none.
	Prices func() []prices.Rule
	// Watchdog bounds how long a read takes, and has the objects to leave out. It may be nil.
	Watchdog *watchdog.Watchdog

	// claims is held for reading while NodeClaims are read, and exclusively while several are written together. written has those that the informer may
	// not show yet.
	claims  sync.RWMutex
	written writes

	// looking is locked while the cluster is read. It guards the rest.
	looking sync.Mutex
	state   state
	// changes counts the changes in the caches, and followed has the objects that have changed. They are nil if the caches are not followed.
	changes  changes
	followed *followed
	// index has the objects that were followed so far.
	index *facts.Index
	// published has the replicas that agents publish as DRA drivers, as last read.
	published facts.Published
	// unpublished are nodes whose published replicas are not in the index yet.
	unpublished []string
	// visit reports the object that a read works at. It is nil if nobody asks.
	visit watchdog.Visit
	// claiming has the pods with ResourceClaims.
	claiming claimingPods
	// nodeClasses has the cloud's node classes as last read.
	nodeClasses nodeClasses
	// learned has the capacities that machines have shown since the controller started.
	learned capacity.Learned
	// aside has the objects that are set aside.
	aside asideObjects
	// requests are the ProvisioningRequests as last read.
	requests []provreq.Request
	// generation counts the reads that differ from the previous one, and since is when the last of them began. fresh has the differences.
	generation uint64
	since      time.Time
	fresh      fresh
}

// fresh records the differences to the last successful read that can affect decisions.
type fresh struct {
	// kinds reports whether kinds with few objects differ, and classes whether the cloud's node classes do.
	kinds, classes bool
	objects        facts.Difference
}

func (f fresh) any() bool { return f.kinds || f.classes || f.objects.Any() }

// nodeClasses has the cloud's node classes to which GPUNodeClasses refer.
type nodeClasses struct {
	// at is when the last read of all of them ended, and read is its result. accepted also has the images of paused rollouts, and used also the capacities
	// that machines have shown, and the prices of book.
	at                   time.Time
	read, accepted, used map[v1alpha1.NodeClassReference]facts.NodeClassState
	rules                []prices.Rule
	book                 *prices.Book
}

// Together calls a function that writes several NodeClaims. Readers of the cluster see either all of its writes or none. The function must not read the
// cluster.
func (g *Gatherer) Together(write func()) {
	g.claims.Lock()
	defer g.claims.Unlock()
	write()
}

// reuseTime is how long the cloud's node classes are reused after a read, and how long reads of the same objects belong to one generation.
const reuseTime = 2 * time.Second

// visitObject reports that a read works at an object.
func (g *Gatherer) visitObject(kind string, object metav1.Object) {
	if g.visit != nil {
		g.visit(kind, object)
	}
}
