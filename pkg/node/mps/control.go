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
)

// askTimeout is how long a daemon may take to answer.
const askTimeout = 3 * time.Second

// control talks to the control daemon of a GPU.
type control struct {
	program string
	// pipes is the directory with the daemon's pipes.
	pipes string
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

// limits asks the daemon for its limits.
func (c control) limits(ctx context.Context, l Limits) (answers, error) {
	servers, err := c.servers(ctx)
	if err != nil {
		return answers{}, err
	}
	threads, memory := []string{"get_default_active_thread_percentage"}, []string{"get_default_device_pinned_mem_limit 0"}
	for _, server := range servers {
		threads, memory = append(threads, "get_active_thread_percentage "+server), append(memory, "get_device_pinned_mem_limit "+server+" 0")
	}
	var all answers
	for i := range threads {
		percent, limit, err := c.limit(ctx, l, threads[i], memory[i])
		if err != nil && i == 0 {
			return answers{}, err
		}
		if err == nil { // Otherwise the server has ended.
			all.percents, all.memory = append(all.percents, percent), append(all.memory, limit)
		}
	}
	return all, nil
}

// limit asks the daemon two questions about limits.
func (c control) limit(ctx context.Context, l Limits, threads, memory string) (percent float64, limit string, err error) {
	text, err := c.talk(ctx, threads)
	if err != nil {
		return 0, "", err
	}
	if percent, err = strconv.ParseFloat(text, 64); err != nil {
		return 0, "", fmt.Errorf("it says %.80q instead of a percentage", text)
	}
	if l.MemoryMiB > 0 {
		limit, err = c.talk(ctx, memory)
	}
	return percent, limit, err
}

// servers returns the process IDs of the daemon's servers.
func (c control) servers(ctx context.Context) ([]string, error) {
	answer, err := c.talk(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(answer), func(word string) bool {
		_, err := strconv.Atoi(word)
		return err != nil // The program reports in words that there is none.
	}), nil
}

// tell tells the daemon its limits, for the servers that it will start and for the running ones. Running processes keep the limits with which they
// started.
func (c control) tell(ctx context.Context, l Limits) error {
	memory := ""
	if l.MemoryMiB > 0 {
		memory = fmt.Sprintf("0 %dM", l.MemoryMiB)
	}
	percent := strconv.FormatInt(l.ThreadPercent, 10)
	servers, err := c.servers(ctx)
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
		if _, err := c.talk(ctx, command); err != nil {
			return err
		}
	}
	return nil
}

// talk sends a command to the daemon and returns its reply.
func (c control) talk(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	client := exec.CommandContext(ctx, c.program) //nolint:gosec // An option.
	client.Env = append(os.Environ(), c.environment()...)
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

func (c control) environment() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + c.pipes}
}
