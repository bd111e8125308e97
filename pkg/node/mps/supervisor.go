package mps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

// Program is the driver's control daemon and its client.
const Program = "nvidia-cuda-mps-control"

// Supervisor runs the daemons that the agent wants.
type Supervisor struct {
	// Dir is the directory that it shares with the agent.
	Dir string
	// Program is the path or name of the control daemon.
	Program string
	Library Library
	// ShmMiB is the size of the shared memory of each daemon and its clients, in MiB. With 0, daemons have the /dev/shm of this program, and clients the
	// directory that OldShmDir returns. Otherwise, this program must be root, and its mounts in Dir must propagate to the host.
	ShmMiB int64
	// KeepMode leaves the compute mode of GPUs as it is. Processes that do not use the daemon can then use the GPU without limits.
	KeepMode bool
	// Every is how often it reads what the agent wants. It defaults to one second.
	Every time.Duration

	daemons map[string]*daemon
	wanted  Wanted
	said    string
	modes   modes
	last    Status
}

// startingEvery is how often a daemon that has just started is asked.
const startingEvery = 100 * time.Millisecond

// Run runs daemons until ctx ends. Then it stops them all and restores the GPUs' compute modes.
func (s *Supervisor) Run(ctx context.Context) error {
	if s.Every == 0 {
		s.Every = time.Second
	}
	s.daemons, s.modes = map[string]*daemon{}, modes{dir: s.Dir, library: s.Library}
	if s.ShmMiB == 0 {
		if err := makeOldShm(OldShmDir(s.Dir)); err != nil {
			return err
		}
	}
	for {
		s.look(ctx)
		timer := time.NewTimer(s.pause(time.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			s.stopAll(context.WithoutCancel(ctx))
			return nil
		case <-timer.C:
		}
	}
}

// pause returns the delay until the next look. It is shorter while a daemon starts, because pods wait for it.
func (s *Supervisor) pause(now time.Time) time.Duration {
	for _, d := range s.daemons {
		if d.running && !d.answers && now.Sub(d.started) < AskEvery {
			return min(s.Every, startingEvery)
		}
	}
	return s.Every
}

// look reads what the agent wants, takes one action for each daemon, and writes the status.
func (s *Supervisor) look(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	wanted, err := ReadWanted(s.Dir)
	if err == nil {
		s.wanted = wanted
	}
	for _, w := range s.wanted.GPUs {
		if s.daemons[w.UUID] == nil && filepath.Base(w.UUID) == w.UUID && w.UUID != "" && w.UUID != "." && w.UUID != ".." {
			s.daemons[w.UUID] = &daemon{uuid: w.UUID, control: control{program: s.Program, pipes: PipeDir(s.Dir, w.UUID)}}
		}
	}
	var group sync.WaitGroup
	for _, d := range s.daemons {
		group.Go(func() { s.step(ctx, d, find(s.wanted.GPUs, d.uuid)) })
	}
	group.Wait()
	maps.DeleteFunc(s.daemons, func(uuid string, _ *daemon) bool { return !s.wanted.Has(uuid) })
	err = errors.Join(err, s.modes.restoreOthers(s.wanted), s.write(time.Now()))
	said := ""
	if err != nil && err.Error() != s.said {
		log.Error(err, "Not all is well; trying again")
	}
	if err != nil {
		said = err.Error()
	}
	s.said = said
}

func (s *Supervisor) step(ctx context.Context, d *daemon, wanted *Limits) {
	log := logr.FromContextOrDiscard(ctx).WithValues("gpu", d.uuid)
	if d.running {
		select {
		case err := <-d.ended:
			d.over(fmt.Sprintf("its MPS daemon has ended (%v)", err))
			log.Info("The daemon has ended", "status", fmt.Sprint(err))
		default:
		}
	}
	problem := d.problem
	switch d.next(wanted, time.Now()) {
	case start:
		d.starts++
		if err := s.start(ctx, d, wanted.MultiUser); err != nil {
			d.started = time.Now()
			d.over(err.Error())
		}
	case kill:
		log.Info("Ending the daemon, to start it anew", "misses", d.misses)
		d.kill(ctx)
		d.over("its MPS daemon is started anew")
		d.notBefore = time.Now()
	case stop:
		d.kill(ctx)
		d.state, d.problem = state{}, ""
		log.Info("The daemon is not wanted any more")
		if err := unmountShm(ShmDir(s.Dir, d.uuid)); err != nil {
			log.Error(err, "The shared memory of the daemon stays mounted")
		}
	case ask:
		d.ask(ctx, *wanted)
	case nothing:
	}
	if d.problem != problem && d.problem != "" {
		log.Info("The daemon is not well", "problem", d.problem)
	}
}

// start starts a daemon. It sets the GPU's mode to EXCLUSIVE_PROCESS unless KeepMode is set, so that no process bypasses the daemon.
func (s *Supervisor) start(ctx context.Context, d *daemon, multiUser bool) error {
	program, err := exec.LookPath(s.Program)
	if err != nil {
		return fmt.Errorf("the driver's program %s is not there (%w): give the pod of the MPS daemons the driver with NVIDIA_DRIVER_CAPABILITIES=compute,utility", Program, err)
	}
	home := filepath.Join(s.Dir, d.uuid)
	for _, dir := range []string{d.control.pipes, filepath.Join(home, "log")} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Clients of all users go through it.
			return fmt.Errorf("making the directory of an MPS daemon: %w", err)
		}
	}
	if _, err := d.control.talk(ctx, "get_server_list"); err == nil { // It was left by a supervisor that was killed.
		_, _ = d.control.talk(ctx, "quit") // If it stays, the next one does not start and reports why.
	}
	if !s.KeepMode {
		if err := s.modes.exclusive(d.uuid); err != nil {
			return err
		}
	}
	args := []string{"-f"}
	if multiUser {
		args = append(args, "-multiuser-server")
	}
	command := exec.Command(program, args...) //nolint:gosec,noctx // It outlives ctx, so that it can be told to quit.
	command.Env = append(os.Environ(), d.control.environment()...)
	command.Env = append(command.Env, "CUDA_VISIBLE_DEVICES="+d.uuid, "CUDA_MPS_LOG_DIRECTORY="+filepath.Join(home, "log"))
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Its servers end with it.
	if err := s.launch(command, d.uuid); err != nil {
		return fmt.Errorf("starting the MPS daemon: %w", err)
	}
	d.command, d.ended = command, make(chan error, 1)
	go func() { d.ended <- command.Wait() }()
	backoff := d.backoff
	d.state = state{running: true, multiUser: multiUser, started: time.Now(), backoff: backoff}
	d.problem = "its MPS daemon does not answer yet"
	logr.FromContextOrDiscard(ctx).Info("Started a daemon", "gpu", d.uuid, "pid", command.Process.Pid, "multiUser", multiUser)
	return nil
}

