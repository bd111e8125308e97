package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/configsource"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/sharing"
)

// agent puts the parts together.
type agent struct {
	options options
	library gpu.Library
	manager *plugin.Manager
	node    *nodeapi.Client // nil outside of a cluster
	policy  health.Policy
	report  *report
	// failOnInit is what the settings that are known so far say.
	failOnInit atomic.Bool
}

const (
	none                      = "none"
	firstBackoff, lastBackoff = 200 * time.Millisecond, 30 * time.Second
	// waitForEvents is how long one look for events of GPUs takes.
	waitForEvents = 5 * time.Second
)

func newAgent(ctx context.Context, o options, open func(driverRoot string) gpu.Library) (*agent, error) {
	log := logr.FromContextOrDiscard(ctx)
	config, err := o.override(sharing.Config{Version: sharing.Version})
	if err != nil {
		return nil, err
	}
	settings, err := config.Settings()
	if err != nil {
		return nil, err
	}
	root := settings.ContainerDriverRoot
	if _, err := os.Stat(root); err != nil {
		root = "" // The dynamic loader knows.
	}
	a := &agent{options: o, library: open(root)}
	a.failOnInit.Store(settings.FailOnInitError)
	disable, _ := o.env("DP_DISABLE_HEALTHCHECKS")
	enable, _ := o.env("DP_ENABLE_HEALTHCHECKS")
	policy, problems := health.ParsePolicy(disable, enable)
	for _, problem := range problems {
		log.Info("A word about health checks is not understood", "problem", problem)
	}
	a.policy = policy
	if o.nodeName != "" {
		a.node, err = nodeapi.InCluster(o.nodeName)
		if err != nil && !errors.Is(err, nodeapi.ErrNotInCluster) {
			return nil, err
		}
	}
	if a.node == nil {
		log.Info("The Node is not read: --node-name is not given, or there is no service account")
	}
	a.report = newReport(a)
	plug := plugin.Config{KubeletSocket: o.kubeletSocket, Usage: a.library, Hooks: a.report.hooks()}
	if o.podResourcesSocket != none {
		plug.InUse = plugin.PodResources{Socket: o.podResourcesSocket}
	}
	if a.node != nil {
		plug.Allocatable = a.node
	}
	a.manager = plugin.New(plug)
	return a, nil
}

// run works until ctx ends, or until only a new process helps.
func (a *agent) run(ctx context.Context, again <-chan os.Signal) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var group sync.WaitGroup
	defer group.Wait()
	defer stop(nil)
	updates, found := make(chan configsource.Update), make(chan []gpu.Device)

	if err := a.serve(ctx, &group); err != nil {
		return err
	}
	group.Go(func() {
		if err := a.manager.Run(ctx); err != nil {
			stop(err)
		}
	})
	source := configsource.Source{File: a.options.configFile, Dir: a.options.configDir, Default: a.options.defaultConfig, Strict: a.options.strict}
	if a.node != nil {
		source.Node = a.node
		if a.options.writeNode {
			group.Go(func() { a.report.writeNode(ctx) })
		}
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

// loop puts in force what is known, whenever more is known.
func (a *agent) loop(ctx context.Context, updates <-chan configsource.Update, found <-chan []gpu.Device) {
	var config *sharing.Config
	var devices []gpu.Device
	for {
		select {
		case <-ctx.Done():
			return
		case devices = <-found:
		case u := <-updates:
			next, err := a.take(ctx, u)
			if err != nil {
				a.report.configured(err)
				continue
			}
			config = next
		}
		if config == nil || len(devices) == 0 {
			continue
		}
		err := a.manager.Apply(ctx, *config, devices)
		a.report.sharing(*config, devices, err)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Error(err, "The configuration is not for this machine; the last one stays in force")
		}
	}
}

