package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/mps"
)

// MPSCommand is the argument that makes karve-node run the MPS daemons of a node instead of the agent.
const MPSCommand = "mps-daemon"

// MPSOptions are the options of the program that runs MPS daemons.
type MPSOptions struct {
	dir      string
	shmMiB   int64
	keepMode bool
	Level    slog.Level
}

// maxShmMiB is a bound for a value that was meant to be in bytes.
const maxShmMiB = 1 << 20

// ParseMPS parses the arguments after MPSCommand.
func ParseMPS(args []string, env func(string) (string, bool), stderr io.Writer) (MPSOptions, error) {
	var o MPSOptions
	size := ""
	f := newEnvironment("karve-node "+MPSCommand, env, stderr)
	f.text(&o.dir, "mps-dir", "MPS_DIR", mps.Dir, "directory on the host that the agent and containers share with this program, at the same path")
	f.text(&size, "shm-mib", "MPS_SHM_MIB", "1024", "size of the shared memory of the daemon and the clients of each GPU, in MiB. "+
		"The program mounts it in the directory, from which mounts must propagate to the host; 0 mounts nothing")
	f.boolean(&o.keepMode, "keep-compute-mode", "MPS_KEEP_COMPUTE_MODE", false, "leave the compute mode of GPUs as it is, where it may not be changed. "+
		"Processes that do not use the daemon of a GPU can then use the GPU without limits")
	level, err := f.parse(args)
	if err != nil {
		return MPSOptions{}, err
	}
	o.Level = level
	if o.shmMiB, err = strconv.ParseInt(size, 10, 64); err != nil || o.shmMiB < 0 || o.shmMiB > maxShmMiB {
		return MPSOptions{}, fmt.Errorf("--shm-mib: is %q, and can be 0 to %d", size, maxShmMiB)
	}
	return o, nil
}

// SuperviseMPS runs the daemons that the agent wants until ctx ends.
func SuperviseMPS(ctx context.Context, o MPSOptions, library mps.Library) error {
	logr.FromContextOrDiscard(ctx).Info("Running MPS daemons", "dir", o.dir, "shmMiB", o.shmMiB, "keepComputeMode", o.keepMode)
	return (&mps.Supervisor{Dir: o.dir, Program: mps.Program, Library: library, ShmMiB: o.shmMiB, KeepMode: o.keepMode}).Run(ctx)
}
