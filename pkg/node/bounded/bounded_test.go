package bounded_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/bounded"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
)

func TestBoundedLibraryPassesLibrarySuite(t *testing.T) {
	t.Parallel()
	gputest.TestLibrary(t, func(*testing.T) (gpu.Library, gputest.Control) {
		f := gputest.New()
		return &bounded.Library{Library: f}, f
	})
}

func TestHungCallTimesOutAndOthersDoNotWait(t *testing.T) {
	t.Parallel()
	devices := gputest.T4s(1)
	for name, ask := range map[string]func(gpu.Library) error{
		"Init":     func(l gpu.Library) error { _, err := l.Init(); return err },
		"Shutdown": gpu.Library.Shutdown,
		"Devices":  func(l gpu.Library) error { _, err := l.Devices(); return err },
		"Usage":    func(l gpu.Library) error { _, err := l.Usage(devices[0].UUID); return err },
		"Recovery": func(l gpu.Library) error { _, err := l.Recovery(devices[0].UUID); return err },
		"Wait":     func(l gpu.Library) error { _, _, err := l.Wait(5 * time.Second); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := gputest.New(devices...)
				l := &bounded.Library{Library: f}
				if _, err := l.Init(); err != nil {
					t.Fatal(err)
				}
				f.Hang(true)
				began := clock.RealClock{}.Now() // The bubble's clock.
				if err := ask(l); !errors.Is(err, gpu.ErrHung) || !errors.Is(l.Err(), gpu.ErrHung) {
					t.Errorf("%v, and then %v", err, l.Err())
				}
				if took := (clock.RealClock{}).Since(began); took > 2*time.Minute || name != "Init" && took > 20*time.Second {
					t.Errorf("it took %s", took)
				}
				began = clock.RealClock{}.Now()
				for range 100 {
					if _, err := l.Devices(); !errors.Is(err, gpu.ErrHung) {
						t.Errorf("another call: %v", err)
					}
				}
				if took := (clock.RealClock{}).Since(began); took != 0 {
					t.Errorf("others waited %s", took)
				}
				f.Hang(false)
				synctest.Wait()
				if err := l.Err(); err != nil {
					t.Errorf("after it was answered: %v", err)
				}
				if err := errors.Join(err(l.Init()), ask(l)); err != nil {
					t.Errorf("after it was answered: %v", err)
				}
			})
		})
	}
}

func err(_ gpu.Driver, err error) error { return err }

func TestLateEventIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		devices := gputest.T4s(1)
		f := gputest.New(devices...)
		l := &bounded.Library{Library: f}
		if _, err := l.Init(); err != nil {
			t.Fatal(err)
		}
		f.Hang(true)
		if _, _, err := l.Wait(time.Second); !errors.Is(err, gpu.ErrHung) {
			t.Fatal(err)
		}
		f.Report(devices[0].UUID, 48)
		f.Hang(false)
		synctest.Wait()
		if e, ok, err := l.Wait(0); !ok || err != nil || e.XID != 48 {
			t.Errorf("%+v %t %v", e, ok, err)
		}
	})
}
