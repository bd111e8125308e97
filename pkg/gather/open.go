package gather

import (
	"context"
	"errors"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

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
	g, err := follower(ctx, config, catalog, func() []prices.Rule { return settings().Prices })
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*facts.Cluster, error) {
		if err := answers(ctx, asked.RESTClient()); err != nil {
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

// answers returns an error if the API server does not answer. Without this check, informers would continue to serve old data.
func answers(ctx context.Context, api rest.Interface) error {
	err := api.Get().AbsPath("/version").Do(ctx).Error()
	var refused apierrors.APIStatus
	if err == nil || errors.As(err, &refused) {
		return nil // A user who may not read the version still gets an answer.
	}
	return fmt.Errorf("the API server does not answer: %w", err)
}

// follower returns a Gatherer with its own informers.
func follower(ctx context.Context, config *rest.Config, catalog cloud.Catalog, rules func() []prices.Rule) (*Gatherer, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	live, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	_, err = live.RESTMapper().RESTMapping(schema.GroupKind{Group: karpapis.Group, Kind: "NodeOverlay"})
	g := &Gatherer{
		Cached: live, Live: live, Mapper: live.RESTMapper(), Catalog: catalog, Ledger: launching.NewLedger(), Clock: clock.RealClock{},
		NodeOverlays: err == nil,
		// An informer for objects that the user may not read would wait forever.
		DRA: live.List(ctx, &resourcev1.ResourceSliceList{}, client.Limit(1)) == nil && live.List(ctx, &resourcev1.DeviceClassList{}, client.Limit(1)) == nil &&
			live.List(ctx, &resourcev1.ResourceClaimList{}, client.Limit(1)) == nil && live.List(ctx, &resourcev1.ResourceClaimTemplateList{}, client.Limit(1)) == nil,
		DeviceTaintRules: live.List(ctx, &resourcev1.DeviceTaintRuleList{}, client.Limit(1)) == nil,
	}
	if g.PodGroups, err = readablePodGroups(ctx, live); err != nil {
		return nil, err
	}
	if _, err := g.Cluster(ctx); err != nil {
		return nil, err
	}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: live.RESTMapper(), DefaultTransform: Trim(), NewInformer: NewInformer(config)})
	if err != nil {
		return nil, fmt.Errorf("making the informers: %w", err)
	}
	followed := &Gatherer{
		Cached: informers, Live: live, Mapper: g.Mapper, Catalog: catalog, Ledger: g.Ledger, Clock: g.Clock, NodeOverlays: g.NodeOverlays, Prices: rules,
		DRA: g.DRA, DeviceTaintRules: g.DeviceTaintRules, PodGroups: g.PodGroups,
	}
	if err := followed.Follow(ctx, informers); err != nil {
		return nil, err
	}
	go func() { _ = informers.Start(ctx) }() // It fails only if it was started before.
	return followed, nil
}
