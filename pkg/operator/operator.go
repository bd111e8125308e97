package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"
	_ "sigs.k8s.io/karpenter/pkg/apis/v1"       // registers NodePools and NodeClaims with client-go's scheme
	_ "sigs.k8s.io/karpenter/pkg/apis/v1alpha1" // registers NodeOverlays with client-go's scheme

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/controllers/pool"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/metrics"
)

// leaseName is the name of the leader election lease, and of the controller in events.
const leaseName = "karve"

// shutdownGrace is how long the controllers may take to finish what they are doing.
const shutdownGrace = 20 * time.Second

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=karve-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=karve-system,resources=events,verbs=create;patch

// Run runs the controllers until the context ends.
func Run(ctx context.Context, config *rest.Config, log logr.Logger, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	types, err := readInstanceTypes(o.InstanceTypesFile)
	if err != nil {
		return err
	}
	kinds, err := Scheme()
	if err != nil {
		return err
	}
	// Claims are created a plan at a time; the server's own priority and fairness is the limit that counts.
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 200, 300
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: kinds, Logger: log,
		Metrics:                 metricsserver.Options{BindAddress: o.MetricsAddress},
		HealthProbeBindAddress:  o.ProbeAddress,
		LeaderElection:          o.LeaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: o.LeaderElectionNamespace,
		// Safe: main ends as soon as Run does.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(shutdownGrace),
		Cache:                         cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := register(m, types, o); err != nil {
		return err
	}
	log.Info("Starting", "instanceTypes", len(types))
	return m.Start(ctx)
}

// Scheme knows all kinds that the controllers read and write. It is client-go's own, so kinds are added to it once, also where many ask for it.
func Scheme() (*runtime.Scheme, error) { return scheme() }

var scheme = sync.OnceValues(func() (*runtime.Scheme, error) {
	if err := v1alpha1.AddToScheme(clientgoscheme.Scheme); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}
	return clientgoscheme.Scheme, nil
})

func readInstanceTypes(path string) ([]catalog.InstanceType, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the instance types: %w", err)
	}
	defer f.Close() //nolint:errcheck // It was only read.
	types, err := catalog.ReadKWOK(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return types, nil
}

func register(m ctrl.Manager, types []catalog.InstanceType, o Options) error {
	clk := clock.RealClock{}
	ledger := launch.NewLedger()
	all := metrics.New(ctrlmetrics.Registry)
	recorder := m.GetEventRecorder(leaseName)
	overlays, err := serves(m, schema.GroupKind{Group: karpapis.Group, Kind: "NodeOverlay"})
	if err != nil {
		return err
	}
	gatherer := &gather.Gatherer{
		Cached: m.GetClient(), Live: m.GetAPIReader(), Mapper: m.GetRESTMapper(), InstanceTypes: types, Ledger: ledger, Clock: clk,
		ReplicasTimeout: o.ReplicasTimeout, NodeOverlays: overlays,
	}
	c := m.GetClient()
	controllers := []interface{ Register(ctrl.Manager) error }{
		&launch.Controller{Config: launch.Config{Client: c, Ledger: ledger, Metrics: all, Recorder: recorder, Clock: clk, Timeout: o.LaunchTimeout}},
		provisioning.New(provisioning.Config{
			Client: c, Gatherer: gatherer, Ledger: ledger, Metrics: all, Recorder: recorder, Clock: clk,
			BatchIdle: o.BatchIdle, BatchMax: o.BatchMax, MaxUnlaunched: o.MaxUnlaunched, PlanBudget: o.PlanBudget,
		}),
		&readiness.Controller{Config: readiness.Config{Client: c, Live: m.GetAPIReader(), Metrics: all, Recorder: recorder, Clock: clk, Timeout: o.ReplicasTimeout}},
		disruption.New(disruption.Config{Client: c, Gatherer: gatherer, Metrics: all, Recorder: recorder, Clock: clk, Settle: o.Settle}),
		&pool.Controller{Config: pool.Config{Client: c, Gatherer: gatherer, Metrics: all, Recorder: recorder, Clock: clk, BreakerRetry: o.BreakerRetry}},
	}
	for _, controller := range controllers {
		if err := controller.Register(m); err != nil {
			return fmt.Errorf("registering %T: %w", controller, err)
		}
	}
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("adding the health check: %w", err)
	}
	return m.AddReadyzCheck("caches", cachesSynced(m))
}

// serves says whether the API server serves a kind.
func serves(m ctrl.Manager, kind schema.GroupKind) (bool, error) {
	_, err := m.GetRESTMapper().RESTMapping(kind)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the API server for %s: %w", kind.Kind, err)
	}
	return true, nil
}

// cachesSynced is ready once every informer has listed.
func cachesSynced(m ctrl.Manager) healthz.Checker {
	return func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), time.Second)
		defer cancel()
		if !m.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the informers have not listed yet")
		}
		return nil
	}
}
