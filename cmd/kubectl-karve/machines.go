package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/words"
)

// machines are the instance types of a cluster.
type machines struct {
	cloud.Catalog
	// builtin reports whether they are the built-in ones.
	builtin bool
	// quotas are those of the cloud's account.
	quotas published.Quotas
	// note tells users where they come from, or why they are the built-in ones.
	note string
}

// addNamespaceFlag adds the flag for the controller's namespace.
func addNamespaceFlag(fs *pflag.FlagSet, namespace *string) {
	fs.StringVar(namespace, "karve-namespace", "karve-system", "namespace of Karve's controller, which publishes its instance types and prices there")
}

// machines returns the instance types that the controller in a namespace has published, or the built-in ones if they cannot be read.
func (c connection) machines(ctx context.Context, namespace string, now time.Time) (machines, error) {
	found, err := published.Find(ctx, c, namespace)
	if err != nil {
		return machines{}, err
	}
	if found.Missing == "" {
		note := fmt.Sprintf("the instance types, zones and prices are those that the controller published %s ago", words.Age(now.Sub(found.At)))
		return machines{Catalog: found.Catalog, quotas: found.Quotas, note: note}, nil
	}
	types, err := builtin.InstanceTypes()
	return machines{
		Catalog: cloud.SameForAll(types), builtin: true, quotas: found.Quotas,
		note: fmt.Sprintf("%s, so zones and prices are those of %s; use --instance-types for your own", found.Missing, builtinRegion),
	}, err
}
