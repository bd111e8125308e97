package operator

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

func TestControllerEndsOnceMissingKindIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var served atomic.Bool
		asked := 0
		n := &newKinds{kinds: []schema.GroupVersionKind{{Group: "karpenter.sh", Kind: "NodeOverlay"}, {Group: "g", Kind: "Other"}}, clock: clock.RealClock{}}
		n.serves = func(kind schema.GroupVersionKind) (bool, error) {
			asked++
			if kind.Kind == "Other" {
				return false, errors.New("the API server is away")
			}
			return served.Load(), nil
		}
		ended := make(chan error, 1)
		go func() { ended <- n.Start(t.Context()) }()
		time.Sleep(10*kindsEvery + time.Second)
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v though nothing is new", err)
		default:
		}
		if asked != 20 {
			t.Errorf("it asked %d times in ten minutes, want 10 for each kind", asked)
		}
		served.Store(true)
		if err := <-ended; !errors.Is(err, errNewKind) || !strings.Contains(err.Error(), "NodeOverlay.karpenter.sh") {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestNewKindsReturnsAtOnceIfAllKindsAreServed(t *testing.T) {
	t.Parallel()
	if err := (&newKinds{}).Start(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWaitingForKindsEndsWithController(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := &newKinds{kinds: []schema.GroupVersionKind{{Kind: "Other"}}, clock: clock.RealClock{}}
	if err := n.Start(ctx); err != nil {
		t.Error(err)
	}
}
