// Package instancetype lists the instance types that an EC2NodeClass can launch. It calls the same APIs as Karpenter's AWS provider and resolves the
// answers with the provider's own code, so that both compute exactly the same resources.
package instancetype

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	awscache "github.com/aws/karpenter-provider-aws/pkg/cache"
	kubeletcel "github.com/aws/karpenter-provider-aws/pkg/cel"
	"github.com/aws/karpenter-provider-aws/pkg/providers/placementgroup"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"github.com/patrickmn/go-cache"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/metrics"
)

// Config configures a Catalog.
type Config struct {
	Options
	// Load makes the clients of the AWS APIs.
	Load    func(context.Context) (*api.Clients, error)
	Metrics *metrics.Metrics
	Clock   clock.Clock
}

// firstWait is how long InstanceTypes waits for the first responses from AWS, so that a controller that has just started does not report that there are
// no instance types.
const firstWait = 15 * time.Second

// Catalog reads the APIs on its own schedule, starting with the first call of InstanceTypes. InstanceTypes itself calls no API, except for placement
// groups.
type Catalog struct {
	config  Config
	sources []*source

	// reservations counts the free slots of reservations.
	reservations reservations

	asked     chan struct{}
	ask       sync.Once
	attempted chan struct{}

	mu    sync.Mutex
	known known
	// placementGroups makes a call at most once a minute, and only for node classes that name a placement group.
	placementGroups placementgroup.Provider
	// expressions evaluates the expressions in spec.kubelet of node classes.
	expressions *kubeletcel.CELEnvironment
	// resolved is cleared whenever AWS has been read.
	resolved map[types.UID]resolution
}

// resolution is the result for a node class with one resource version.
type resolution struct {
	resourceVersion string
	types           []catalog.InstanceType
	reservations    []catalog.Reservation
	failure         *failure
}

// New returns an empty catalog. Start fills it.
func New(config Config) *Catalog {
	expressions, err := kubeletcel.NewEnvironment()
	if err != nil {
		panic(err) // It has no input.
	}
	c := &Catalog{config: config, expressions: expressions, asked: make(chan struct{}), attempted: make(chan struct{}), resolved: map[types.UID]resolution{}}
	c.sources, c.reservations = c.allSources(), newReservations()
	return c
}

// NeedLeaderElection returns false, because every replica of the controller has its own catalog.
func (c *Catalog) NeedLeaderElection() bool { return false }

// Start keeps the catalog up to date until the context ends. It does not call AWS before the first call of InstanceTypes.
func (c *Catalog) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.asked:
	}
	clients := c.load(ctx)
	if clients == nil {
		return nil
	}
	c.mu.Lock()
	c.known.region, c.known.released = clients.Region, pricing.NewDefaultProvider(nil, nil, clients.Region, true)
	c.placementGroups = placementgroup.NewProvider(clients.EC2, cache.New(awscache.DefaultTTL, awscache.DefaultCleanupInterval),
		cache.New(awscache.PlacementGroupAvailabilityTTL, awscache.DefaultCleanupInterval))
	c.mu.Unlock()
	var done sync.WaitGroup
	for _, s := range c.sources {
		done.Go(func() { c.keep(ctx, clients, s) })
	}
	done.Go(func() { c.keepCounting(ctx, clients) })
	done.Wait()
	return nil
}

// load makes the clients, and retries until it succeeds. It returns nil if the context ends first.
func (c *Catalog) load(ctx context.Context) *api.Clients {
	for failures := 0; ; failures++ {
		clients, err := c.config.Load(ctx)
		if err == nil {
			return clients
		}
		for _, s := range c.sources {
			c.failed(ctx, s, &failure{reason: "NoConfiguration", message: err.Error()})
		}
		if !c.sleep(ctx, lifecycle.Backoff(firstBackoff, maxBackoff, failures+1)) {
			return nil
		}
	}
}

// InstanceTypes returns the instance types that an EC2NodeClass can launch.
func (c *Catalog) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	c.ask.Do(func() { close(c.asked) })
	c.await(ctx, c.attempted)
	listing, counting := c.list(ctx, class)
	if counting == nil {
		return listing
	}
	c.await(ctx, counting)
	c.waitNoMore(listing.Reservations)
	listing, _ = c.list(ctx, class)
	return listing
}

// list returns the instance types and reservations of a node class. If some of the reservations were never counted, it also returns a channel that is closed after the
// next attempt.
func (c *Catalog) list(ctx context.Context, class *unstructured.Unstructured) (catalog.Listing, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.missing(); f != nil {
		return catalog.Listing{Reason: f.reason, Message: f.message}, nil
	}
	r, ok := c.resolved[class.GetUID()]
	if !ok || r.resourceVersion != class.GetResourceVersion() {
		r = resolution{resourceVersion: class.GetResourceVersion()}
		r.types, r.reservations, r.failure = c.resolve(ctx, class)
		c.resolved[class.GetUID()] = r
	}
	listing := catalog.Listing{InstanceTypes: r.types, Read: c.sources[0].refreshed}
	var uncounted *failure
	var counting <-chan struct{}
	listing.Reservations, uncounted, counting = c.counted(r.reservations)
	if f := cmp.Or(r.failure, c.stale(), uncounted); f != nil {
		listing.Reason, listing.Message = f.reason, fmt.Sprintf("%s %q: %s", class.GetKind(), class.GetName(), f.message)
	}
	return listing, counting
}

// await waits until the channel is closed, and at most for firstWait.
func (c *Catalog) await(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
		return
	default:
	}
	timer := c.config.Clock.NewTimer(firstWait)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C():
	case <-ctx.Done():
	}
}
