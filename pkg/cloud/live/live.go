// Package live has the clients that the controller uses to call the clouds. Package clouds describes the same clouds without clients.
package live

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/images"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/cloud/aws/quotas"
	"karve.sh/karve/pkg/metrics"
)

// Clouds are the clouds that the controller calls. A cloud is first called when the controller needs something from it.
type Clouds struct {
	// Catalogs have the machines of the node classes of each kind. A catalog is up to date while it runs.
	Catalogs map[schema.GroupKind]Catalog
	Images   cloud.ImageSource
	// Quotas reads the quotas of the account.
	Quotas func(context.Context) ([]catalog.Quota, error)
}

// Catalog is a catalog that runs.
type Catalog interface {
	cloud.Catalog
	manager.Runnable
}

// New returns the clouds. The options are those of Karpenter.
func New(options instancetype.Options, all *metrics.Metrics, clk clock.WithTicker) Clouds {
	load := api.Once(func(ctx context.Context) (*api.Clients, error) { return api.Load(ctx, api.Counted(all.AWSCalls)) })
	return Clouds{
		Catalogs: map[schema.GroupKind]Catalog{aws.NodeClassKind: instancetype.New(instancetype.Config{Options: options, Load: load, Metrics: all, Clock: clk})},
		Images:   &images.Source{Load: load, Now: clk.Now},
		Quotas:   (&quotas.Source{Load: load}).Read,
	}
}
