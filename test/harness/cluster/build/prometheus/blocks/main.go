// Command blocks writes series of the past as blocks of a Prometheus. promtool's own input has a line for each sample, which would be gigabytes for a fleet.
//
// Standard input has a line for each series: its name and labels as in PromQL, the time of its first sample in seconds, the seconds between samples, and the values. A
// value may be followed by x and the number of times that it is repeated. The value _ is no sample.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: blocks DIRECTORY < SERIES")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// blockSize is the time in a block.
const blockSize = 10 * 24 * time.Hour

// series are the samples of a series: value i was measured step*i after begin.
type series struct {
	labels      labels.Labels
	begin, step int64 // in milliseconds
	values      []repeated
}

// repeated is a value that is repeated. Missing values have no sample.
type repeated struct {
	value   float64
	missing bool
	times   int64
}

func run(ctx context.Context, dir string, in io.Reader) error {
	all, err := read(in)
	if err != nil {
		return err
	}
	var first, last int64
	for i, s := range all {
		var n int64
		for _, v := range s.values {
			n += v.times
		}
		if end := s.begin + n*s.step; i == 0 || end > last {
			last = end
		}
		if i == 0 || s.begin < first {
			first = s.begin
		}
	}
	size := blockSize.Milliseconds()
	for from := first - first%size; from < last; from += size {
		if err := write(ctx, dir, all, from, from+size); err != nil {
			return err
		}
	}
	return nil
}

func read(in io.Reader) ([]series, error) {
	promql := parser.NewParser(parser.Options{})
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 64<<20)
	var all []series
	for lines.Scan() {
		fields := strings.Split(lines.Text(), "\t")
		if len(fields) != 4 {
			return nil, fmt.Errorf("%.80q has %d fields", lines.Text(), len(fields))
		}
		l, err := promql.ParseMetric(fields[0])
		if err != nil {
			return nil, err
		}
		begin, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			return nil, err
		}
		step, err := strconv.ParseInt(fields[2], 10, 64)
		if err != nil {
			return nil, err
		}
		s := series{labels: l, begin: begin * 1000, step: step * 1000}
		for word := range strings.FieldsSeq(fields[3]) {
			v, err := valueOf(word)
			if err != nil {
				return nil, err
			}
			s.values = append(s.values, v)
		}
		all = append(all, s)
	}
	return all, lines.Err()
}

func valueOf(word string) (repeated, error) {
	text, times, more := strings.Cut(word, "x")
	v := repeated{times: 1, missing: text == "_"}
	var err, errTimes error
	if !v.missing {
		v.value, err = strconv.ParseFloat(text, 64)
	}
	if more {
		v.times, errTimes = strconv.ParseInt(times, 10, 64)
	}
	return v, errors.Join(err, errTimes)
}

// write writes the samples from a time to another one into a block, if there are any.
func write(ctx context.Context, dir string, all []series, from, to int64) error {
	w, err := tsdb.NewBlockWriter(slog.New(slog.DiscardHandler), dir, 2*(to-from))
	if err != nil {
		return err
	}
	any := false
	for _, s := range all {
		app := w.Appender(ctx)
		var ref storage.SeriesRef
		at := s.begin
		for _, v := range s.values {
			end := at + v.times*s.step
			if v.missing || end <= from {
				at = end
				continue
			}
			for ; at < end; at += s.step {
				if at < from || at >= to {
					continue
				}
				if ref, err = app.Append(ref, s.labels, at, v.value); err != nil {
					return err
				}
				any = true
			}
			if at >= to {
				break
			}
		}
		if err := app.Commit(); err != nil {
			return err
		}
	}
	if any {
		if _, err := w.Flush(ctx); err != nil {
			return err
		}
	}
	return w.Close()
}
