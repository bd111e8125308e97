package reconcile

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// untouched is a reader of lists that controllers share. When the test ends, it fails the test if an object that it returned was changed.
type untouched struct {
	client.Reader
	t *testing.T
}

func (u untouched) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := u.Reader.List(ctx, list, options...)
	if err == nil {
		u.watch(list)
	}
	return err //nolint:wrapcheck // It stands for the reader.
}

func (u untouched) watch(list client.ObjectList) {
	before := list.DeepCopyObject()
	u.t.Cleanup(func() {
		if !equality.Semantic.DeepEqual(before, runtime.Object(list)) { // A hundred times as fast as cmp.
			u.t.Errorf("a shared object was changed (-read +now):\n%s", cmp.Diff(before, runtime.Object(list)))
		}
	})
}
