package published

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Find reads the catalog that the controller in a namespace has published, and when that was. If there is none that can be read, missing says why, for users. The
// error is of an API server that does not answer.
func Find(ctx context.Context, reader client.Reader, namespace string) (c Catalog, at time.Time, missing string, err error) {
	var m corev1.ConfigMap
	key := client.ObjectKey{Namespace: namespace, Name: Name}
	err = reader.Get(ctx, key, &m)
	switch {
	case apierrors.IsNotFound(err):
		return nil, at, fmt.Sprintf("there is no ConfigMap %s, in which the controller publishes its instance types (--karve-namespace)", key), nil
	case apierrors.IsForbidden(err):
		return nil, at, fmt.Sprintf("you may not get ConfigMap %s, in which the controller publishes its instance types", key), nil
	case err != nil:
		return nil, at, "", fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	if c, at, err = Read(&m); err != nil {
		return nil, at, err.Error(), nil //nolint:nilerr // Who cannot read it is told why, and goes on without it.
	}
	return c, at, "", nil
}
