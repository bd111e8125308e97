// Package instancetype knows the machines that an EC2NodeClass can launch, as Karpenter's AWS provider does: it asks the same APIs and has the provider's own
// resolvers work out what the answers mean for the class, so that both see the same machine to the byte.
package instancetype

import (
	"context"
	"fmt"
	"sync"
	"time"

	awscache "github.com/aws/karpenter-provider-aws/pkg/cache"
	"github.com/aws/karpenter-provider-aws/pkg/providers/placementgroup"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"github.com/patrickmn/go-cache"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/metrics"
)

// Options change what a machine leaves to pods, or which prices there are. They must be those of the Karpenter that launches the machines.
type Options struct {
	// VMMemoryOverheadPercent is the part of the memory that EC2 promises and the operating system never sees, 0.075 for 7.5 %.
	VMMemoryOverheadPercent float64
	// ReservedENIs are the network interfaces of a machine that are not for pods.
	ReservedENIs int
	// IsolatedVPC says that the Pricing API cannot be reached.
	IsolatedVPC bool
}

// Config is what a Catalog needs.
type Config struct {
	Options
	// Load makes the clients of the AWS APIs.
	Load    func(context.Context) (*api.Clients, error)
	Metrics *metrics.Metrics
	Clock   clock.Clock
}

// firstWait is how long those who ask wait for the first answers of AWS, so that a controller that has just started does not report that there is nothing.
const firstWait = 15 * time.Second

// Catalog reads the APIs on a schedule of its own, from the first time that it is asked for a class on. To ask it costs no call.
type Catalog struct {
	config  Config
	sources []*source

	asked     chan struct{}
	ask       sync.Once
	attempted chan struct{}

	mu    sync.Mutex
	known known
	// placementGroups are asked for once a minute at most, and only for classes that name one.
	placementGroups placementgroup.Provider
	// resolved is empty again as soon as AWS has told something.
	resolved map[types.UID]resolution
}

// resolution is what was worked out for a class in one state.
type resolution struct {
	resourceVersion string
	types           []catalog.InstanceType
	problem         *problem
}

// New makes a catalogue that knows nothing until it is started.
func New(config Config) *Catalog {
	c := &Catalog{config: config, asked: make(chan struct{}), attempted: make(chan struct{}), resolved: map[types.UID]resolution{}}
	c.sources = c.allSources()
	return c
}

// NeedLeaderElection says that every replica of the controller has a catalogue of its own.
func (c *Catalog) NeedLeaderElection() bool { return false }

// Start keeps the catalogue up to date until the context ends. Where no class is ever asked for, AWS is never called.
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
	done.Wait()
	return nil
}

// load makes the clients, however often it takes; nil when the context ends first.
func (c *Catalog) load(ctx context.Context) *api.Clients {
	for failures := 0; ; failures++ {
		clients, err := c.config.Load(ctx)
		if err == nil {
			return clients
		}
		for _, s := range c.sources {
			c.failed(ctx, s, &problem{reason: "NoConfiguration", message: err.Error()})
		}
		if !c.sleep(ctx, backoff(failures)) {
			return nil
		}
	}
}

// InstanceTypes are the machines that an EC2NodeClass can launch.
func (c *Catalog) InstanceTypes(ctx context.Context, class *unstructured.Unstructured) catalog.Listing {
	c.ask.Do(func() { close(c.asked) })
	c.await(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.missing(); p != nil {
		return catalog.Listing{Reason: p.reason, Message: p.message}
	}
	r, ok := c.resolved[class.GetUID()]
	if !ok || r.resourceVersion != class.GetResourceVersion() {
		r = resolution{resourceVersion: class.GetResourceVersion()}
		r.types, r.problem = c.resolve(ctx, class)
		c.resolved[class.GetUID()] = r
	}
	listing := catalog.Listing{InstanceTypes: r.types}
	if p := first(r.problem, c.stale()); p != nil {
		listing.Reason, listing.Message = p.reason, fmt.Sprintf("%s %q: %s", class.GetKind(), class.GetName(), p.message)
	}
	return listing
}

// await waits until every API was asked once, but not for ever.
func (c *Catalog) await(ctx context.Context) {
	select {
	case <-c.attempted:
		return
	default:
	}
	timer := c.config.Clock.NewTimer(firstWait)
	defer timer.Stop()
	select {
	case <-c.attempted:
	case <-timer.C():
	case <-ctx.Done():
	}
}

func first(problems ...*problem) *problem {
	for _, p := range problems {
		if p != nil {
			return p
		}
	}
	return nil
}
