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

	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/karpenter"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/ui"
)

// UIOptions are the settings of the web page in a cluster.
type UIOptions struct {
	Port              int
	ProbeAddress      string
	InstanceTypesFile string
	Namespace         string
	ReplicasTimeout   time.Duration
	NotReadyTimeout   time.Duration
	GPUFaultTimeout   time.Duration
	Settle            time.Duration
	LogLevel          string
}

// AddFlags binds the options to flags and sets their defaults.
func (o *UIOptions) AddFlags(fs *flag.FlagSet) {
	fs.IntVar(&o.Port, "port", 8082, "port of the page, on the loopback interface only: reach it with kubectl port-forward, or with a proxy in the same pod")
	fs.StringVar(&o.ProbeAddress, "health-probe-bind-address", ":8081", "address that serves /healthz")
	fs.StringVar(&o.InstanceTypesFile, "instance-types-file", "", "JSON file of instance types in the schema of Karpenter's kwok provider, instead of those that the controller publishes")
	fs.StringVar(&o.Namespace, "karve-namespace", "karve-system", "namespace of the controller, which publishes its instance types and prices there")
	fs.DurationVar(&o.ReplicasTimeout, "replicas-timeout", 10*time.Minute, "the controller's setting")
	fs.DurationVar(&o.NotReadyTimeout, "not-ready-timeout", 30*time.Minute, "the controller's setting")
	fs.DurationVar(&o.GPUFaultTimeout, "gpu-fault-timeout", 10*time.Minute, "the controller's setting")
	fs.DurationVar(&o.Settle, "settle-duration", 10*time.Second, "the controller's setting")
	fs.StringVar(&o.LogLevel, "log-level", "info", "info or debug")
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
	types, err := ui.NewCatalog(ctx, clk, func(ctx context.Context) (cloud.Catalog, string, error) { return o.catalog(ctx, live) })
	if err != nil {
		return err
	}
	if note := types.Note(); note != "" {
		log.Info("The controller's instance types are not known yet", "reason", note)
	}
	read, err := gather.Open(ctx, config, types, o.ReplicasTimeout)
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("%w: install Karpenter and Karve's CRDs", err)
	}
	if err != nil {
		return err
	}
	server := ui.New(ui.Config{
		Read: read, Note: types.Note, Clock: clk,
		Controller: func(ctx context.Context) leader.Leader { return leader.In(ctx, live, o.Namespace, clk.Now) },
		Admit:      func(next http.Handler) (http.Handler, error) { return filter(log, next) },
		Explain: func(c *snapshot.Cluster) *explain.Explainer {
			settings := explain.Settings{
				Settle: o.Settle, Clock: clk, Tolerations: repair.Tolerations{NotReady: o.NotReadyTimeout, GPUFault: o.GPUFaultTimeout, Replicas: o.ReplicasTimeout},
			}
			var err error
			if settings.Evictions, err = karpenter.NewEvictions(ctx, live, clk); err != nil {
				log.Error(err, "Reading PodDisruptionBudgets") // Without them, none counts.
			}
			return explain.New(c, settings)
		},
	})
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.Port))
	if err != nil {
		return fmt.Errorf("listening on --port: %w", err)
	}
	probes, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.ProbeAddress)
	if err != nil {
		return errors.Join(fmt.Errorf("listening on --health-probe-bind-address: %w", err), listener.Close())
	}
	health := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	defer context.AfterFunc(ctx, func() { _ = health.Close() })()
	go func() {
		if err := health.Serve(probes); !errors.Is(err, http.ErrServerClosed) {
			log.Error(err, "Serving probes")
		}
	}()
	log.Info("Serving the page", "address", listener.Addr().String())
	return server.Serve(ctx, listener)
}

// builtinRegion is the region of the built-in prices.
const builtinRegion = "us-east-1"

// catalog returns the instance types in the file, or those that the controller has published. If there are neither, it returns the built-in ones and a
// note for users.
func (o *UIOptions) catalog(ctx context.Context, live client.Reader) (cloud.Catalog, string, error) {
	given, err := readInstanceTypes(o.InstanceTypesFile)
	if err != nil {
		return nil, "", err
	}
	if given != nil {
		return cloud.SameForAll(given), "", nil
	}
	found, err := published.Find(ctx, live, o.Namespace)
	if err != nil || found.Missing == "" {
		return found.Catalog, "", err
	}
	types, err := builtin.InstanceTypes()
	return cloud.SameForAll(types), found.Missing + ", so zones and prices are those of " + builtinRegion, err
}
