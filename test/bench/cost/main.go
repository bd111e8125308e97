// Command bench-cost measures how long kubectl karve cost takes for 90 days of 5,000 nodes, from what the recording rules have written in a real Prometheus. It prints
// a table and writes it as JSON. `make bench-cost` runs it.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"karve.sh/karve/test/bench/results"
	"karve.sh/karve/test/harness/billed"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// limit is how long an answer may take. A slower one is an error.
const limit = 5 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-cost:", err)
		os.Exit(1)
	}
}

// figures are the seconds that an answer took.
type figures struct {
	By      string    `json:"by"`
	Seconds []float64 `json:"seconds"`
	Rows    int       `json:"rows"`
}

func run(ctx context.Context) error {
	out := flag.String("o", "../_output/bench-cost.json", "where to write the figures")
	days, machines := flag.Int("days", 90, "days of history"), flag.Int("machines", 5000, "nodes at any time")
	flag.Parse()
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	if err := builder.Build(ctx, root, os.Stderr, builder.Prometheus); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "karve-bench-cost")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // It is temporary.
	build := exec.CommandContext(ctx, filepath.Join(root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+dir, "TRIMPATH=no")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building the plugin: %w\n%s", err, text)
	}
	end := time.Now().UTC().Truncate(24 * time.Hour)
	start := end.AddDate(0, 0, -*days)
	steps := *days * 24 * int(time.Hour/billed.Step)
	began := time.Now()
	series := billed.NewSeries(steps)
	fleet := billed.Fleet(1, billed.Size{Steps: steps, Machines: *machines, Pools: 20, Namespaces: 100, OwnersEach: 35})
	for i := range fleet {
		series.AddRecorded(&fleet[i], "")
	}
	data := filepath.Join(dir, "data")
	err = billed.Blocks(ctx, dir, data, func(w io.Writer) error {
		return series.Write(w, start, `{__name__="cluster:karve_cost_unpriced_machines:max5m"}`, func(int) bool { return false })
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d days of %d nodes, %d machines in all: %d series with %d samples, written in %s\n", *days, *machines, len(fleet), series.Len(), series.Samples(), time.Since(began).Round(time.Second))
	url, stop, err := prometheus(ctx, root, dir, data)
	if err != nil {
		return err
	}
	defer stop()
	var all []figures
	var slow []error
	for _, by := range []string{"pool", "class", "namespace", "label:team", "owner"} {
		f := figures{By: by}
		for range 3 {
			began := time.Now()
			cmd := exec.CommandContext(ctx, filepath.Join(dir, "kubectl-karve"), "cost", "--prometheus", url, "--by", by, "-o", "csv", "--from", start.Format(time.RFC3339), "--to", end.Format(time.RFC3339))
			cmd.Stderr = os.Stderr
			text, err := cmd.Output()
			if err != nil {
				return err
			}
			f.Seconds = append(f.Seconds, time.Since(began).Seconds())
			f.Rows = bytes.Count(text, []byte("\n")) - 1
		}
		slices.Sort(f.Seconds)
		fmt.Printf("by %-11s %5d rows   median %.2f s   slowest %.2f s\n", by, f.Rows, f.Seconds[1], f.Seconds[2])
		all = append(all, f)
		if f.Seconds[2] > limit.Seconds() {
			slow = append(slow, fmt.Errorf("by %s: %.2f s are more than %s", by, f.Seconds[2], limit))
		}
	}
	return errors.Join(append(slow, results.Save(*out, all))...)
}

// prometheus starts a Prometheus on a folder of data. It returns its address and a function that stops it.
func prometheus(ctx context.Context, root, dir, data string) (url string, stop func(), err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	address := l.Addr().String()
	config := filepath.Join(dir, "prometheus.yaml")
	if err := errors.Join(l.Close(), os.WriteFile(config, []byte("global: {}\n"), 0o600)); err != nil {
		return "", nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, filepath.Join(root, "_output", "bin", "prometheus"), "--config.file="+config, "--storage.tsdb.path="+data, "--storage.tsdb.retention.time=1000d",
		"--web.listen-address="+address, "--log.level=error")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		cancel()
		return "", nil, err
	}
	stop = func() { cancel(); _ = cmd.Wait() }
	url = "http://" + address
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/-/ready", strings.NewReader(""))
		if err != nil {
			stop()
			return "", nil, err
		}
		answer, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return url, stop, nil
			}
		}
		if time.Now().After(deadline) {
			stop()
			return "", nil, fmt.Errorf("Prometheus is not ready: %w", err) //nolint:staticcheck // It is a name.
		}
	}
}
