package gather

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/controllers/launch"
)

// Open returns a Gatherer that follows a cluster with informers of its own until the context ends, for those who look at a cluster for long without a manager. It
// returns an error if the cluster cannot be read now, because informers would try forever.
func Open(ctx context.Context, config *rest.Config, catalog cloud.Catalog, replicasTimeout time.Duration) (*Gatherer, error) {
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
		Cached: live, Live: live, Mapper: live.RESTMapper(), Catalog: catalog, Ledger: launch.NewLedger(), Clock: clock.RealClock{},
		ReplicasTimeout: replicasTimeout, NodeOverlays: err == nil,
	}
	if _, err := g.Cluster(ctx); err != nil {
		return nil, err
	}
	informers, err := cache.New(config, cache.Options{Scheme: scheme, Mapper: live.RESTMapper(), DefaultTransform: Trim()})
	if err != nil {
		return nil, fmt.Errorf("making the informers: %w", err)
	}
	followed := &Gatherer{
		Cached: informers, Live: live, Mapper: g.Mapper, Catalog: catalog, Ledger: g.Ledger, Clock: g.Clock, ReplicasTimeout: replicasTimeout, NodeOverlays: g.NodeOverlays,
	}
	if err := followed.Follow(ctx, informers); err != nil {
		return nil, err
	}
	go func() { _ = informers.Start(ctx) }() // It fails only if it was started before.
	return followed, nil
}
