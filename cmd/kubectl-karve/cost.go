package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/cost/history"
)

const costLong = `Show what machines with shared GPUs have cost in a range of time, and who used them.

USED is the price of the replicas that pods held, IDLE that of free replicas, and OVERHEAD that of machines while they start or
leave, and of DaemonSets. Those who used a NodePool on a day pay for its idle and overhead parts, in proportion to what they used.
The rows add up to the bills of the machines. Hours without metrics count as $0, and are named.

The costs come from the recording rules of Karve's chart in Prometheus (prometheusRule.enabled). docs/cost.md explains them.`

const costExample = `  # What did the last 30 days cost, by namespace?
  kubectl karve cost

  # The bill of October by team, for a spreadsheet
  kubectl karve cost --month 2026-10 --by label:team -o csv

  # From a Mimir, whose tenant is a header
  kubectl karve cost --since 7d --by owner --prometheus https://mimir.example.com/prometheus --header X-Scope-OrgID=platform`

type costOptions struct {
	wanted     cost.Wanted
	by         string
	prometheus prometheusFlags
	kube       *genericclioptions.ConfigFlags
	format     string
}

var costFormats = []string{"", "csv", "json", "yaml"}

func costCommand(ctx context.Context, s streams) *cobra.Command {
	o := costOptions{kube: clusterFlags()}
	cmd := &cobra.Command{
		Use: "cost", Short: "Show what machines have cost, and who used them", Long: costLong, Example: costExample, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(ctx, s, time.Now()) },
	}
	fs := cmd.Flags()
	addRangeFlags(fs, &o.wanted, "30d")
	fs.StringVar(&o.by, "by", string(cost.ByNamespace), "divide by namespace, owner, pool, class, pod, or label:KEY for a label of pods")
	fs.StringVarP(&o.format, "output", "o", "", "output format: csv, json or yaml")
	o.prometheus.addFlags(fs)
	o.kube.AddFlags(fs)
	// The flags exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(costFormats[1:], cobra.ShellCompDirectiveNoFileComp))
	groupings := []string{"namespace", "owner", "pool", "class", "pod", "label:"}
	_ = cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(groupings, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	return cmd
}

func (o *costOptions) run(ctx context.Context, s streams, now time.Time) error {
	if !slices.Contains(costFormats, o.format) {
		return fmt.Errorf("--output must be csv, json or yaml, not %q", o.format)
	}
	by, err := cost.ParseGrouping(o.by)
	if err != nil {
		return fmt.Errorf("--by: %w", err)
	}
	r, err := o.wanted.Range(now)
	if err != nil {
		return err
	}
	client, err := o.prometheus.client(ctx, func() (connection, error) { return reach(o.kube, ", or name a Prometheus with --prometheus") })
	if err != nil {
		return err
	}
	l, err := history.Ledger(ctx, client, history.Query{Range: r, By: by, Cluster: o.prometheus.cluster, Now: now})
	if err != nil {
		return err
	}
	switch o.format {
	case "":
		_, err := io.WriteString(s.out, l.Text())
		return err
	case "csv":
		s.notes(l.Notes()...)
		return l.CSV(s.out)
	default:
		return (&output{o.format}).data(s.out, l)
	}
}

// addRangeFlags adds the flags for a range of time. usual is how far back it begins without them.
func addRangeFlags(fs *pflag.FlagSet, wanted *cost.Wanted, usual string) {
	fs.StringVar(&wanted.Since, "since", "", "how far back: a number of hours, days or weeks, such as 12h, 30d or 4w (default "+usual+")")
	fs.StringVar(&wanted.From, "from", "", "begin of the range: a date or a full hour, in UTC unless it says otherwise, such as 2026-10-01 or 2026-10-01T12:00Z")
	fs.StringVar(&wanted.To, "to", "", "end of the range, which is not part of it (default: now)")
	fs.StringVar(&wanted.Month, "month", "", "calendar month in UTC, such as 2026-10")
}
