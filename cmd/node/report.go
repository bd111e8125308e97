package main

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/metrics"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/sharing"
)

// sharingCondition is the node condition that says whether the configuration is in force.
const sharingCondition = "KarveSharingReady"

// report is what the agent tells: metrics, the Node's labels and conditions, and whether it is ready.
type report struct {
	agent    *agent
	exporter *metrics.Exporter
	write    chan struct{}

	mu         sync.Mutex
	driver     gpu.Driver
	registered map[string]time.Duration
	aside      map[string]string
	listed     map[string][2]int
	applied    map[bool]int
	reload     time.Duration
	allocated  map[bool]int
	slowest    time.Duration
	labels     map[string]string
	conditions map[string]health.Condition
}

func newReport(a *agent) *report {
	r := &report{
		agent: a, write: make(chan struct{}, 1), registered: map[string]time.Duration{}, aside: map[string]string{}, listed: map[string][2]int{},
		applied: map[bool]int{}, allocated: map[bool]int{}, conditions: map[string]health.Condition{},
	}
	r.exporter = metrics.New(metrics.Config{Library: a.library, Replicas: r.replicas, DCGM: a.options.dcgm, Host: a.options.nodeName, More: r.more})
	return r
}

func (r *report) replicas() map[string]metrics.Replicas {
	out := map[string]metrics.Replicas{}
	for uuid, share := range r.agent.manager.Shares() {
		out[uuid] = metrics.Replicas{Total: share.Total, Allocated: share.Allocated}
	}
	return out
}

func (r *report) observe(e gpu.Event) { r.exporter.Observe(e) }

func (r *report) hooks() plugin.Hooks {
	return plugin.Hooks{
		Registered: func(resource string, took time.Duration) { r.with(func() { r.registered[resource] = took }) },
		StoodBack: func(resource, why string) {
			r.with(func() {
				r.aside[resource] = why
				delete(r.registered, resource)
			})
		},
		Listed: func(resource string, healthy, unhealthy int) {
			r.with(func() { r.listed[resource] = [2]int{healthy, unhealthy} })
		},
		Applied: func(took time.Duration, err error) {
			r.with(func() {
				r.applied[err == nil]++
				r.reload = took
			})
		},
		Allocated: func(_ string, _ []string, took time.Duration, err error) {
			r.with(func() {
				r.allocated[err == nil]++
				r.slowest = max(r.slowest, took)
			})
		},
	}
}

func (r *report) with(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *report) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", r.exporter)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.registered) == 0 {
			http.Error(w, "nothing is registered with the kubelet", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// more are the metrics of the plugin itself.
func (r *report) more(t *metrics.Text) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Family("karve_node_registration_seconds", metrics.Gauge, "From wanting a resource to the kubelet having taken it, the last time.")
	for _, resource := range slices.Sorted(maps.Keys(r.registered)) {
		t.Sample(r.registered[resource].Seconds(), "resource", resource)
	}
	t.Family("karve_node_devices", metrics.Gauge, "Devices that the kubelet knows.")
	for _, resource := range slices.Sorted(maps.Keys(r.listed)) {
		t.Sample(float64(r.listed[resource][0]), "resource", resource, "health", "healthy")
		t.Sample(float64(r.listed[resource][1]), "resource", resource, "health", "unhealthy")
	}
	t.Family("karve_node_stood_back", metrics.Gauge, "1 while another device plugin has the resource.")
	for _, resource := range slices.Sorted(maps.Keys(r.aside)) {
		value := 0.0
		if r.aside[resource] != "" {
			value = 1
		}
		t.Sample(value, "resource", resource)
	}
	t.Family("karve_node_configurations_total", metrics.Counter, "Configurations that were put in force, or refused.")
	t.Sample(float64(r.applied[true]), "result", "applied")
	t.Sample(float64(r.applied[false]), "result", "refused")
	t.Family("karve_node_configuration_seconds", metrics.Gauge, "How long the last configuration took to be in force.")
	t.Sample(r.reload.Seconds())
	t.Family("karve_node_allocations_total", metrics.Counter, "Containers that were given devices, or refused.")
	t.Sample(float64(r.allocated[true]), "result", "granted")
	t.Sample(float64(r.allocated[false]), "result", "refused")
	t.Family("karve_node_allocation_seconds_max", metrics.Gauge, "The longest that a container had to wait for its devices.")
	t.Sample(r.slowest.Seconds())
}

