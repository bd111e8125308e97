package watchdog

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
)

// saveTimeout is how long the objects may take to be stored before the process ends.
const saveTimeout = 5 * time.Second

// NeedLeaderElection returns true, because only the leader decides.
func (w *Watchdog) NeedLeaderElection() bool { return true }

// Load reads the stored objects unless it has read them before. A round must not begin before that.
func (w *Watchdog) Load(ctx context.Context) error {
	if w == nil {
		return nil
	}
	w.loading.Lock()
	defer w.loading.Unlock()
	if w.loaded {
		return nil
	}
	if err := w.store.load(ctx, w.Aside, time.Now()); err != nil {
		return err
	}
	w.loaded = true
	return nil
}

// Start stores which objects are set aside until the context ends. It returns an error, which ends the manager, once the process must be restarted.
func (w *Watchdog) Start(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.stop:
		case <-ticker.C:
		}
		w.setAside.Set(float64(len(w.Aside.Entries())))
		saving, cancel := context.WithTimeout(ctx, saveTimeout)
		err := w.store.save(saving, w.Aside)
		cancel()
		if err != nil {
			log.FromContext(ctx).Error(err, "Which objects are set aside was not stored")
		}
		if err := w.restart(time.Now()); err != nil {
			return fmt.Errorf("the process must be restarted: %w", err)
		}
	}
}

// Entries returns the objects that are set aside, sorted by time.
func (w *Watchdog) Entries() []Entry {
	if w == nil {
		return nil
	}
	return w.Aside.Entries()
}
