package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/pkg/advice/usage"
	"karve.sh/karve/pkg/cost"
)

const adviseLong = `Say what to change so that machines with shared GPUs cost less, from what pods used: replicas of a GPU, requests of CPU,
memory and GPU memory, GPUs that pods have for themselves and hardly use, headroom that no burst needs, and machines that expire early.

The use comes from Prometheus. Each step was confirmed by a replay of the same pods with Karve's planner, and comes
with what was measured, what may become worse, and a patch. The command changes nothing.
docs/advise.md explains the method, and what it needs.`

const adviseExample = `  # What would save most, after the last week?
  kubectl karve advise

  # Only for the workloads of a team, after October
  kubectl karve advise -n research --month 2026-10

  # From a Mimir, whose tenant is a header
  kubectl karve advise --prometheus https://mimir.example.com/prometheus --header X-Scope-OrgID=platform`

type adviseOptions struct {
	plan       planOptions
	wanted     cost.Wanted
	of         string
	prometheus prometheusFlags
	output     output
}

func adviseCommand(ctx context.Context, s streams) *cobra.Command {
	o := adviseOptions{plan: planOptions{kube: clusterFlags(), files: fileFlags("manifests of NodePools, GPUNodeClasses and workloads, instead of those of the cluster: files, directories, URLs, or - for standard input")}}
	cmd := &cobra.Command{
		Use: "advise", Short: "Say what to change so that machines cost less", Long: adviseLong, Example: adviseExample, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(ctx, s, time.Now()) },
	}
	fs := cmd.Flags()
	addRangeFlags(fs, &o.wanted, "7d")
	fs.StringVarP(&o.of, "namespace", "n", "", "advise only on workloads of this namespace")
	o.prometheus.addFlags(fs)
	o.plan.addSourceFlags(fs)
	o.output.addFlag(fs, "the same as the default")
	return cmd
}

func (o *adviseOptions) run(ctx context.Context, s streams, now time.Time) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if o.wanted == (cost.Wanted{}) {
		o.wanted.Since = "7d"
	}
	r, err := o.wanted.Range(now)
	if err != nil {
		return err
	}
	c, err := o.plan.cluster(ctx, s.in)
	if err != nil {
		return err
	}
	client, err := o.prometheus.client(ctx, func() (connection, error) { return reach(o.plan.kube, ", or name a Prometheus with --prometheus") })
	if err != nil {
		return err
	}
	found, err := usage.Read(ctx, client, usage.Query{From: r.From, To: r.To, Cluster: o.prometheus.cluster})
	if err != nil {
		return err
	}
	s.warn(c.controller)
	s.notes(c.notes...)
	workloads, lost := advice.Workloads(found.Pods, c.Pods)
	a, err := advice.Of(advice.Measured{
		From: r.From, To: r.To, Cluster: c.Cluster, Workloads: workloads,
		Billed: found.Billed, GPUBusy: found.GPUBusy, Expired: found.Expired, Notes: append(found.Notes, lost...),
	}, o.of)
	if err != nil {
		return err
	}
	if !o.output.isData() {
		s.notes(a.Notes...)
	}
	return o.output.print(s.out, &a, a.Text)
}
