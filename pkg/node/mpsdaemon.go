package node

import (
	"context"
	"flag"
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
	or := func(name, otherwise string) string {
		if value, ok := env(name); ok && value != "" {
			return value
		}
		return otherwise
	}
	var o MPSOptions
	set := flag.NewFlagSet("karve-node "+MPSCommand, flag.ContinueOnError)
	set.SetOutput(stderr)
	set.StringVar(&o.dir, "mps-dir", or("MPS_DIR", mps.Dir), "directory on the host that the agent and containers share with this program, at the same path [MPS_DIR]")
	size := set.String("shm-mib", or("MPS_SHM_MIB", "1024"), "size of the shared memory of the daemon and the clients of each GPU, in MiB. "+
		"The program mounts it in the directory, from which mounts must propagate to the host; 0 mounts nothing [MPS_SHM_MIB]")
	keep := set.String("keep-compute-mode", or("MPS_KEEP_COMPUTE_MODE", "false"), "leave the compute mode of GPUs as it is, where it may not be changed. "+
		"Processes that do not use the daemon of a GPU can then use the GPU without limits [MPS_KEEP_COMPUTE_MODE]")
	said := set.String("log-level", or("LOG_LEVEL", "info"), "debug, info, warn or error [LOG_LEVEL]")
	if err := set.Parse(args); err != nil {
		return MPSOptions{}, err
	}
	if set.NArg() > 0 {
		return MPSOptions{}, fmt.Errorf("unexpected argument %q; see karve-node %s --help", set.Arg(0), MPSCommand)
	}
	mib, err := strconv.ParseInt(*size, 10, 64)
	if err != nil || mib < 0 || mib > maxShmMiB {
		return MPSOptions{}, fmt.Errorf("--shm-mib: is %q, and can be 0 to %d", *size, maxShmMiB)
	}
	o.shmMiB = mib
	if o.keepMode, err = strconv.ParseBool(*keep); err != nil {
		return MPSOptions{}, fmt.Errorf("--keep-compute-mode: is %q, and can be true, false", *keep)
	}
	if err := o.Level.UnmarshalText([]byte(*said)); err != nil {
		return MPSOptions{}, fmt.Errorf("--log-level: is %q, and can be debug, info, warn, error", *said)
	}
	return o, nil
}

// SuperviseMPS runs the daemons that the agent wants until ctx ends.
func SuperviseMPS(ctx context.Context, o MPSOptions, library mps.Library) error {
	logr.FromContextOrDiscard(ctx).Info("Running MPS daemons", "dir", o.dir, "shmMiB", o.shmMiB, "keepComputeMode", o.keepMode)
	return (&mps.Supervisor{Dir: o.dir, Program: mps.Program, Library: library, ShmMiB: o.shmMiB, KeepMode: o.keepMode}).Run(ctx)
}
