package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// series records the number of allocatable devices over time.
type series struct {
	mu      sync.Mutex
	changes []change
}

type change struct {
	at    time.Time
	value int
}

func (s *series) add(value int, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.changes); n == 0 || s.changes[n-1].value != value {
		s.changes = append(s.changes, change{at, value})
	}
}

func (s *series) last() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.changes) == 0 {
		return 0
	}
	return s.changes[len(s.changes)-1].value
}

// reached waits until value devices are allocatable. It returns the time of that change, or since if the change was earlier.
func (s *series) reached(ctx context.Context, value int, since time.Time) (time.Time, error) {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		s.mu.Lock()
		n := len(s.changes)
		if n > 0 && s.changes[n-1].value == value {
			at := s.changes[n-1].at
			s.mu.Unlock()
			if at.Before(since) {
				at = since // It already had this value.
			}
			return at, nil
		}
		s.mu.Unlock()
		if err := smithytime.SleepWithContext(ctx, time.Millisecond); err != nil {
			return time.Time{}, err
		}
	}
	return time.Time{}, fmt.Errorf("%d are allocatable after %s, not %d", s.last(), patience, value)
}

// atZero returns for how long the value was zero between two times.
func (s *series) atZero(from, to time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var total time.Duration
	for i, c := range s.changes {
		end := to
		if i+1 < len(s.changes) {
			end = s.changes[i+1].at
		}
		begin := c.at
		if begin.Before(from) {
			begin = from
		}
		if end.After(to) {
			end = to
		}
		if c.value == 0 && end.After(begin) {
			total += end.Sub(begin)
		}
	}
	return total
}

// observer follows the number of allocatable devices in the kubelet and on the Node.
type observer struct {
	kubelet, node series
	cancel        context.CancelFunc
	group         sync.WaitGroup
}

func observe(ctx context.Context, n *kubelet.Node) (*observer, error) {
	log, err := os.Open(n.Log("kubelet"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &observer{cancel: cancel}
	watcher, err := n.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", n.Name()).String(),
	})
	if err != nil {
		cancel()
		return nil, errors.Join(err, log.Close())
	}
	o.group.Go(func() {
		defer func() { _ = log.Close() }()
		o.follow(ctx, log)
	})
	o.group.Go(func() {
		for event := range watcher.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok && event.Type != watch.Deleted {
				quantity := node.Status.Allocatable[gpus.Resource]
				o.node.add(int(quantity.Value()), time.Now())
			}
		}
	})
	return o, nil
}

// The kubelet logs to the microsecond when it starts and stops offering devices. Its pod resources socket reports the same, but answers at most a
// hundred requests a second, and the plugins send some of them.
var (
	offers  = regexp.MustCompile(`^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*"Processed device updates for resource" resourceName="` + gpus.Resource + `".* healthyCount=(\d+)`)
	forgets = regexp.MustCompile(`^I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*"Mark all resources Unhealthy for resource" resourceName="` + gpus.Resource + `"`)
)

// follow reads a log while it grows.
func (o *observer) follow(ctx context.Context, log io.Reader) {
	// rest is the start of a line whose end is not written yet.
	var rest []byte
	buffer := make([]byte, 64<<10)
	for {
		n, err := log.Read(buffer)
		rest = append(rest, buffer[:n]...)
		if end := bytes.LastIndexByte(rest, '\n') + 1; end > 0 {
			o.read(bytes.NewReader(rest[:end]))
			rest = append(rest[:0], rest[end:]...)
		}
		if err != nil && smithytime.SleepWithContext(ctx, 2*time.Millisecond) != nil {
			return
		}
	}
}

func (o *observer) read(log io.Reader) {
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20) // The kubelet logs whole pods on one line.
	for lines.Scan() {
		if m := offers.FindStringSubmatch(lines.Text()); m != nil {
			value, _ := strconv.Atoi(m[2])
			o.kubelet.add(value, logged(m[1]))
		} else if m := forgets.FindStringSubmatch(lines.Text()); m != nil {
			o.kubelet.add(0, logged(m[1]))
		}
	}
}

// logged returns the time of a log line, which does not contain the year.
func logged(at string) time.Time {
	t, err := time.ParseInLocation("20060102 15:04:05.000000", strconv.Itoa(time.Now().Year())+at, time.Local)
	if err != nil {
		return time.Now()
	}
	return t
}

func (o *observer) stop() {
	o.cancel()
	o.group.Wait()
}