// opened, configured, sharing and health note what the Node is to say.

func (r *report) opened(d gpu.Driver, devices []gpu.Device, err error) {
	r.with(func() { r.driver = d })
	if err != nil {
		r.condition(health.Condition{Type: sharingCondition, Status: "False", Reason: "NoGPUs", Message: err.Error()})
	} else if len(devices) > 0 {
		r.poke()
	}
}

func (r *report) configured(err error) {
	r.with(func() { r.applied[false]++ })
	r.condition(health.Condition{Type: sharingCondition, Status: "False", Reason: "ConfigurationRefused", Message: err.Error()})
}

func (r *report) sharing(c sharing.Config, devices []gpu.Device, err error) {
	if err != nil {
		r.condition(health.Condition{Type: sharingCondition, Status: "False", Reason: "ConfigurationRefused", Message: err.Error()})
		return
	}
	s := labels.Sharing{Strategy: labels.None, Replicas: 1}
	// The labels have one number for all GPUs; where they differ there is none to give.
	if p, alike := c.Promise(); alike && p.Replicas > 1 {
		s = labels.Sharing{Strategy: labels.TimeSlicing, Replicas: p.Replicas, Renamed: p.Resource != sharing.ResourceGPU}
	}
	r.with(func() { r.labels = labels.For(devices, r.driver, s) })
	r.condition(health.Condition{Type: sharingCondition, Status: "True", Reason: "ConfigurationApplied", Message: "The GPUs are shared as configured"})
}

func (r *report) health(c health.Condition) { r.condition(c) }

func (r *report) condition(c health.Condition) {
	same := false
	r.with(func() {
		same = r.conditions[c.Type] == c
		r.conditions[c.Type] = c
	})
	if !same || c.Type == sharingCondition {
		r.poke()
	}
}

func (r *report) poke() {
	select {
	case r.write <- struct{}{}:
	default:
	}
}

// writeNode writes labels and conditions whenever they are others than before.
func (r *report) writeNode(ctx context.Context) {
	log := logr.FromContextOrDiscard(ctx)
	written, told := map[string]string{}, map[string]health.Condition{}
	backoff := firstBackoff
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.write:
		}
		var next map[string]string
		var conditions map[string]health.Condition
		r.with(func() { next, conditions = maps.Clone(r.labels), maps.Clone(r.conditions) })
		err := r.writeLabels(ctx, next, written)
		if err == nil {
			err = r.writeConditions(ctx, conditions, told)
		}
		if err != nil {
			log.Info("The Node cannot be written; trying again", "error", err.Error())
			pause(ctx, backoff)
			backoff = min(2*backoff, lastBackoff)
			r.poke()
			continue
		}
		backoff = firstBackoff
	}
}

func (r *report) writeLabels(ctx context.Context, next, written map[string]string) error {
	patch := map[string]any{}
	for key, value := range next {
		if written[key] != value {
			patch[key] = value
		}
	}
	for key := range written {
		if _, stays := next[key]; !stays {
			patch[key] = nil
		}
	}
	if len(patch) == 0 {
		return nil
	}
	if err := r.agent.node.Patch(ctx, "", nodeapi.MergePatch, map[string]any{"metadata": map[string]any{"labels": patch}}); err != nil {
		return err
	}
	clear(written)
	maps.Copy(written, next)
	return nil
}

func (r *report) writeConditions(ctx context.Context, next, told map[string]health.Condition) error {
	now := time.Now().UTC().Format(time.RFC3339)
	var patch []map[string]string
	for _, kind := range slices.Sorted(maps.Keys(next)) {
		c := next[kind]
		if told[kind] == c {
			continue
		}
		condition := map[string]string{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message, "lastHeartbeatTime": now}
		if told[kind].Status != c.Status {
			condition["lastTransitionTime"] = now
		}
		patch = append(patch, condition)
	}
	if len(patch) == 0 {
		return nil
	}
	if err := r.agent.node.Patch(ctx, "status", nodeapi.StrategicPatch, map[string]any{"status": map[string]any{"conditions": patch}}); err != nil {
		return err
	}
	maps.Copy(told, next)
	return nil
}
