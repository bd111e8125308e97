// Package publish writes the catalog, the settings of the controller and the quotas of the cloud's account to a ConfigMap. With them, kubectl karve plans with
// the controller's zones, prices and capacities, explains what it does, and kubectl karve doctor compares the quotas with what the cluster uses.
package publish

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot/facts"
)

const (
	// every is how often the catalog is compared with the published one.
	every = time.Minute
	// rest is the shortest time between two writes. Spot prices change all the time.
	rest = 5 * time.Minute
	// quotasEvery is how often the quotas of the account are read. quotasRetry is the delay after a failure.
	quotasEvery, quotasRetry = time.Hour, 5 * time.Minute
)

// Config configures a Publisher.
type Config struct {
	// Client writes the ConfigMap, and Live reads it from the API server: an informer would cache all ConfigMaps.
	Client client.Writer
	Live   client.Reader
	// Cluster reads the cluster.
	Cluster func(context.Context) (*facts.Cluster, error)
	Clock   clock.WithTicker
	// Namespace is the namespace of the ConfigMap.
	Namespace string
	// Version is the version of the controller.
	Version string
	// Settings are those of the controller.
	Settings published.Settings
	// Quotas reads the quotas of the cloud's account. It is called only if a node class belongs to a cloud with quotas.
	Quotas func(context.Context) ([]catalog.Quota, error)
}

// Publisher publishes the catalog. It is a Runnable of the manager. Only the leader runs it.
type Publisher struct {
	config Config
	// generation is that of the cluster whose catalog was published. last is what was published, at the time written.
	generation uint64
	last       *corev1.ConfigMap
	written    time.Time
	// counted are the reservations in last, by ID.
	counted map[string]catalog.Reservation
	// quotas are the quotas as last read, at the time asked.
	quotas published.Quotas
	asked  time.Time
}

// New returns a Publisher.
func New(config Config) *Publisher { return &Publisher{config: config} }

// NeedLeaderElection returns true, because all replicas would write the same ConfigMap.
func (p *Publisher) NeedLeaderElection() bool { return true }

// Start publishes the catalog whenever it has changed, until the context ends. It logs failures and retries.
func (p *Publisher) Start(ctx context.Context) error {
	ticker := p.config.Clock.NewTicker(every)
	defer ticker.Stop()
	for {
		if err := p.Publish(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Info("The catalog was not published", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// +kubebuilder:rbac:groups="",namespace=karve-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=karve-system,resources=configmaps,resourceNames=karve-catalog,verbs=get;update

// Publish writes the catalog if it has changed and the last write was long enough ago.
func (p *Publisher) Publish(ctx context.Context) error {
	now := p.config.Clock.Now()
	if !p.written.IsZero() && now.Sub(p.written) < rest {
		return nil
	}
	c, err := p.config.Cluster(ctx)
	if err != nil {
		return fmt.Errorf("reading the cluster: %w", err)
	}
	p.ask(ctx, c, now)
	if c.Generation != 0 && c.Generation == p.generation {
		return nil
	}
	classes := steady(c, p.counted, now)
	encoded, err := encode(classes)
	if err != nil {
		return err
	}
	if encoded != nil {
		wanted := published.ConfigMap(p.config.Namespace, encoded, p.quotas, p.config.Version, p.config.Settings, now)
		if p.last == nil || !published.Same(wanted, p.last) {
			if err := p.write(ctx, wanted, now); err != nil {
				return err
			}
			p.counted = map[string]catalog.Reservation{}
			for _, state := range classes {
				for _, r := range state.Reservations {
					p.counted[r.ID] = r
				}
			}
		}
	}
	p.generation = c.Generation
	return nil
}

// ask reads the quotas periodically. It then makes Publish compare again.
func (p *Publisher) ask(ctx context.Context, c *facts.Cluster, now time.Time) {
	every := quotasEvery
	if p.quotas.Problem != "" {
		every = quotasRetry
	}
	limited := false
	for ref := range c.NodeClasses {
		limited = limited || len(clouds.OfRef(ref).Quotas) > 0
	}
	if !limited || !p.asked.IsZero() && now.Sub(p.asked) < every {
		return
	}
	p.asked, p.generation = now, 0
	quotas, err := p.config.Quotas(ctx)
	if err != nil {
		p.quotas = published.Quotas{Problem: err.Error()}
	} else {
		p.quotas = published.Quotas{Quotas: quotas}
	}
}

// encode returns the catalog of node classes. It is nil as long as no instance types are known, because an older published catalog is better than an
// empty one.
func encode(classes map[v1alpha1.NodeClassReference]facts.NodeClassState) ([]byte, error) {
	all := published.Catalog{}
	for ref, state := range classes {
		if len(state.InstanceTypes) > 0 {
			all[ref] = catalog.Listing{InstanceTypes: state.InstanceTypes, Reason: state.CatalogReason, Message: state.CatalogMessage, Reservations: state.Reservations}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return published.Encode(all)
}

// write writes the ConfigMap unless it is already equal.
func (p *Publisher) write(ctx context.Context, wanted *corev1.ConfigMap, now time.Time) error {
	var is corev1.ConfigMap
	err := p.config.Live.Get(ctx, client.ObjectKeyFromObject(wanted), &is)
	switch {
	case apierrors.IsNotFound(err):
		err = p.config.Client.Create(ctx, wanted)
	case err == nil && !published.Same(&is, wanted):
		is.Data, is.BinaryData = wanted.Data, wanted.BinaryData
		err = p.config.Client.Update(ctx, &is)
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", wanted.Namespace, wanted.Name, err)
	}
	p.last, p.written = wanted, now
	return nil
}
