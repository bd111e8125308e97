package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/cost/history"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/promquery"
	"karve.sh/karve/pkg/ui"
)

// UIOptions are the settings of the web page in a cluster.
type UIOptions struct {
	Port              int
	ProbeAddress      string
	InstanceTypesFile string
	Namespace         string
	LogLevel          string
	// Prometheus is the URL of a Prometheus with what the recording rules write. The page shows no costs over time if it is "". Headers are of the form KEY=VALUE.
	Prometheus, ClusterLabel string
	Headers                  []string
	// Grafana is the URL of a Grafana with the chart's dashboards, and Logs that of the logs of a pod, as a template. The page links to them unless they are "".
	Grafana, Logs string
}

// AddFlags binds the options to flags and sets their defaults.
func (o *UIOptions) AddFlags(fs *flag.FlagSet) {
	fs.IntVar(&o.Port, "port", 8082, "port of the page, on the loopback interface only: reach it with kubectl port-forward, or with a proxy in the same pod")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "address that serves /healthz")
	fs.StringVar(&o.InstanceTypesFile, "instance-types-file", "", "JSON file of instance types in the schema of Karpenter's kwok provider, instead of those that the controller publishes")
	fs.StringVar(&o.Namespace, "karve-namespace", "karve-system", "namespace of the controller, which publishes its instance types, prices and settings there")
	fs.StringVar(&o.LogLevel, "log-level", "info", "info or debug")
	fs.StringVar(&o.Prometheus, "prometheus", "", "URL of a Prometheus, Thanos or Mimir with what the recording rules of the chart write, for costs over time")
	fs.StringVar(&o.ClusterLabel, "cluster-label", "", "the label cluster of the metrics, if the Prometheus has those of several clusters")
	fs.StringVar(&o.Grafana, "grafana", "", "URL of a Grafana with the chart's dashboards, to which the page links")
	fs.StringVar(&o.Logs, "logs", "", "URL of the logs of a pod, to which the page links, with {namespace}, {pod} and {node} in the place of names")
	fs.Func("prometheus-header", "header of the requests to --prometheus as KEY=VALUE; may be repeated", func(text string) error {
		o.Headers = append(o.Headers, text)
		_, err := promquery.Headers(o.Headers)
		return err
	})
}

// costs returns what the page asks for costs, or nil without a Prometheus.
func (o *UIOptions) costs(now func() time.Time) (ui.Costs, error) {
	if o.Prometheus == "" {
		return nil, nil
	}
	headers, err := promquery.Headers(o.Headers)
	if err != nil {
		return nil, err
	}
	p, err := promquery.New(o.Prometheus, o.Prometheus, headers, nil)
	if err != nil {
		return nil, fmt.Errorf("--prometheus: %w", err)
	}
	return func(ctx context.Context, r cost.Range, by cost.Grouping) (*cost.Ledger, error) {
		return history.Ledger(ctx, p, history.Query{Range: r, By: by, Cluster: o.ClusterLabel, Now: now()})
	}, nil
}

// ServeUI serves the web page until the context ends. It serves users whom the API server authenticates by their bearer token and allows to get paths
// below /karve/. It reads the cluster with the rights of the process.
func ServeUI(ctx context.Context, config *rest.Config, log logr.Logger, o UIOptions) error {
	used, err := rest.HTTPClientFor(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	filter, err := filters.WithAuthenticationAndAuthorization(config, used)
	if err != nil {
		return fmt.Errorf("asking the API server who may see the page: %w", err)
	}
	live, err := client.New(config, client.Options{HTTPClient: used})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	clk := clock.RealClock{}
	given, err := readInstanceTypes(o.InstanceTypesFile)
	if err != nil {
		return err
	}
	source, err := ui.NewSource(ctx, clk, func(ctx context.Context) (published.Source, error) {
		return published.OrBuiltin(ctx, live, o.Namespace, given)
	})
	if err != nil {
		return err
	}
	if note := source.Note(); note != "" {
		log.Info("The controller's instance types or settings are not known yet", "reason", note)
	}
	read, err := gather.Open(ctx, config, source, source.Settings)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%w: install Karpenter and Karve's CRDs", err)
	}
	if err != nil {
		return err
	}
	links, err := ui.LinksTo(o.Grafana, o.Logs)
	if err != nil {
		return err
	}
	costs, err := o.costs(clk.Now)
	if err != nil {
		return err
	}
	server := ui.New(ui.Config{
		Costs: costs, Links: links,
		Read: read, Note: source.Note, Clock: clk,
		Controller: func(ctx context.Context) leader.Leader { return leader.In(ctx, live, o.Namespace, clk.Now) },
		Admit:      func(next http.Handler) (http.Handler, error) { return filter(log, next) },
		Explain:    source.Explainer(ctx, live, func(err error) { log.Error(err, "Reading PodDisruptionBudgets") }),
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		return fmt.Errorf("listening on --port: %w", err)
	}
	if err := serveProbes(ctx, log, o.ProbeAddress); err != nil {
		return errors.Join(err, listener.Close())
	}
	log.Info("Serving the page", "address", listener.Addr().String())
	return server.Serve(ctx, listener)
}

// serveProbes answers probes until the context ends.
func serveProbes(ctx context.Context, log logr.Logger, address string) error {
	probes, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening on --health-probe-bind-address: %w", err)
	}
	health := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	context.AfterFunc(ctx, func() { _ = health.Close() })
	go func() {
		if err := health.Serve(probes); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Serving probes")
		}
	}()
	return nil
}
