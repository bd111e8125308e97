package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/bounded"
	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/configsource"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/node/usage"
	"karve.sh/karve/pkg/nodecontract"
)

// Agent connects the parts of the program.
type Agent struct {
	options    Options
	library    gpu.Library
	calls      *bounded.Library
	outage     outage
	manager    *plugin.Manager
	dra        *draBackend
	node       *nodeapi.Client // nil outside of a cluster
	latestNode latestNode
	policy     health.Policy
	report     *report
	resets     resets
	cordon     cordon
	use        *useWatch
	mps        mpsWatch
	store      health.Store
	saved      health.State
	unsaved    string // Why the state could not be saved.
	applyAgain time.Duration
	// failOnInit is the setting in the latest configuration.
	failOnInit atomic.Bool
}

const (
	none   = "none"
	bootID = "/proc/sys/kernel/random/boot_id"
	// reopenAfter is the pause before a driver is opened again that does not answer.
	reopenAfter = 200 * time.Millisecond
	// applyAgain is the interval between attempts to apply a configuration that does not fit the machine, which may change.
	applyAgain = 10 * time.Second
	// waitForEvents is the duration of one wait for GPU events.
	waitForEvents = 5 * time.Second
)

// New returns an agent that reads GPUs with the library that open returns for the root of the driver. node is nil outside of a cluster.
func New(ctx context.Context, o Options, open func(driverRoot string) gpu.Library, node *nodeapi.Client) (*Agent, error) {
	log := logr.FromContextOrDiscard(ctx)
	config, err := o.override(sharing.Config{})
	if err != nil {
		return nil, err
	}
	settings, err := config.Settings()
	if err != nil {
		return nil, err
	}
	root := settings.ContainerDriverRoot
	if _, err := os.Stat(root); err != nil {
		root = "" // The dynamic loader finds the library.
	}
	for _, message := range sharing.WithoutEffect(o.flag, o.env) {
		log.Info("About the settings", "message", message)
	}
	a := &Agent{options: o, node: node, use: newUseWatch(o), mps: mpsWatch{dir: o.mpsDir}, resets: newResets(), applyAgain: applyAgain, calls: &bounded.Library{Library: open(root)}}
	a.library = usage.Library{Library: a.calls, Notes: &a.use.notes}
	a.failOnInit.Store(settings.FailOnInitError)
	disable, _ := o.env("DP_DISABLE_HEALTHCHECKS")
	enable, _ := o.env("DP_ENABLE_HEALTHCHECKS")
	policy, problems := health.ParsePolicy(disable, enable)
	for _, problem := range problems {
		log.Info("A word about health checks is not understood", "problem", problem)
	}
	a.policy = policy
	boot, err := os.ReadFile(bootID)
	if err != nil {
		log.Info("The boot is not known; what was found in another one counts for this one", "error", err.Error())
	}
	a.store = health.Store{Dir: o.stateDir, Boot: strings.TrimSpace(string(boot))}
	if a.node == nil {
		log.Info("The Node is not read: --node-name is not given, or there is no service account")
	}
	a.report = newReport(a) //nolint:contextcheck // What it starts outlives the context.
	a.outage = outage{grace: outageGrace, patience: outagePatience, declare: func(gpus []string, why error) { a.driverLost(ctx, gpus, why) }}
	plug := plugin.Config{
		KubeletSocket: o.kubeletSocket, Usage: a.library, Links: a.library.Links, Hooks: a.report.hooks(ctx), MPSDir: o.mpsDir, MPSWritablePipes: o.mpsWritable, GPUShareMiB: o.gpushareUnit == unitMiB,
		CDIMissing: func(devices []string) error { return cdi.Read(o.cdiDirs...).Missing(devices) },
	}
	if o.podResourcesSocket != none {
		plug.InUse = plugin.PodResources{Socket: o.podResourcesSocket}
	}
	if a.node != nil {
		plug.Allocatable = a.node
	}
	if a.node != nil && plug.InUse != nil {
		plug.Stated = a.podStates
	}
	a.manager = plugin.New(plug)
	a.dra = a.newDRA(ctx)
	a.use.holders.Claimed = a.claimed
	return a, nil
}

