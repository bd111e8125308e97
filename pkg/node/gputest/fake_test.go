package gputest_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
)

func TestFakePassesLibrarySuite(t *testing.T) {
	t.Parallel()
	gputest.TestLibrary(t, func(*testing.T) (gpu.Library, gputest.Control) {
		f := gputest.New()
		return f, f
	})
}

func TestFakePassesReadOnlySuite(t *testing.T) {
	t.Parallel()
	gputest.TestReadOnly(t, gputest.New(gputest.T4s(4)...))
}

func TestFakeWaitsInSynctestBubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := gputest.New(gputest.T4s(1)...)
		if _, err := f.Init(); err != nil {
			t.Fatal(err)
		}
		start := clock.RealClock{}.Now() // The bubble's clock.
		if _, ok, err := f.Wait(time.Hour); ok || err != nil {
			t.Errorf("Wait: %v %v", ok, err)
		}
		if waited := (clock.RealClock{}).Since(start); waited != time.Hour {
			t.Errorf("Wait took %v", waited)
		}
	})
}

func TestFakeReturnsInjectedErrors(t *testing.T) {
	t.Parallel()
	f := gputest.New(gputest.T4s(1)...)
	if _, err := f.Init(); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	f.Fail("Devices", broken)
	if _, err := f.Devices(); !errors.Is(err, broken) {
		t.Errorf("Devices: %v", err)
	}
	f.Fail("Devices", nil)
	if _, err := f.Devices(); err != nil {
		t.Error(err)
	}
	if f.Inits() != 1 {
		t.Errorf("opened %d times", f.Inits())
	}
}
