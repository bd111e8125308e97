package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// spawner starts all child processes from one thread. Pdeathsig fires when the forking thread dies, not the process, and Go ends threads at any time.
// This thread is locked to a goroutine that never returns.
var spawner = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// process is a child process in a process group of its own, so that Ctrl-C in a terminal reaches only its parent. The parent then stops it.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended and was reaped
	err  error         // how it ended; read after done
}

func startProcess(bin string, args, env []string, log string) (*process, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	// Do not use CommandContext: the process outlives the context of Start. stop ends it.
	cmd := exec.Command(bin, args...) //nolint:noctx // our own binaries
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	spawner() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// stop sends SIGTERM, and kills the process after the grace period.
func (p *process) stop(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.kill()
	}
}

func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal signals the whole process group. A missing group is not an error. After the process was reaped its PID may belong to another process.
func (p *process) signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, s)
	}
}

// waitReady calls ready until it succeeds, the process ends or the context is done. The interval is short because the delays of all components add up.
func (p *process) waitReady(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.done:
			return fmt.Errorf("it ended (%w); its log %s ends with:\n%s", orNil(p.err), p.log, logTail(p.log))
		case <-ctx.Done():
			return fmt.Errorf("it is not ready (%w: %w); its log %s ends with:\n%s", ctx.Err(), orNil(last), p.log, logTail(p.log))
		case <-tick.C:
		}
		if last = ready(ctx); last == nil {
			return nil
		}
	}
}

var errNone = errors.New("without an error")

func orNil(err error) error {
	if err == nil {
		return errNone
	}
	return err
}

func (p *process) ended() (<-chan struct{}, func() error) {
	return p.done, func() error { return orNil(p.err) }
}