// Run runs the agent until ctx ends, or until an error for which the process must be restarted.
func (a *Agent) Run(ctx context.Context, again <-chan os.Signal) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop(nil)
	a.outage.giveUp = func(why error) {
		stop(fmt.Errorf("the driver has not answered for %s, and a new container may be given its GPUs: %w", a.outage.patience, why))
	}
	updates, found := make(chan configsource.Update), make(chan []gpu.Device)

	if err := a.serve(ctx, &group); err != nil {
		return err
	}
	group.Go(func() {
		if err := a.manager.Run(ctx); err != nil {
			stop(err)
		}
	})
	group.Go(func() {
		if err := a.dra.run(ctx); err != nil {
			stop(err)
		}
	})
	source := configsource.Source{File: a.options.configFile, Dir: a.options.configDir, Default: a.options.defaultConfig, Strict: a.options.strict}
	if a.node != nil {
		source.Node = &a.latestNode
		a.watchNode(ctx, &group)
	}
	group.Go(func() {
		source.Run(ctx, again, func(u configsource.Update) {
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		})
	})
	group.Go(func() {
		if err := a.watchGPUs(ctx, found); err != nil {
			stop(err)
		}
	})

	a.loop(ctx, updates, found)
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// seen records a version of the Node, and does what cannot wait.
func (a *Agent) seen(ctx context.Context, n nodeapi.Node) {
	before := a.latestNode.set(n)
	a.manager.SetMayWithdraw(ctx, slices.ContainsFunc(n.Spec.Taints, func(t nodeapi.Taint) bool {
		return t.Key == nodecontract.SlotsChangingTaintKey || t.Key == nodecontract.ReplicasNotReadyTaint
	}))
	if pausedBy(before) == "" && pausedBy(n) != "" {
		_ = a.library.Shutdown() // This also ends a wait for events.
	}
}

// watchNode starts what the agent does with its Node.
func (a *Agent) watchNode(ctx context.Context, group *sync.WaitGroup) {
	group.Go(func() { a.node.Watch(ctx, func(n nodeapi.Node) { a.seen(ctx, n) }) })
	group.Go(func() { a.watchNVIDIA(ctx) })
	if !a.options.writeNode {
		return
	}
	if a.options.podResourcesSocket != none {
		group.Go(func() { a.watchUse(ctx) })
	}
	group.Go(func() { a.report.events.run(ctx) })
	group.Go(func() { a.report.writeNode(ctx) })
}

// loop applies the configuration whenever it or the GPUs change. If it cannot be applied, the previous configuration stays in force.
func (a *Agent) loop(ctx context.Context, updates <-chan configsource.Update, found <-chan []gpu.Device) {
	var latest, good *sharing.Config
	var devices []gpu.Device
	var again <-chan time.Time // It is nil unless the configuration does not fit the machine.
	look := time.NewTicker(lookForMPS)
	defer look.Stop()
	_, changed := a.latestNode.get()
	for refused := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			a.watchMPS(ctx)
			continue
		case <-changed:
			_, changed = a.latestNode.get()
			a.cordonGPUs(ctx, devices)
			continue
		case <-again:
		case devices = <-found:
		case u := <-updates:
			next, err := a.accept(ctx, u)
			refused = err != nil
			if refused {
				a.report.refused(ctx, err)
				continue
			}
			latest = next
		}
		again = nil
		a.cordonGPUs(ctx, devices) // Before pods can get the replicas of a cordoned GPU.
		if latest == nil || len(devices) == 0 {
			continue
		}
		err := a.prepare(ctx, *latest, devices)
		if err == nil {
			err = a.apply(ctx, *latest, devices)
		}
		if err == nil {
			good = latest
			a.applied(*good, devices)
			a.report.sharing(*good, devices)
			if !refused {
				a.report.refused(ctx, nil)
			}
			continue
		}
		again = time.After(a.applyAgain)
		if why := (*applyError)(nil); errors.As(err, &why) {
			again = time.After(lookForMPS)
		}
		if a.report.refused(ctx, err) {
			logr.FromContextOrDiscard(ctx).Error(err, "The configuration is not for this machine; the last one stays in force")
		}
		if good != nil && a.apply(ctx, *good, devices) == nil { // The GPUs may have changed.
			a.report.sharing(*good, devices)
		}
	}
}

// serve serves HTTP until ctx ends.
func (a *Agent) serve(ctx context.Context, group *sync.WaitGroup) error {
	if a.options.metricsAddress == none {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.options.metricsAddress)
	if err != nil {
		return fmt.Errorf("--metrics-address: %w", err)
	}
	server := &http.Server{Handler: a.report.handler(), ReadHeaderTimeout: 5 * time.Second}
	group.Go(func() { _ = server.Serve(listener) }) // Close ends it.
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

// accept returns the configuration of an update, with flags and environment applied.
func (a *Agent) accept(ctx context.Context, u configsource.Update) (*sharing.Config, error) {
	log := logr.FromContextOrDiscard(ctx)
	if u.Err != nil {
		log.Error(u.Err, "The configuration cannot be used; the last one stays in force")
		if errors.Is(u.Err, configsource.ErrManagedElsewhere) {
			return nil, &applyError{nodecontract.ReasonMIGManagedElsewhere, u.Err}
		}
		return nil, u.Err
	}
	for _, message := range u.Answer.Messages {
		log.Info("About the configuration", "message", message)
	}
	config, err := a.options.override(u.Answer.Config)
	if err != nil {
		log.Error(err, "The configuration cannot be used; the last one stays in force", "source", u.Answer.Source)
		return nil, err
	}
	settings, err := config.Settings()
	if err != nil {
		return nil, err
	}
	a.reportAccess()
	a.failOnInit.Store(settings.FailOnInitError)
	log.Info("Configured", "source", u.Answer.Source)
	return &config, nil
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
