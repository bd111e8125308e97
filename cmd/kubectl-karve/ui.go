package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/ui"
)

type uiOptions struct {
	port          int
	grafana, logs string
	plan          planOptions
	prometheus    prometheusFlags
}

const uiLong = `Serve a web page that shows the shared GPUs of a cluster: prices, nodes, GPUs, the pods that hold replicas, why pods wait and why
nodes stay or are deleted. The page is served on this computer only, with the permissions of your kubeconfig. It changes nothing in the cluster.

The printed URL contains a token. Without it, the server reveals nothing.`

func uiCommand(ctx context.Context, s streams) *cobra.Command {
	o := uiOptions{plan: planOptions{kube: clusterFlags()}}
	cmd := &cobra.Command{
		Use: "ui", Short: "Serve a web page about the cluster on this computer", Long: uiLong, Args: cobra.NoArgs,
		Example: "  # Print a URL and serve it until Ctrl-C\n  kubectl karve ui",
		RunE:    func(*cobra.Command, []string) error { return o.run(ctx, s) },
	}
	fs := cmd.Flags()
	fs.IntVar(&o.port, "port", 0, "port on this computer; 0 selects a free one")
	fs.StringVar(&o.grafana, "grafana", "", "URL of a Grafana with the chart's dashboards, to which the page links")
	fs.StringVar(&o.logs, "logs", "", "URL of the logs of a pod, to which the page links, with {namespace}, {pod} and {node} in the place of names")
	o.prometheus.addFlags(fs)
	o.plan.addInstanceTypeFlags(fs)
	o.plan.kube.AddFlags(fs)
	return cmd
}

func (o *uiOptions) run(ctx context.Context, s streams) error {
	if o.port < 0 || o.port > 65535 {
		return fmt.Errorf("--port must be between 0 and 65535, but is %d", o.port)
	}
	links, err := ui.LinksTo(o.grafana, o.logs)
	if err != nil {
		return err
	}
	c, err := connect(o.plan.kube, "")
	if err != nil {
		return err
	}
	notes, err := c.checkRights(ctx, "ui", doctor.Namespaces{Controller: o.plan.namespace})()
	if err != nil {
		return err
	}
	s.notes(notes...)
	clk := clock.RealClock{}
	source, err := ui.NewSource(ctx, clk, func(ctx context.Context) (published.Source, error) { return o.plan.published(ctx, c) })
	if err != nil {
		return err
	}
	read, err := gather.Open(ctx, c.config, source, source.Settings)
	if err != nil {
		return err
	}
	token := rand.Text()
	server := ui.New(ui.Config{
		Links: links, Cluster: clusterName(o.plan.kube), Read: read, Note: source.Note, Clock: clk, Admit: ui.RequireToken(token),
		Controller: func(ctx context.Context) leader.Leader { return leader.Find(ctx, c.Client, o.plan.namespace, time.Now) },
		Explain:    source.Explainer(ctx, c.Client, func(err error) { s.note(noBudgets(err)) }),
		Costs:      o.prometheus.costs(c),
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("--port %d cannot be used, choose another one: %w", o.port, err)
	}
	if _, err := fmt.Fprintf(s.out, "http://%s/#token=%s\n", listener.Addr(), token); err != nil {
		return err
	}
	if note := source.Note(); note != "" {
		s.note(note)
	}
	fmt.Fprintln(s.err, "Open this URL. Press Ctrl-C to stop.")
	return server.Serve(ctx, listener)
}

// clusterName returns the name of the context that the flags select, or "" if there is none.
func clusterName(flags *genericclioptions.ConfigFlags) string {
	if flags.Context != nil && *flags.Context != "" {
		return *flags.Context
	}
	raw, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return ""
	}
	return raw.CurrentContext
}
