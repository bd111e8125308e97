package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// errNewKind ends the process when the API server begins to serve an optional kind. Informers and watches are only created at the start, so the next start
// reads the kind.
var errNewKind = errors.New("the API server serves a kind that it did not serve at the start")

// kindsEvery is the interval of the check. Users install CRDs before they use them.
const kindsEvery = time.Minute

// newKinds waits for kinds that the API server does not serve yet. It is a Runnable of the manager.
type newKinds struct {
	kinds  []schema.GroupVersionKind
	serves func(schema.GroupVersionKind) (bool, error)
	clock  clock.WithTicker
}

// NeedLeaderElection returns false, because each replica has its own informers.
func (n *newKinds) NeedLeaderElection() bool { return false }

// Start returns errNewKind when one of the kinds is served. It returns nil when the context ends.
func (n *newKinds) Start(ctx context.Context) error {
	if len(n.kinds) == 0 {
		return nil
	}
	return every(ctx, n.clock, kindsEvery, func() error {
		for _, kind := range n.kinds {
			switch served, err := n.serves(kind); {
			case err != nil:
				log.FromContext(ctx).V(1).Info("Asking for a kind", "kind", kind, "error", err.Error())
			case served:
				return fmt.Errorf("%w: %s", errNewKind, kind.GroupKind())
			}
		}
		return nil
	})
}

// every calls a check at an interval until the context ends, or until the check returns an error.
func every(ctx context.Context, clk clock.WithTicker, interval time.Duration, check func() error) error {
	ticker := clk.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		if err := check(); err != nil {
			return err
		}
	}
}

// serves reports whether the API server serves a kind now. It uses a new mapper, because the manager's caches the versions of a group and would miss a kind in
// a new version.
func serves(m ctrl.Manager, kind schema.GroupVersionKind) (bool, error) {
	mapper, err := apiutil.NewDynamicRESTMapper(m.GetConfig(), m.GetHTTPClient())
	if err != nil {
		return false, fmt.Errorf("making a mapper of kinds: %w", err)
	}
	_, err = mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the API server for %s: %w", kind.Kind, err)
	}
	return true, nil
}
