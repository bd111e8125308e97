package published

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Found is what the controller has published.
type Found struct {
	// Catalog was published at the time At. If it cannot be read, Missing is the reason, for users.
	Catalog Catalog
	At      time.Time
	Missing string
	// Forbidden reports that the user lacks the right to read it.
	Forbidden bool
	Quotas    Quotas
	// Settings are those of the controller, or its defaults, and Assumed true, if it has not published them.
	Settings Settings
	Assumed  bool
}

// Find reads what the controller in a namespace has published. It returns an error if the API server does not answer.
func Find(ctx context.Context, reader client.Reader, namespace string) (f Found, err error) {
	f.Settings, f.Assumed = DefaultSettings(), true
	var m corev1.ConfigMap
	key := client.ObjectKey{Namespace: namespace, Name: Name}
	err = reader.Get(ctx, key, &m)
	switch {
	case apierrors.IsNotFound(err):
		f.Missing = fmt.Sprintf("there is no ConfigMap %s, in which the controller publishes its instance types (--karve-namespace)", key)
		return f, nil
	case apierrors.IsForbidden(err):
		f.Forbidden = true
		f.Missing = fmt.Sprintf("you may not get ConfigMap %s, in which the controller publishes its instance types", key)
		return f, nil
	case err != nil:
		return f, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	f.Quotas = QuotasIn(&m)
	settings, ok := SettingsIn(&m)
	f.Settings, f.Assumed = settings, !ok
	if f.Catalog, f.At, err = Read(&m); err != nil {
		f.Missing = err.Error() // A user who may not read it gets the reason, and continues without it.
	}
	return f, nil
}
