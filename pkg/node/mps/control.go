package mps

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// askTimeout is how long a daemon may take to answer.
const askTimeout = 3 * time.Second

// ask asks a daemon whether it answers, and tells it its limits if it does not have them. A client that runs as root can change the limits; they are set
// again.
func (s *Supervisor) ask(ctx context.Context, d *daemon, wanted Limits) {
	d.asked = time.Now()
	memory := ""
	told := d.answers && d.told == wanted
	if told {
		memory = d.memory
	}
	now, err := s.limits(ctx, wanted)
	if err == nil && (!told || !now.are(wanted, memory)) {
		if told && now.percents[0] != float64(wanted.ThreadPercent) || told && now.memory[0] != memory {
			logr.FromContextOrDiscard(ctx).Info("A client has changed the limits of the daemon; setting them again", "gpu", d.uuid)
		}
		if err = s.tell(ctx, wanted); err == nil {
			now, err = s.limits(ctx, wanted)
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

// answers are what a daemon answers about its limits: first about those of the servers that it will start, and then about those of each running one.
type answers struct {
	percents []float64
	memory   []string
}

// are reports whether the limits are those that the daemon was told. memory is its answer about the memory then, whose format NVIDIA does not document.
func (a answers) are(l Limits, memory string) bool {
	return !slices.ContainsFunc(a.percents, func(p float64) bool { return p != float64(l.ThreadPercent) }) &&
		!slices.ContainsFunc(a.memory, func(m string) bool { return m != memory })
}

// limits asks a daemon for its limits.
func (s *Supervisor) limits(ctx context.Context, l Limits) (answers, error) {
	servers, err := s.servers(ctx, l.UUID)
	if err != nil {
		return answers{}, err
	}
	threads, memory := []string{"get_default_active_thread_percentage"}, []string{"get_default_device_pinned_mem_limit 0"}
	for _, server := range servers {
		threads, memory = append(threads, "get_active_thread_percentage "+server), append(memory, "get_device_pinned_mem_limit "+server+" 0")
	}
	var all answers
	for i := range threads {
		percent, limit, err := s.limit(ctx, l, threads[i], memory[i])
		if err != nil && i == 0 {
			return answers{}, err
		}
		if err == nil { // Otherwise the server has ended.
			all.percents, all.memory = append(all.percents, percent), append(all.memory, limit)
		}
	}
	return all, nil
}

// limit asks a daemon two questions about limits.
func (s *Supervisor) limit(ctx context.Context, l Limits, threads, memory string) (percent float64, limit string, err error) {
	text, err := s.talk(ctx, l.UUID, threads)
	if err != nil {
		return 0, "", err
	}
	if percent, err = strconv.ParseFloat(text, 64); err != nil {
		return 0, "", fmt.Errorf("it says %.80q instead of a percentage", text)
	}
	if l.MemoryMiB > 0 {
		limit, err = s.talk(ctx, l.UUID, memory)
	}
	return percent, limit, err
}

// servers returns the process IDs of a daemon's servers.
func (s *Supervisor) servers(ctx context.Context, uuid string) ([]string, error) {
	answer, err := s.talk(ctx, uuid, "get_server_list")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(answer), func(word string) bool {
		_, err := strconv.Atoi(word)
		return err != nil // The program reports in words that there is none.
	}), nil
}

// tell tells a daemon its limits, for the servers that it will start and for the running ones. Running processes keep the limits with which they
// started.
func (s *Supervisor) tell(ctx context.Context, l Limits) error {
	memory := ""
	if l.MemoryMiB > 0 {
		memory = fmt.Sprintf("0 %dM", l.MemoryMiB)
	}
	percent := strconv.FormatInt(l.ThreadPercent, 10)
	servers, err := s.servers(ctx, l.UUID)
	if err != nil {
		return err
	}
	commands := []string{"set_default_active_thread_percentage " + percent}
	if memory != "" {
		commands = append(commands, "set_default_device_pinned_mem_limit "+memory)
	}
	for _, server := range servers {
		commands = append(commands, "set_active_thread_percentage "+server+" "+percent)
		if memory != "" {
			commands = append(commands, "set_device_pinned_mem_limit "+server+" "+memory)
		}
	}
	for _, command := range commands {
		if _, err := s.talk(ctx, l.UUID, command); err != nil {
			return err
		}
	}
	return nil
}

// talk sends a command to the daemon of a GPU and returns its reply.
func (s *Supervisor) talk(ctx context.Context, uuid, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := exec.CommandContext(ctx, s.Program) //nolint:gosec // An option.
	client.Env = append(os.Environ(), s.environment(uuid)...)
	client.Stdin = strings.NewReader(command + "\n")
	client.WaitDelay = time.Second
	var out bytes.Buffer
	client.Stdout, client.Stderr = &out, &out
	err := client.Run()
	said := strings.TrimSpace(out.String())
	if err != nil {
		return "", fmt.Errorf("%s: %w %.200s", command, err, said)
	}
	return said, nil
}

func (s *Supervisor) environment(uuid string) []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + PipeDir(s.Dir, uuid)}
}
