package published

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/cloud"
)

// Source is what those who explain or plan for a cluster without being its controller take from the controller.
type Source struct {
	cloud.Catalog
	// At is when the controller published the instance types. It is zero if they are others.
	At time.Time
	// Builtin tells users why the instance types are the built-in ones. It is "" if they are others.
	Builtin string
	Quotas  Quotas
	// Settings are those of the controller. Assumed tells users that they are the defaults because the real ones are unknown.
	Settings Settings
	Assumed  string
	// Forbidden reports that the user lacks the right to read them.
	Forbidden bool
}

// OrBuiltin returns what the controller in a namespace has published. The given instance types, if there are any, replace those of the controller. If
// there are neither, the built-in ones do. It returns an error if the API server does not answer.
func OrBuiltin(ctx context.Context, reader client.Reader, namespace string, given []catalog.InstanceType) (Source, error) {
	found, err := Find(ctx, reader, namespace)
	if err != nil {
		return Source{}, err
	}
	s := Source{Catalog: found.Catalog, At: found.At, Quotas: found.Quotas, Settings: found.Settings, Forbidden: found.Forbidden}
	if found.Assumed {
		s.Assumed = "the controller is assumed to have default settings, because it has not published them"
		if found.Forbidden {
			s.Assumed = "the controller is assumed to have default settings, because " + found.Missing
		}
	}
	if given == nil && found.Missing != "" {
		s.Builtin = fmt.Sprintf("%s, so zones and prices are those of %s", found.Missing, builtin.Region)
		given, err = builtin.InstanceTypes()
	}
	if given != nil {
		s.Catalog, s.At = cloud.SameForAll(given), time.Time{}
	}
	return s, err
}
