package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"karve.sh/karve/pkg/replay"
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

// replayOptions are the flags of the replay command.
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

// run reads the pods, replays them and writes the comparison.
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
	for _, note := range slices.Concat(notes, c.notes, leftNotes(compared.Left)) {
		s.note(note)
	}
	if err != nil {
		return err
	}
	if o.output.isData() {
		return o.output.data(s.out, &compared)
	}
	return compared.Text(s.out)
}

// leftNotes describes what is left out, and why.
func leftNotes(left []replay.Left) []string {
	var notes []string
	for _, l := range left {
		if l.Count == 1 {
			notes = append(notes, fmt.Sprintf("%s is skipped: %s", l.First, l.Reason))
		} else {
			notes = append(notes, fmt.Sprintf("%s and %d more are skipped: %s", l.First, l.Count-1, l.Reason))
		}
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

// fromPrometheus reads the pods that requested GPUs between two times.
func fromPrometheus(ctx context.Context, url string, start, end time.Time) (replay.Recording, error) {
	client, err := api.NewClient(api.Config{Address: url, RoundTripper: boundedAnswers{api.DefaultRoundTripper, maxAnswer}})
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
			answer, err := queried(ctx, client, q.query, prometheus.Range{Start: c[0], End: c[1], Step: replay.Resolution})
			if err == nil {
				err = q.add(answer)
			}
			if err != nil {
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
			gap += fmt.Sprintf(", and in %d more gaps", n-1)
		}
		notes = append(notes, gap+": pods that were seen before and after count as running in between, and others end or begin there")
	}
	return notes
}

func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

const (
	// answerTimeout is how long Prometheus may take for an answer. It ends most queries itself after two minutes.
	answerTimeout = 3 * time.Minute
	// maxAnswer is the maximum size of an answer in bytes. The requests of 10,000 pods over a day have 200 MiB.
	maxAnswer = 512 << 20
)

// queried returns the answer to a query.
func queried(ctx context.Context, client api.Client, query string, over prometheus.Range) (model.Matrix, error) {
	slow := fmt.Errorf("it has not answered for %s", answerTimeout)
	ctx, stop := context.WithTimeoutCause(ctx, answerTimeout, slow)
	defer stop()
	value, _, err := prometheus.NewAPI(client).QueryRange(ctx, query, over)
	if err != nil && errors.Is(context.Cause(ctx), slow) {
		return nil, slow
	}
	if err != nil {
		return nil, err
	}
	answer, ok := value.(model.Matrix)
	if !ok {
		return nil, fmt.Errorf("the result is a %s, not a matrix", value.Type())
	}
	return answer, nil
}

// boundedAnswers makes an answer with more than limit bytes an error.
type boundedAnswers struct {
	http.RoundTripper
	limit int64
}

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, b.limit, b.limit}
	}
	return answer, err
}

// boundedBody returns an error once more than left bytes were read.
type boundedBody struct {
	io.ReadCloser
	limit, left int64
}

func (b *boundedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d MiB", b.limit>>20)
	}
	return n, err
}
