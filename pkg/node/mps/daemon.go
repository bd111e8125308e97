package mps

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/go-logr/logr"
)

// quitTimeout is how long a daemon may take to quit.
const quitTimeout = 5 * time.Second

// daemon is the daemon of a GPU.
type daemon struct {
	state

	uuid    string
	control control
	starts  int
	problem string
	command *exec.Cmd
	ended   chan error // It receives when the process ends.
}

// over records that the daemon is not running.
func (d *daemon) over(problem string) {
	d.state, d.problem, d.command = d.state.ended(time.Now()), problem, nil
}

// ask asks the daemon whether it answers, and tells it its limits if it does not have them. A client that runs as root can change the limits; they are set
// again.
func (d *daemon) ask(ctx context.Context, wanted Limits) {
	d.asked = time.Now()
	memory := ""
	told := d.answers && d.told == wanted
	if told {
		memory = d.memory
	}
	now, err := d.control.limits(ctx, wanted)
	if err == nil && (!told || !now.are(wanted, memory)) {
		if told && now.percents[0] != float64(wanted.ThreadPercent) || told && now.memory[0] != memory {
			logr.FromContextOrDiscard(ctx).Info("A client has changed the limits of the daemon; setting them again", "gpu", d.uuid)
		}
		if err = d.control.tell(ctx, wanted); err == nil {
			now, err = d.control.limits(ctx, wanted)
		}
	}
	if err != nil {
		d.answers = false
		d.misses++
		d.problem = fmt.Sprintf("its MPS daemon does not answer: %v", err)
		return
	}
	if memory == "" {
		memory = now.memory[0]
	}
	d.answers, d.misses, d.told, d.memory, d.problem = true, 0, wanted, memory, ""
}

// kill makes the daemon quit, and kills it with its servers if it does not.
func (d *daemon) kill(ctx context.Context) {
	if d.command == nil {
		return
	}
	if d.answers {
		_, _ = d.control.talk(ctx, "quit") // What follows does not depend on it.
	}
	quit := quitTimeout
	if !d.answers {
		quit = 0
	}
	select {
	case <-d.ended: //nolint:errcheck // That it ended is all that matters.
	case <-time.After(quit):
	}
	_ = syscall.Kill(-d.command.Process.Pid, syscall.SIGKILL) // Servers may remain even if the daemon does not.
	d.command = nil
}
