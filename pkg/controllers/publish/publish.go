// Package publish writes the catalog to a ConfigMap, so that kubectl karve plans with the zones, the prices and the capacities of the controller.
package publish

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/snapshot"
)

const (
	// every is how often the catalog is compared with what was published.
	every = time.Minute
	// rest is the shortest time between two writes. Spot prices change all the time.
	rest = 5 * time.Minute
)

// Config configures a Publisher.
type Config struct {
	// Client writes the ConfigMap, and Live reads it from the API server: an informer would hold all ConfigMaps.
	Client client.Writer
	Live   client.Reader
	// Cluster reads the cluster.
	Cluster func(context.Context) (*snapshot.Cluster, error)
	Clock   clock.WithTicker
	// Namespace is the namespace of the ConfigMap.
	Namespace string
	// Version is the version of the controller.
	Version string
}

// Publisher publishes the catalog. It is a Runnable of the manager, and only the leader runs it.
type Publisher struct {
	config Config
	// generation is that of the cluster whose catalog was published. last is what was published, at the time written.
	generation uint64
	last       []byte
	written    time.Time
}

// New returns a Publisher.
func New(config Config) *Publisher { return &Publisher{config: config} }

// NeedLeaderElection returns true, because there is one ConfigMap.
func (p *Publisher) NeedLeaderElection() bool { return true }

// Start publishes the catalog whenever it has changed, until the context ends. It logs what fails and tries again.
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
	if c.Generation != 0 && c.Generation == p.generation {
		return nil
	}
	encoded, err := encode(c)
	if err != nil {
		return err
	}
	if encoded != nil && !bytes.Equal(encoded, p.last) {
		if err := p.write(ctx, encoded, now); err != nil {
			return err
		}
	}
	p.generation = c.Generation
	return nil
}

// encode returns the catalog of the cluster. It is nil as long as no instance types are known, because what was published before is better than nothing.
func encode(c *snapshot.Cluster) ([]byte, error) {
	all := published.Catalog{}
	for ref, state := range c.NodeClasses {
		if len(state.InstanceTypes) > 0 {
			all[ref] = catalog.Listing{InstanceTypes: state.InstanceTypes, Reason: state.CatalogReason, Message: state.CatalogMessage}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return published.Encode(all)
}

// write writes the ConfigMap unless it has the same catalog of the same version of the controller.
func (p *Publisher) write(ctx context.Context, encoded []byte, now time.Time) error {
	wanted := published.ConfigMap(p.config.Namespace, encoded, p.config.Version, now)
	var is corev1.ConfigMap
	err := p.config.Live.Get(ctx, client.ObjectKeyFromObject(wanted), &is)
	switch {
	case apierrors.IsNotFound(err):
		err = p.config.Client.Create(ctx, wanted)
	case err == nil && (!bytes.Equal(published.Encoded(&is), encoded) || published.Controller(&is) != p.config.Version):
		is.Data, is.BinaryData = wanted.Data, wanted.BinaryData
		err = p.config.Client.Update(ctx, &is)
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", wanted.Namespace, wanted.Name, err)
	}
	p.last, p.written = encoded, now
	return nil
}
