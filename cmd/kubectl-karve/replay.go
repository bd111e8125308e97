package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"karve.sh/karve/pkg/promquery"
	"karve.sh/karve/pkg/replay"
	"karve.sh/karve/pkg/words"
)

const replayLong = `Replay past pods, and show what they would have cost on whole GPUs, on shared GPUs with Karpenter's packing and
consolidation, and with Karve's.

The pods come from a CSV file in the format of the openb trace, or from the metrics of kube-state-metrics in Prometheus. They
run on the machines of Karve's NodePools in the cluster, or in manifests. Machines start and stop immediately in a replay.

KARVE SAVES compares the prices of machines ($). PODS MOVED are the pods that consolidation restarts in the replay, and
$ WITH RESTARTS includes an assumed cost for each. docs/replay.md explains the columns.`

const replayExample = `  # What would last month have cost?
  kubectl karve replay --prometheus http://localhost:9090 --since 720h

  # The sample in this repository
  kubectl karve replay examples/replay/trace.csv -f examples/

  # What would the pods of a trace cost with these NodePools?
  kubectl karve replay trace.csv -f manifests/`

const (
	// chunk is the time range of one query to Prometheus.
	chunk = 24 * time.Hour
	// longest is the longest time that can be replayed.
	longest = 400 * 24 * time.Hour
)

type replayOptions struct {
	plan       planOptions
	prometheus string
	since      time.Duration
	output     output
}

func replayCommand(ctx context.Context, s streams) *cobra.Command {
	o := replayOptions{plan: planOptions{kube: clusterFlags(), files: fileFlags("manifests of NodePools and GPUNodeClasses, instead of those of the cluster: files, directories, URLs, or - for standard input")}}
	cmd := &cobra.Command{
		Use: "replay [FILE]", Short: "Show what past pods would have cost", Long: replayLong, Example: replayExample, Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return o.run(ctx, s, args, time.Now()) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.prometheus, "prometheus", "", "URL of a Prometheus with kube-state-metrics, instead of a file")
	fs.DurationVar(&o.since, "since", 30*24*time.Hour, "how far back to replay from Prometheus")
	o.plan.addSourceFlags(fs)
	o.output.addFlag(fs, "the same as the default")
	return cmd
}

func (o *replayOptions) run(ctx context.Context, s streams, args []string, now time.Time) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if o.since <= 0 || o.since > longest {
		return fmt.Errorf("--since must be more than 0 and at most %s, but is %s", longest, o.since)
	}
	var recording replay.Recording
	var notes []string
	var err error
	switch {
	case len(args) == 0 && o.prometheus == "":
		return errors.New("name a CSV file with the pods, or a Prometheus with --prometheus")
	case len(args) > 0 && o.prometheus != "":
		return errors.New("name a CSV file or --prometheus, not both")
	case o.prometheus != "":
		recording, err = fromPrometheus(ctx, o.prometheus, now.Add(-o.since).Truncate(replay.Resolution), now.Truncate(replay.Resolution))
		notes = recordingNotes(&recording)
	default:
		recording, err = fromFile(args[0], s.in)
	}
	if err != nil {
		return err
	}
	c, err := o.plan.cluster(ctx, s.in)
	if err != nil {
		return err
	}
	traces, err := replay.Build(c.Cluster, recording.Records, recording.Duration())
	if err != nil {
		return err
	}
	traces.Left = append(recording.Left, traces.Left...)
	compared, err := replay.Compare(traces)
	s.warn(c.controller)
	s.notes(slices.Concat(notes, c.notes, leftNotes(compared.Left))...)
	if err != nil {
		return err
	}
	return o.output.print(s.out, &compared, compared.Text)
}

func leftNotes(left []replay.Left) []string {
	var notes []string
	for _, l := range left {
		are := "are"
		if l.Count == 1 {
			are = "is"
		}
		notes = append(notes, fmt.Sprintf("%s %s skipped: %s", words.More(l.First, l.Count-1), are, l.Reason))
	}
	return notes
}

// fromFile reads a CSV file. The name - stands for standard input.
func fromFile(name string, in io.Reader) (replay.Recording, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return replay.Recording{}, err
		}
		defer f.Close() //nolint:errcheck // It is only read.
		in = f
	}
	recording, err := replay.ReadCSV(in)
	if err != nil {
		err = fmt.Errorf("reading %s: %w", name, err)
	}
	return recording, err
}

func fromPrometheus(ctx context.Context, url string, start, end time.Time) (replay.Recording, error) {
	client, err := promquery.New(url, url, nil, nil)
	if err != nil {
		return replay.Recording{}, fmt.Errorf("--prometheus: %w", err)
	}
	var pods replay.Observed
	for _, q := range []struct {
		query string
		add   func(model.Matrix) error
	}{
		{replay.MetricsQuery, pods.Metrics},
		{replay.RequestsQuery, pods.Requests},
		{replay.EndedQuery, pods.Ended},
		{replay.CreatedQuery, pods.Created},
		{replay.ScheduledQuery, pods.Scheduled},
		{replay.CompletedQuery, pods.Completed},
	} {
		for _, c := range replay.Chunks(start, end, chunk) {
			answer, err := client.Range(ctx, q.query, c[0], c[1], replay.Resolution)
			if err != nil {
				return replay.Recording{}, err
			}
			if err := q.add(answer); err != nil {
				return replay.Recording{}, fmt.Errorf("querying Prometheus at %s: %w", url, err)
			}
		}
	}
	r := pods.Recording(start, end)
	if len(r.Records) == 0 && len(r.Left) == 0 {
		return r, fmt.Errorf("no pods are known: Prometheus at %s has no kube_pod_container_resource_requests with resource nvidia_com_gpu or nvidia_com_gpu_shared since %s: "+
			"let it scrape kube-state-metrics, or set another time with --since", url, start.UTC().Format(time.RFC3339))
	}
	return r, nil
}

// recordingNotes describes what Prometheus does not know of the pods.
func recordingNotes(r *replay.Recording) []string {
	var notes []string
	if !r.Dated {
		notes = append(notes, fmt.Sprintf("Prometheus has none of kube_pod_status_scheduled_time, kube_pod_start_time and kube_pod_created, so pods count from when they were first seen, "+
			"with a precision of %s", replay.Resolution))
	}
	if !r.Phased {
		notes = append(notes, "Prometheus has no kube_pod_status_phase, so pods that are pending, and those that failed or were evicted, count until they are deleted")
	}
	if r.Late > 0 {
		notes = append(notes, fmt.Sprintf("Prometheus has metrics of pods only since %s: the replay begins there", utc(r.Start)))
	}
	if r.Early > 0 {
		notes = append(notes, fmt.Sprintf("Prometheus has metrics of pods only until %s: the replay ends there", utc(r.End)))
	}
	if n := len(r.Gaps); n > 0 {
		gap := fmt.Sprintf("Prometheus has no metrics of pods from %s to %s", utc(r.Gaps[0][0]), utc(r.Gaps[0][1]))
		if n > 1 {
			gap += ", and in " + words.Count(n-1, "more gap")
		}
		notes = append(notes, gap+": pods that were seen before and after count as running in between, and others end or begin there")
	}
	return notes
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }
