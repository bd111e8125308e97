package instancetype

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/lifecycle"
)

// Intervals at which the APIs are read. Instance types, zones and on-demand prices change when AWS announces it. Karpenter reads them at the same interval,
// and could not launch a type that it does not know yet. Spot prices change hourly.
const (
	seldom = 12 * time.Hour
	often  = time.Hour
)

// attemptTimeout is how long reading all pages of an API may take.
const attemptTimeout = 2 * time.Minute

const (
	firstBackoff = 5 * time.Second
	maxBackoff   = 5 * time.Minute
	// maxOutage is the longest wait before a retry if nothing can be launched because of an outage.
	maxOutage = 30 * time.Second
)

// source is an API and the state of reading it.
type source struct {
	// name is the label value in metrics, and words is the name in messages.
	name, words string
	// instead describes what is used until the source has been read. It is "" if nothing can be launched without it.
	instead string
	every   time.Duration
	// read reads the API and returns a function that stores the result.
	read func(context.Context, *api.Clients) (func(*known), error)

	// The fields below are guarded by Catalog.mu.
	attempted bool
	refreshed time.Time
	failure   *failure
}

// allSources returns the sources, that of the instance types first.
func (c *Catalog) allSources() []*source {
	return []*source{
		{
			name: "instance-types", words: "instance types", every: seldom,
			read: func(ctx context.Context, clients *api.Clients) (func(*known), error) {
				infos, err := describeTypes(ctx, clients)
				return func(k *known) { k.infos = infos }, err
			},
		},
		{
			name: "zones", words: "zones of the instance types", every: seldom,
			read: func(ctx context.Context, clients *api.Clients) (func(*known), error) {
				zones, all, err := describeZones(ctx, clients)
				return func(k *known) { k.zones, k.allZones = zones, all }, err
			},
		},
		{
			name: "on-demand-prices", words: "on-demand prices", instead: "those that Karpenter's AWS provider was released with are used", every: seldom,
			read: func(ctx context.Context, clients *api.Clients) (func(*known), error) {
				fresh := c.prices(clients)
				err := fresh.UpdateOnDemandPricing(ctx)
				return func(k *known) { k.onDemand = fresh }, err
			},
		},
		{
			name: "spot-prices", words: "spot prices", instead: "spot machines are taken to cost as much as on demand", every: often,
			read: func(ctx context.Context, clients *api.Clients) (func(*known), error) {
				fresh := c.prices(clients)
				err := fresh.UpdateSpotPricing(ctx)
				return func(k *known) { k.spot = fresh }, err
			},
		},
	}
}

// prices returns an empty price list. A list that has been read is replaced and not updated, because the provider locks it until AWS answers, and plans
// must not wait for that.
func (c *Catalog) prices(clients *api.Clients) *pricing.DefaultProvider {
	return pricing.NewDefaultProvider(clients.Pricing, clients.EC2, clients.Region, c.config.IsolatedVPC)
}

// keep reads a source on its schedule until the context ends.
func (c *Catalog) keep(ctx context.Context, clients *api.Clients, s *source) {
	for failures := 0; ; {
		wait := s.every
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		learn, err := s.read(attempt, clients)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f := diagnose(ctx, clients, err)
			c.failed(ctx, s, f)
			wait = lifecycle.Backoff(firstBackoff, maxBackoff, failures+1)
			if c.blocks(s, f) {
				wait = min(wait, maxOutage)
			}
			failures++
		default:
			c.refreshed(ctx, s, learn)
			failures = 0
		}
		if !c.sleep(ctx, wait) {
			return
		}
	}
}

// blocks reports whether nothing can be launched because of an outage during which the source could not be read.
func (c *Catalog) blocks(s *source, f *failure) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.instead == "" && s.refreshed.IsZero() && (f.reason == reasonUnreachable || f.reason == reasonGarbled)
}

// sleep waits for the given time plus up to 10 %, so that controllers do not call AWS at the same time. It returns false if the context ends first.
func (c *Catalog) sleep(ctx context.Context, wait time.Duration) bool {
	return c.sleepUnless(ctx, wait, nil)
}

// sleepUnless is like sleep, and wakes when it receives from the channel.
func (c *Catalog) sleepUnless(ctx context.Context, wait time.Duration, wake <-chan struct{}) bool {
	wait += time.Duration(rand.Int64N(int64(wait) / 10)) //nolint:gosec // It spreads calls, and nothing depends on its being a secret.
	timer := c.config.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	case <-wake:
		return true
	}
}

func (c *Catalog) refreshed(ctx context.Context, s *source, learn func(*known)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.failure != nil {
		log.FromContext(ctx).Info("Read from AWS again", "source", s.name)
	}
	learn(&c.known)
	clear(c.resolved)
	s.refreshed, s.failure = c.config.Clock.Now(), nil
	c.config.Metrics.CatalogRefreshed.WithLabelValues(s.name).Set(float64(s.refreshed.Unix()))
	c.config.Metrics.CatalogRefreshes.WithLabelValues(s.name, "Success").Inc()
	c.mark(s)
}

func (c *Catalog) failed(ctx context.Context, s *source, f *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.failure == nil || s.failure.reason != f.reason {
		log.FromContext(ctx).Info("Not read from AWS", "source", s.name, "reason", f.reason, "message", f.message)
	}
	s.failure = f
	c.config.Metrics.CatalogRefreshes.WithLabelValues(s.name, f.reason).Inc()
	c.mark(s)
}

// mark records an attempt to read a source. After the first attempt of every source, InstanceTypes no longer waits.
func (c *Catalog) mark(s *source) {
	if s.attempted {
		return
	}
	s.attempted = true
	for _, other := range c.sources {
		if !other.attempted {
			return
		}
	}
	close(c.attempted)
}

// missing returns why nothing can be launched: a required source was never read. Otherwise it returns nil.
func (c *Catalog) missing() *failure {
	for _, s := range c.sources {
		if s.instead == "" && s.refreshed.IsZero() {
			return s.never()
		}
	}
	return nil
}

// stale returns a failure if a source was never read, or if it is older than 1.5 times its interval. Otherwise it returns nil.
func (c *Catalog) stale() *failure {
	for _, s := range c.sources {
		if s.refreshed.IsZero() {
			f := s.never()
			return &failure{f.reason, f.message + "; meanwhile " + s.instead}
		}
		if s.failure != nil && c.config.Clock.Since(s.refreshed) > s.every*3/2 {
			return &failure{s.failure.reason, fmt.Sprintf("the %s are those of %s, and were not read since: %s", s.words, s.refreshed.UTC().Format(time.RFC3339), s.failure.message)}
		}
	}
	return nil
}

// never returns why a source was never read.
func (s *source) never() *failure {
	if s.failure == nil {
		return &failure{"Reading", fmt.Sprintf("the %s are being read from AWS", s.words)}
	}
	return &failure{s.failure.reason, fmt.Sprintf("the %s could not be read from AWS: %s", s.words, s.failure.message)}
}
