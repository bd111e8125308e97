package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
)

// machines are the instance types of a cluster.
type machines struct {
	cloud.Catalog
	// builtin reports whether they are the built-in ones.
	builtin bool
	// note says for users where they come from, or why they are the built-in ones.
	note string
}

// addNamespaceFlag adds the flag that says where the controller is.
func addNamespaceFlag(fs *pflag.FlagSet, namespace *string) {
	fs.StringVar(namespace, "karve-namespace", "karve-system", "namespace of Karve's controller, which publishes its instance types and prices there")
}

// machines returns the instance types that the controller in a namespace has published, and the built-in ones if they cannot be read.
func (c connection) machines(ctx context.Context, namespace string, now time.Time) (machines, error) {
	var m corev1.ConfigMap
	key := client.ObjectKey{Namespace: namespace, Name: published.Name}
	err := c.Get(ctx, key, &m)
	why := ""
	switch {
	case apierrors.IsNotFound(err):
		why = fmt.Sprintf("there is no ConfigMap %s, in which the controller publishes its instance types (--karve-namespace)", key)
	case apierrors.IsForbidden(err):
		why = fmt.Sprintf("you may not get ConfigMap %s, in which the controller publishes its instance types", key)
	case err != nil:
		return machines{}, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	default:
		listed, at, err := published.Read(&m)
		if err == nil {
			return machines{Catalog: listed, note: fmt.Sprintf("the instance types, zones and prices are those that the controller published %s ago", duration.HumanDuration(now.Sub(at)))}, nil
		}
		why = err.Error()
	}
	types, err := builtin.InstanceTypes()
	return machines{
		Catalog: cloud.SameForAll(types), builtin: true,
		note: fmt.Sprintf("%s, so zones and prices are those of %s; --instance-types takes your own", why, builtinRegion),
	}, err
}