// serve answers over HTTP until ctx ends.
func (a *agent) serve(ctx context.Context, group *sync.WaitGroup) error {
	if a.options.metricsAddress == none {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", a.options.metricsAddress)
	if err != nil {
		return fmt.Errorf("--metrics-address: %w", err)
	}
	server := &http.Server{Handler: a.report.handler(), ReadHeaderTimeout: 5 * time.Second}
	group.Go(func() { _ = server.Serve(listener) }) // It ends with Close.
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return nil
}

// take reads an update of the configuration.
func (a *agent) take(ctx context.Context, u configsource.Update) (*sharing.Config, error) {
	log := logr.FromContextOrDiscard(ctx)
	if u.Err != nil {
		log.Error(u.Err, "The configuration cannot be used; the last one stays in force")
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
	a.failOnInit.Store(settings.FailOnInitError)
	log.Info("Configured", "source", u.Answer.Source)
	return &config, nil
}

// watchGPUs opens the driver, for as long as it takes, tells which GPUs there are, and follows their health.
func (a *agent) watchGPUs(ctx context.Context, found chan<- []gpu.Device) error {
	log := logr.FromContextOrDiscard(ctx)
	var tracker *health.Tracker
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	// A look for events ends with it, and so the agent does not stay for its end.
	defer context.AfterFunc(ctx, func() { _ = a.library.Shutdown() })()
	said, backoff := "", firstBackoff
	for ctx.Err() == nil {
		driver, devices, err := a.open()
		if err != nil {
			if a.failOnInit.Load() && tracker == nil || errors.Is(err, gpu.ErrRestart) {
				return err
			}
			if err.Error() != said {
				said = err.Error()
				log.Info("No GPUs yet; staying and trying again", "reason", said)
			}
			a.report.opened(driver, nil, err)
			pause(ctx, backoff)
			backoff = min(2*backoff, lastBackoff)
			continue
		}
		said, backoff = "", firstBackoff
		log.Info("Found GPUs", "count", len(devices), "product", devices[0].Product, "driver", driver.Version)
		a.report.opened(driver, devices, nil)
		if tracker == nil {
			tracker = health.New(a.policy, string(boot), devices, health.State{})
		} else {
			a.changed(ctx, tracker)(tracker.Reopened(devices))
		}
		a.report.health(tracker.Condition())
		select {
		case found <- devices:
		case <-ctx.Done():
			return nil
		}
		err = a.follow(ctx, tracker)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, gpu.ErrRestart) {
			return err
		}
		log.Info("The driver does not answer; opening it again", "error", err.Error())
		pause(ctx, firstBackoff)
	}
	_ = a.library.Shutdown() // There is nobody left to tell.
	return nil
}

func (a *agent) open() (gpu.Driver, []gpu.Device, error) {
	driver, err := a.library.Init()
	if err != nil {
		return driver, nil, fmt.Errorf("the NVIDIA driver does not answer: %w", err)
	}
	devices, err := a.library.Devices()
	if err == nil && len(devices) == 0 {
		err = errors.New("the NVIDIA driver is there, and lists no GPU")
	}
	if err != nil {
		_ = a.library.Shutdown() // It is opened again soon.
	}
	return driver, devices, err
}

// follow waits for events until the driver is gone.
func (a *agent) follow(ctx context.Context, tracker *health.Tracker) error {
	if a.policy.Off() {
		<-ctx.Done()
		return ctx.Err()
	}
	for ctx.Err() == nil {
		event, ok, err := a.library.Wait(waitForEvents)
		if err != nil {
			_ = a.library.Shutdown() // It is opened again soon.
			return err
		}
		if ok {
			a.report.observe(event)
			a.changed(ctx, tracker)(tracker.Observe(event, time.Now()))
		}
	}
	return ctx.Err()
}

// changed tells the kubelet and people.
func (a *agent) changed(ctx context.Context, tracker *health.Tracker) func([]health.Change, []health.Event) {
	return func(changes []health.Change, events []health.Event) {
		for _, c := range changes {
			a.manager.SetHealth(c.UUID, c.Healthy)
		}
		for _, e := range events {
			logr.FromContextOrDiscard(ctx).Info(e.Message, "reason", e.Reason)
		}
		if len(changes) > 0 {
			a.report.health(tracker.Condition())
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
