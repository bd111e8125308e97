package dra_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// During an upgrade, the new driver starts before the old one ends.
func TestEndOfFormerDriverLeavesSocket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	former, socket := w.stop, filepath.Join(w.config.Registry, "gpu.karve.sh-reg.sock")
	before, err := os.Stat(socket)
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	w.eventually(func() error {
		now, err := os.Stat(socket)
		if err == nil && os.SameFile(before, now) {
			err = errors.New("the socket is that of the former driver")
		}
		return err
	})
	former()
	w.register()
	w.stop()
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the last driver leaves its socket: %v", err)
	}
}
