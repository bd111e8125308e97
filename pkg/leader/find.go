package leader

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// patience is how long the Lease may take to be read. What else is read does not depend on it.
const patience = 5 * time.Second

// In returns whether a controller works whose Lease is in a namespace. now is the clock.
func In(ctx context.Context, reader client.Reader, namespace string, now func() time.Time) Leader {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var lease coordinationv1.Lease
	err := reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: Name}, &lease)
	switch {
	case err == nil:
		return Of(&lease, now())
	case apierrors.IsNotFound(err):
		return none(namespace, false)
	case apierrors.IsForbidden(err):
		return Leader{State: Unknown, Namespace: namespace, Message: fmt.Sprintf("you may not get leases.coordination.k8s.io in the namespace %s", namespace)}
	}
	return Leader{State: Unknown, Namespace: namespace, Message: fmt.Sprintf("reading Lease %s/%s: %s", namespace, Name, err)}
}

// Find is like [In]. If the namespace has no Lease, it looks in all others, if the reader may list their Leases.
func Find(ctx context.Context, reader client.Reader, namespace string, now func() time.Time) Leader {
	found := In(ctx, reader, namespace, now)
	if found.State != Missing {
		return found
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var all coordinationv1.LeaseList
	if err := reader.List(ctx, &all, client.MatchingFields{"metadata.name": Name}); err != nil {
		return found
	}
	if len(all.Items) == 0 {
		return none(namespace, true)
	}
	found = Of(&all.Items[0], now())
	for i := range all.Items[1:] {
		if other := Of(&all.Items[i+1], now()); other.livelier(&found) {
			found = other
		}
	}
	return found
}

// livelier reports whether a controller worked later than another one.
func (l *Leader) livelier(than *Leader) bool {
	switch {
	case than.LastSeen == nil:
		return false
	case l.LastSeen == nil:
		return true
	}
	return l.LastSeen.After(*than.LastSeen)
}

// none describes a cluster without a Lease. everywhere reports whether all namespaces were searched.
func none(namespace string, everywhere bool) Leader {
	l := Leader{State: Missing, Namespace: namespace, Message: fmt.Sprintf("no controller has ever worked here, since no namespace has a Lease %s: %s", Name, meaning)}
	if !everywhere {
		l.Message = fmt.Sprintf("no controller has ever worked in the namespace %s (--karve-namespace), since it has no Lease %s", namespace, Name)
	}
	return l
}
