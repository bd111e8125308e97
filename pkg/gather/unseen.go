package gather

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// listFormerWrites lists the NodeClaims that another replica may have written just before this one became the leader.
func (g *Gatherer) listFormerWrites(ctx context.Context) error {
	var claims karpv1.NodeClaimList
	if err := List(ctx, g.Live, &claims, client.HasLabels{v1alpha1.GPUNodeClassLabel}); err != nil {
		return fmt.Errorf("listing Karve's NodeClaims: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		g.written.editWrite(claim.Name, func(is *write) { *is = write{uid: claim.UID, version: claim.ResourceVersion} })
	}
	return nil
}

const (
	// claimsInParallel is how many NodeClaims are read concurrently. A burst creates as many concurrently.
	claimsInParallel = 16
	// maxListedForOne is up to how many NodeClaims a list may return for each that would be read otherwise. A busy API server takes a quarter of a second for a
	// request, however small.
	maxListedForOne = 20
)

// unseen returns the NodeClaims whose writes the informer may not show. It reads them from the API server, except those that a write has just returned: with one
// list if they are many, and otherwise, or if the list does not have them, one by one.
// A NodeClaim that does not exist is nil.
func (g *Gatherer) unseen(ctx context.Context) (map[string]*karpv1.NodeClaim, error) {
	claims, now := map[string]*karpv1.NodeClaim{}, g.Clock.Now()
	writes := g.written.unseen(g.followed.nodeClaims.stored, now)
	for name, is := range writes {
		if claim := is.settledClaim(now); claim != nil {
			claims[name] = claim
			delete(writes, name)
		}
	}
	if err := g.listUnseen(ctx, writes, claims); err != nil {
		return nil, err
	}
	names := slices.Sorted(maps.Keys(writes))
	read, errs := make([]*karpv1.NodeClaim, len(names)), make([]error, len(names))
	workqueue.ParallelizeUntil(ctx, claimsInParallel, len(names), func(i int) {
		claim := &karpv1.NodeClaim{}
		err := g.Live.Get(ctx, client.ObjectKey{Name: names[i]}, claim)
		switch {
		case apierrors.IsNotFound(err):
			g.written.gone(names[i], writes[names[i]], g.Clock.Now())
		case err != nil:
			errs[i] = fmt.Errorf("reading NodeClaim %s: %w", names[i], err)
		default:
			read[i] = claim
		}
	})
	if err := errors.Join(errors.Join(errs...), ctx.Err()); err != nil { // If the context ended, not all were read.
		return nil, err
	}
	for i, name := range names {
		claims[name] = read[i]
	}
	return claims, nil
}

// listUnseen moves NodeClaims from writes to claims with one list, if that returns few others.
func (g *Gatherer) listUnseen(ctx context.Context, writes map[string]write, claims map[string]*karpv1.NodeClaim) error {
	if len(writes) < 2 || len(g.followed.nodeClaims.store.ListKeys())+len(writes) > maxListedForOne*len(writes) {
		return nil
	}
	var all karpv1.NodeClaimList
	if err := List(ctx, g.Live, &all, client.HasLabels{v1alpha1.GPUNodeClassLabel}); err != nil {
		return fmt.Errorf("listing Karve's NodeClaims: %w", err)
	}
	for i := range all.Items {
		claim := &all.Items[i]
		if _, unseen := writes[claim.Name]; unseen {
			claims[claim.Name] = claim
			delete(writes, claim.Name)
		}
	}
	return nil
}
