package gather

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Open returns a function that reads a cluster, for long-running commands without a manager. Informers follow the cluster until the context ends. Open
// returns an error if the cluster cannot be read now, because informers would retry forever. The function returns an error while the API server does
// not answer.
func Open(ctx context.Context, config *rest.Config, catalog cloud.Catalog, settings func() published.Settings) (func(context.Context) (*facts.Cluster, error), error) {
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	g, err := newFollower(ctx, config, catalog, settings)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*facts.Cluster, error) {
		if err := checkAnswers(ctx, asked.RESTClient()); err != nil {
			return nil, err
		}
		c, err := g.Cluster(ctx)
		if err == nil {
			now := settings()
			c.ReplicasTimeout, c.PriorityCutoff = now.ReplicasTimeout.Duration, now.PriorityCutoff // They change when the controller starts with others.
		}
		return c, err
	}, nil
}

// checkAnswers returns an error if the API server does not answer. Without this check, informers would continue to serve old data.
func checkAnswers(ctx context.Context, api rest.Interface) error {
	err := api.Get().AbsPath("/version").Do(ctx).Error()
	var refused apierrors.APIStatus
	if err == nil || errors.As(err, &refused) {
		return nil // A user who may not read the version still gets an answer.
	}
	return fmt.Errorf("the API server does not answer: %w", err)
}

// newFollower returns a Gatherer with its own informers.
func newFollower(ctx context.Context, config *rest.Config, catalog cloud.Catalog, settings func() published.Settings) (*Gatherer, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	kinds, _, err := KindsOf(live.RESTMapper(), settings().Reads)
	if err != nil {
		return nil, err
	}
	kinds.readable(ctx, live)
	g := &Gatherer{Kinds: kinds, Cached: live, Live: live, Mapper: live.RESTMapper(), Catalog: catalog, Ledger: launching.NewLedger(), Clock: clock.RealClock{}}
	if _, err := g.Cluster(ctx); err != nil {
		return nil, err
	}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: live.RESTMapper(), DefaultTransform: Trim(), NewInformer: NewInformer(config)})
	if err != nil {
		return nil, fmt.Errorf("making the informers: %w", err)
	}
	// What CapacityBuffers and ProvisioningRequests refer to is read when a page needs it.
	cached, err := client.New(config, client.Options{Scheme: scheme, Mapper: g.Mapper, Cache: &client.CacheOptions{
		Reader: informers, Unstructured: true, DisableFor: []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}, &appsv1.StatefulSet{}, &corev1.PodTemplate{}},
	}})
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	followed := &Gatherer{
		Kinds: kinds, Cached: cached, Live: live, Mapper: g.Mapper, Catalog: catalog, Ledger: g.Ledger, Clock: g.Clock, Prices: func() []prices.Rule { return settings().Prices },
	}
	if err := followed.Follow(ctx, informers); err != nil {
		return nil, err
	}
	go func() { _ = informers.Start(ctx) }() // It fails only if it was started before.
	return followed, nil
}
