// Command filter runs the kube-scheduler's framework without its queue. It reads scenes from standard input, one JSON document each, and writes for each
// scene the results of the scheduler's own filters. It is a module of its own because the product does not depend on the scheduler.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

func main() {
	metrics.Register()
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder, writer := json.NewDecoder(bufio.NewReader(in)), bufio.NewWriter(out)
	encoder := json.NewEncoder(writer)
	for {
		var s scene
		err := decoder.Decode(&s)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a scene: %w", err)
		}
		found, err := play(ctx, &s)
		if err != nil {
			found = &findings{Error: err.Error()}
		}
		if err := encoder.Encode(found); err != nil {
			return fmt.Errorf("writing findings: %w", err)
		}
		if err := writer.Flush(); err != nil {
			return fmt.Errorf("writing findings: %w", err)
		}
	}
}
