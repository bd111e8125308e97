package gather

import (
	"context"
	"reflect"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Writing returns a client whose writes of NodeClaims the Gatherer takes into account immediately.
func (g *Gatherer) Writing(c client.Client) client.Client { return writer{c, g} }

type writer struct {
	client.Client
	gatherer *Gatherer
}

func (w writer) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	return w.write(ctx, o, func(ctx context.Context) error { return w.Client.Create(ctx, o, options...) })
}

func (w writer) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	return w.write(ctx, o, func(ctx context.Context) error { return w.Client.Update(ctx, o, options...) })
}

func (w writer) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.PatchOption) error {
	return w.write(ctx, o, func(ctx context.Context) error { return w.Client.Patch(ctx, o, patch, options...) })
}

func (w writer) Delete(ctx context.Context, o client.Object, options ...client.DeleteOption) error {
	return w.bounded(ctx, o, func(ctx context.Context) error {
		claim, ok := o.(*karpv1.NodeClaim)
		if !ok {
			return w.Client.Delete(ctx, o, options...)
		}
		w.gatherer.written.begin(claim.Name)
		err := w.Client.Delete(ctx, o, options...)
		w.gatherer.written.end(claim.Name, write{uid: claim.UID, version: claim.ResourceVersion, deleted: true}, client.IgnoreNotFound(err), w.gatherer.Clock.Now())
		return err
	})
}

// write calls a function that writes an object and sets it to the result.
func (w writer) write(ctx context.Context, o client.Object, do func(context.Context) error) error {
	return w.bounded(ctx, o, func(ctx context.Context) error {
		claim, ok := o.(*karpv1.NodeClaim)
		if !ok {
			return do(ctx)
		}
		w.gatherer.written.begin(claim.Name)
		err := do(ctx)
		w.gatherer.written.end(claim.Name, write{uid: claim.UID, version: claim.ResourceVersion, claim: claim.DeepCopy()}, err, w.gatherer.Clock.Now())
		return err
	})
}

// bounded bounds how long a write may take.
func (w writer) bounded(ctx context.Context, o client.Object, do func(context.Context) error) error {
	return w.gatherer.Watchdog.Write(ctx, reflect.Indirect(reflect.ValueOf(o)).Type().Name(), o, do)
}

// Status returns a client whose writes of the status are bounded too.
func (w writer) Status() client.SubResourceWriter { return statusWriter{w.Client.Status(), w} }

type statusWriter struct {
	client.SubResourceWriter
	writer writer
}

func (s statusWriter) Patch(ctx context.Context, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption) error {
	return s.writer.bounded(ctx, o, func(ctx context.Context) error { return s.SubResourceWriter.Patch(ctx, o, patch, options...) })
}
