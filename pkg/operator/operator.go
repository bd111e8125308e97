package operator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/cloud/live"
	"karve.sh/karve/pkg/controllers/disruption"
	"karve.sh/karve/pkg/controllers/launch"
	"karve.sh/karve/pkg/controllers/pool"
	"karve.sh/karve/pkg/controllers/provisioning"
	"karve.sh/karve/pkg/controllers/provreq"
	"karve.sh/karve/pkg/controllers/publish"
	"karve.sh/karve/pkg/controllers/readiness"
	"karve.sh/karve/pkg/controllers/rollout"
	"karve.sh/karve/pkg/controllers/slots"
	"karve.sh/karve/pkg/controllers/usage"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/prices"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/version"
	"karve.sh/karve/pkg/watchdog"
)

// leaseName is the name of the leader election lease, and of the controller in events.
const leaseName = leader.Name

// shutdownGrace is how long the controllers may take to stop.
const shutdownGrace = 20 * time.Second

// maxUnlaunched is the upper limit of [launch.Window]. imageRefresh is how often the cloud is asked for newer GPU images.
const (
	maxUnlaunched = 250
	imageRefresh  = 15 * time.Minute
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=karve-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=karve-system,resources=leases,resourceNames=karve,verbs=get;update
// +kubebuilder:rbac:groups="",namespace=karve-system,resources=events,verbs=create

// Run runs the controllers until the context ends. It returns nil if the process should be restarted, for a new kind or for other options of Karpenter.
func Run(ctx context.Context, config *rest.Config, log logr.Logger, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	types, err := readInstanceTypes(o.InstanceTypesFile)
	if err != nil {
		return err
	}
	kinds, err := gather.Scheme()
	if err != nil {
		return err
	}
	// The API server's priority and fairness is the limit that matters, and each worker makes one request at a time. With 200 requests a second, the nominations
	// of a burst of 5,000 pods would take 25 seconds.
	config = rest.CopyConfig(config)
	config.QPS = -1
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: kinds, Logger: log,
		Metrics:                 o.metrics(),
		HealthProbeBindAddress:  o.ProbeAddress,
		LeaderElection:          o.LeaderElect,
		LeaderElectionID:        leaseName,
		LeaderElectionNamespace: o.LeaderElectionNamespace,
		// This is safe, because the process ends as soon as Run returns.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       new(shutdownGrace),
		Cache: cache.Options{
			DefaultTransform: gather.Trim(), NewInformer: gather.NewInformer(config),
			ByObject: map[client.Object]cache.ByObject{
				// Events about objects without a namespace are in the namespace default.
				&corev1.Event{}: {Namespaces: map[string]cache.Config{metav1.NamespaceDefault: {FieldSelector: launch.AboutNodeClaims()}}},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	if err := register(ctx, m, types, o); err != nil {
		return err
	}
	log.Info("Starting", "instanceTypes", len(types))
	err = m.Start(ctx)
	if errors.Is(err, errNewKind) || errors.Is(err, errKarpenterChanged) {
		log.Info("Stopping, to be started again", "reason", err.Error())
		return nil
	}
	return err
}

// +kubebuilder:rbac:feature=metrics-secure,groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:feature=metrics-secure,groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func (o *Options) metrics() metricsserver.Options {
	served := metricsserver.Options{BindAddress: o.MetricsAddress, SecureServing: o.MetricsSecure}
	if o.MetricsSecure {
		served.FilterProvider = filters.WithAuthenticationAndAuthorization
	}
	return served
}

// namespaceFile has the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespace returns the namespace of the controller, or "" if it runs outside of a cluster.
func (o *Options) namespace() string {
	if o.LeaderElectionNamespace != "" {
		return o.LeaderElectionNamespace
	}
	name, err := os.ReadFile(namespaceFile)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// readInstanceTypes reads the file of instance types. It returns nil if the path is empty.
func readInstanceTypes(path string) ([]catalog.InstanceType, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the instance types: %w", err)
	}
	defer f.Close() //nolint:errcheck // It was only read.
	types, err := catalog.ReadKWOK(f, clouds.GPULabels()...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return types, nil
}

func register(ctx context.Context, m ctrl.Manager, types []catalog.InstanceType, o Options) error {
	clk := clock.RealClock{}
	ledger := launching.NewLedger()
	all := metrics.New(ctrlmetrics.Registry)
	recorder := eventRecorder{m.GetEventRecorder(leaseName)}
	kinds, missing, err := gather.KindsOf(m.GetRESTMapper(), o.settings().Reads)
	if err != nil {
		return err
	}
	if err := m.Add(&newKinds{kinds: missing, serves: func(kind schema.GroupVersionKind) (bool, error) { return serves(m, kind) }, clock: clk}); err != nil {
		return fmt.Errorf("adding the look for kinds: %w", err)
	}
	machines, called, err := newCatalog(ctx, m, types, all, clk, o)
	if err != nil {
		return err
	}
	gatherer := &gather.Gatherer{
		Kinds: kinds, Cached: m.GetCache(), Live: m.GetAPIReader(), Mapper: m.GetRESTMapper(), Catalog: machines, Ledger: ledger, Clock: clk, Metrics: all,
		ReplicasTimeout: o.ReplicasTimeout, PriorityCutoff: o.PriorityCutoff, Prices: func() []prices.Rule { return o.Prices },
		Watchdog: watchdog.New(watchdog.Limit, watchdog.Store{Client: m.GetClient(), Live: m.GetAPIReader(), Namespace: o.namespace()}, all.StepOverruns, all.SetAside),
	}
	if err := m.Add(gatherer.Watchdog); err != nil {
		return fmt.Errorf("adding the watchdog: %w", err)
	}
	if err := gatherer.Follow(ctx, m.GetCache()); err != nil {
		return err
	}
	if err := watchMemory(m, all, o, gatherer.Held); err != nil {
		return err
	}
	if err := serveAliases(m, o); err != nil {
		return err
	}
	plans := &planning.Planner{Clock: clk, Metrics: all, Budget: o.PlanBudget, Watchdog: gatherer.Watchdog}
	if o.ReadAhead {
		plans.ReadAhead = &planning.ReadAhead{}
	}
	c, tolerations := gatherer.Writing(m.GetClient()), repair.Tolerations{NotReady: o.NotReadyTimeout, GPUFault: o.GPUFaultTimeout, Replicas: o.ReplicasTimeout}
	controllers := []interface{ Register(ctrl.Manager) error }{
		&launch.Controller{Config: launch.Config{Client: c, NodeClass: gatherer.NodeClass, Ledger: ledger, Metrics: all, Recorder: recorder, Clock: clk, Timeout: o.LaunchTimeout}},
		provisioning.New(provisioning.Config{
			Client: c, Gatherer: gatherer, Planner: plans, Ledger: ledger, Metrics: all, Recorder: recorder, Clock: clk,
			BatchIdle: o.BatchIdle, BatchMax: o.BatchMax, MaxUnlaunched: maxUnlaunched, CapacityBuffers: kinds.CapacityBuffers, Nominations: o.Nominations,
		}),
		readiness.New(readiness.Config{Client: c, Gatherer: gatherer, Metrics: all, Recorder: recorder, Clock: clk, Nominations: o.Nominations, Planned: plans.ReadAhead.Planned, Groups: &plans.Groups, Timeout: o.ReplicasTimeout}),
		disruption.New(disruption.Config{Client: c, Gatherer: gatherer, Planner: plans, Metrics: all, Recorder: recorder, Clock: clk, Settle: o.Settle, Tolerations: tolerations}),
		&provreq.Controller{Config: provreq.Config{Client: c, Gatherer: gatherer, Planner: plans, Recorder: recorder, Clock: clk}},
		slots.New(slots.Config{Client: c, Live: m.GetAPIReader(), Recorder: recorder, Clock: clk}),
		usage.New(usage.Config{Client: c, Gatherer: gatherer, Metrics: all, Recorder: recorder, Clock: clk}),
		rollout.New(rollout.Config{
			Client: c, Live: m.GetAPIReader(), Mapper: m.GetRESTMapper(), Gatherer: gatherer, Images: called.Images, KubernetesVersion: kubernetesVersion(m), Metrics: all,
			Recorder: recorder, Clock: clk, Enabled: o.ImageRollouts, Namespace: o.GPUCheckNamespace, CheckImage: o.GPUCheckImage, Refresh: imageRefresh,
		}),
		&pool.Controller{Config: pool.Config{Client: c, Gatherer: gatherer, Planner: plans, Metrics: all, Recorder: recorder, Clock: clk, Tolerations: tolerations, CostLabels: o.CostLabels}},
	}
	for _, controller := range controllers {
		if err := controller.Register(m); err != nil {
			return fmt.Errorf("registering %T: %w", controller, err)
		}
	}
	if err := m.Add(&pool.Comparison{Gatherer: gatherer, Planner: plans, Metrics: all, Clock: clk}); err != nil {
		return fmt.Errorf("adding the comparison with Karpenter's packing: %w", err)
	}
	if err := publishCatalog(m, gatherer, called, clk, o); err != nil {
		return err
	}
	return addChecks(m, clk)
}

// publishCatalog adds the publisher of the catalog and the settings, if the controller runs in a cluster.
func publishCatalog(m ctrl.Manager, g *gather.Gatherer, called live.Clouds, clk clock.WithTicker, o Options) error {
	namespace := o.namespace()
	if namespace == "" {
		return nil
	}
	publisher := publish.New(publish.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Cluster: g.Cluster, Clock: clk, Namespace: namespace, Version: version.This().Version, Settings: o.settings(), Quotas: called.Quotas,
	})
	if err := m.Add(publisher); err != nil {
		return fmt.Errorf("adding the publisher of the catalog: %w", err)
	}
	return nil
}

// addChecks adds the checks of health and readiness.
func addChecks(m ctrl.Manager, clk clock.Clock) error {
	if err := m.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("adding the health check: %w", err)
	}
	if err := m.AddHealthzCheck("progress", newProgressCheck(ctrlmetrics.Registry, clk).check); err != nil {
		return fmt.Errorf("adding the check of the controllers' progress: %w", err)
	}
	return m.AddReadyzCheck("caches", cachesSynced(m))
}

// newCatalog returns a catalog that takes the machines of node classes from their clouds, and those of all other node classes from the file. It also returns the clouds.
func newCatalog(ctx context.Context, m ctrl.Manager, types []catalog.InstanceType, all *metrics.Metrics, clk clock.WithTicker, o Options) (cloud.Catalog, live.Clouds, error) {
	theirs := &karpenterOptions{reader: m.GetAPIReader(), stated: o.ofKarpenter, clock: clk}
	var err error
	if theirs.start, err = theirs.read(ctx); err != nil {
		return nil, live.Clouds{}, err
	}
	if err := m.Add(theirs); err != nil {
		return nil, live.Clouds{}, fmt.Errorf("adding the check of Karpenter's options: %w", err)
	}
	called, machines := live.New(theirs.start, all, clk), cloud.ByKind{Kinds: map[schema.GroupKind]cloud.Catalog{}}
	for kind, c := range called.Catalogs {
		if err := m.Add(c); err != nil {
			return nil, live.Clouds{}, fmt.Errorf("adding the catalog of %s: %w", kind, err)
		}
		machines.Kinds[kind] = c
	}
	if types != nil {
		machines.Others = cloud.SameForAll(types)
	}
	return machines, called, nil
}

// kubernetesVersion returns a function that reads the API server's version, as Karpenter's AWS provider does.
func kubernetesVersion(m ctrl.Manager) func() (string, error) {
	return func() (string, error) {
		d, err := discovery.NewDiscoveryClientForConfigAndClient(m.GetConfig(), m.GetHTTPClient())
		if err != nil {
			return "", fmt.Errorf("making a discovery client: %w", err)
		}
		v, err := d.ServerVersion()
		if err != nil {
			return "", fmt.Errorf("reading the API server's version: %w", err)
		}
		return v.Major + "." + strings.TrimSuffix(v.Minor, "+"), nil
	}
}

// cachesSynced returns a check that passes once every informer has listed its objects.
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