// launch starts a daemon with the shared memory of its GPU.
func (s *Supervisor) launch(command *exec.Cmd, uuid string) error {
	if s.ShmMiB == 0 {
		return command.Start()
	}
	dir := ShmDir(s.Dir, uuid)
	if err := mountShm(dir, s.ShmMiB); err != nil {
		return err
	}
	return startWithShm(command, dir)
}

func (s *Supervisor) stopAll(ctx context.Context) {
	var group sync.WaitGroup
	for _, d := range s.daemons {
		group.Go(func() { d.kill(ctx) })
	}
	group.Wait()
	s.daemons, s.wanted = map[string]*daemon{}, Wanted{}
	log := logr.FromContextOrDiscard(ctx)
	if err := errors.Join(s.modes.restoreOthers(s.wanted), s.write(time.Now())); err != nil {
		log.Error(err, "A GPU keeps the compute mode EXCLUSIVE_PROCESS")
	}
}

// write writes the status if it has changed, and at least once per AskEvery.
func (s *Supervisor) write(now time.Time) error {
	status := Status{AsOf: now}
	for _, d := range s.daemons {
		limits := d.told
		limits.UUID = d.uuid
		status.Daemons = append(status.Daemons, Daemon{Limits: limits, Answers: d.answers, Problem: d.problem, OwnShm: s.ShmMiB > 0, Starts: d.starts})
	}
	slices.SortFunc(status.Daemons, func(a, b Daemon) int { return strings.Compare(a.Limits.UUID, b.Limits.UUID) })
	if slices.Equal(status.Daemons, s.last.Daemons) && now.Sub(s.last.AsOf) < AskEvery {
		return nil
	}
	err := status.Write(s.Dir)
	if err == nil {
		s.last = status
	}
	return err
}
