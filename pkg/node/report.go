package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/metrics"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/node/usage"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/version"
)

// report holds what the agent reports: metrics, the Node's labels and conditions, and whether it is ready.
type report struct {
	agent    *Agent
	exporter *metrics.Exporter
	events   *recorder // It is nil if no events are written.
	// write receives a value when the Node must be written.
	write chan struct{}

	mu     sync.Mutex
	driver gpu.Driver
	// By resource: how long the last registration took, why the agent stands back or "", and the numbers of healthy and unhealthy devices.
	registered map[string]time.Duration
	aside      map[string]string
	listed     map[string][2]int
	// applied and allocated count configurations and allocations by whether they succeeded.
	applied, allocated map[bool]int
	// applyTook is how long it took to apply the last configuration, and maxAllocation how long the slowest allocation took.
	applyTook, maxAllocation time.Duration
	labels                   map[string]string
	conditions               map[string]health.Condition
	// driverGone replaces the hardware condition while no GPU can be used. Otherwise it is nil.
	driverGone *health.Condition
	// noGPUs, refusal and inForce determine the sharing condition.
	noGPUs, refusal string
	// refusalReason is the condition's reason for refusal. daemonsDown is why GPUs of the configuration in force have no MPS daemon.
	refusalReason, daemonsDown string
	inForce                    bool
	// unpublished is why the ResourceSlice of the DRA driver is not up to date.
	unpublished string
	// nvidia is NVIDIA's DRA driver, if it serves the GPUs.
	nvidia   nvidiaDriver
	exceeded []usage.PodMemory
}

func newReport(a *Agent) *report {
	r := &report{
		agent: a, write: make(chan struct{}, 1), registered: map[string]time.Duration{}, aside: map[string]string{}, listed: map[string][2]int{},
		applied: map[bool]int{}, allocated: map[bool]int{}, conditions: map[string]health.Condition{},
	}
	if a.node != nil && a.options.writeNode {
		r.events = newRecorder(a.node.Record, clock.RealClock{})
	}
	config := metrics.Config{Library: a.library, Replicas: r.replicas, DCGM: a.options.dcgm, Host: a.options.NodeName, More: r.more}
	if a.options.podLogs != none {
		config.Pods = metrics.LogFolders{Root: a.options.podLogs}
	}
	if a.options.podResourcesSocket != none {
		config.Held = held(plugin.PodResources{Socket: a.options.podResourcesSocket, Claimed: a.claimed})
	}
	r.exporter = metrics.New(config)
	return r
}

// heldPatience is how long a scrape waits for the kubelet to list what each container holds.
const heldPatience = 2 * time.Second

// held returns a function that asks the kubelet which containers hold replicas.
func held(kubelet plugin.PodResources) func() ([]metrics.Held, error) {
	return func() ([]metrics.Held, error) {
		ctx, cancel := context.WithTimeout(context.Background(), heldPatience) // A reading serves several scrapes, and outlives each.
		defer cancel()
		holders, err := kubelet.Holders(ctx)
		return heldBy(holders), err
	}
}

// heldBy returns how many devices of each GPU containers hold.
func heldBy(holders []plugin.Holder) []metrics.Held {
	var all []metrics.Held
	for _, h := range holders {
		namespace, pod := splitPod(h.Pod)
		for _, id := range h.Devices {
			of := metrics.Held{Namespace: namespace, Pod: pod, Container: h.Container, UUID: alloc.UUID(id)}
			// A pod that ends and its successor may have the same name.
			i := slices.IndexFunc(all, func(h metrics.Held) bool { h.Replicas = 0; return h == of })
			if i < 0 {
				i = len(all)
				all = append(all, of)
			}
			all[i].Replicas++
		}
	}
	return all
}

func splitPod(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

func (r *report) replicas() map[string]metrics.Replicas {
	out := map[string]metrics.Replicas{}
	for uuid, share := range r.agent.shares() {
		out[uuid] = metrics.Replicas{Total: share.Total, Allocated: share.Allocated}
	}
	return out
}

func (r *report) observe(e gpu.Event) { r.exporter.Observe(e) }

func (r *report) hooks(ctx context.Context) plugin.Hooks {
	return plugin.Hooks{
		Registered: func(resource string, took time.Duration) { r.locked(func() { r.registered[resource] = took }) },
		StoodBack:  func(resource, why string) { r.stoodBack(ctx, resource, why) },
		Others:     func(why string) { r.agent.othersServe(ctx, why) },
		Listed: func(resource string, healthy, unhealthy int) {
			r.locked(func() { r.listed[resource] = [2]int{healthy, unhealthy} })
		},
		Applied: func(took time.Duration, err error) {
			r.locked(func() {
				r.applied[err == nil]++
				r.applyTook = took
			})
		},
		Allocated: func(_ string, _ []string, took time.Duration, err error) {
			r.locked(func() {
				r.allocated[err == nil]++
				r.maxAllocation = max(r.maxAllocation, took)
			})
		},
	}
}

// stoodBack records that someone else serves a resource, or that this has ended if why is "".
func (r *report) stoodBack(ctx context.Context, resource, why string) {
	nvidias := false
	r.locked(func() {
		r.aside[resource] = why
		delete(r.registered, resource)
		nvidias = r.nvidia.promised
	})
	switch {
	case why != "":
		r.events.tell(ctx, health.Event{Reason: nodecontract.ReasonStandingBack, Message: resource + " is not served: " + why})
	case !nvidias:
		r.events.tell(ctx, health.Event{Reason: "InCharge", Message: resource + " is free; this agent serves it again"})
	}
	r.sharingCondition()
}

func (r *report) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *report) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", r.exporter)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if err := r.agent.calls.Err(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		// An agent that stands back has nothing to do. An upgrade does not wait for it, and ends an agent that has the resource.
		aside := slices.ContainsFunc(slices.Collect(maps.Values(r.aside)), func(why string) bool { return why != "" })
		if len(r.registered) == 0 && !r.nvidia.promised && !aside {
			http.Error(w, "nothing is registered with the kubelet", http.StatusServiceUnavailable)
		}
	})
	return mux
}

// more writes the metrics of the plugin itself.
func (r *report) more(t *metrics.Text) {
	r.mu.Lock()
	defer r.mu.Unlock()
	writeBuild(t)
	t.Family("karve_node_registration_seconds", metrics.Gauge, "From wanting a resource to the kubelet having taken it, the last time.")
	for _, resource := range slices.Sorted(maps.Keys(r.registered)) {
		t.Sample(r.registered[resource].Seconds(), "resource", resource)
	}
	writeExceeded(t, r.exceeded)
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
	t.Family("karve_node_gpus_cordoned", metrics.Gauge, "GPUs that take no new pods because the Node's annotation karve.sh/gpu-cordon names them.")
	t.Sample(float64(r.agent.cordon.count()))
	t.Family("karve_node_configurations_total", metrics.Counter, "Configurations that were put in force, or refused.")
	t.Sample(float64(r.applied[true]), "result", "applied")
	t.Sample(float64(r.applied[false]), "result", "refused")
	t.Family("karve_node_configuration_seconds", metrics.Gauge, "How long the last configuration took to be in force.")
	t.Sample(r.applyTook.Seconds())
	t.Family("karve_node_allocations_total", metrics.Counter, "Containers that were given devices, or refused.")
	t.Sample(float64(r.allocated[true]), "result", "granted")
	t.Sample(float64(r.allocated[false]), "result", "refused")
	t.Family("karve_node_allocation_seconds_max", metrics.Gauge, "The longest that a container had to wait for its devices.")
	t.Sample(r.maxAllocation.Seconds())
}

// writeBuild writes the version of the program.
func writeBuild(t *metrics.Text) {
	built := version.This()
	t.Family("karve_build_info", metrics.Gauge, "1, with the version of the program.")
	t.Sample(1, "version", built.Version, "revision", cmp.Or(built.Revision, "unknown"), "goversion", built.Go)
}

// opened, refused, sharing and condition update what is written to the Node.

func (r *report) opened(d gpu.Driver, devices []gpu.Device, err error) {
	r.locked(func() {
		r.driver, r.noGPUs = d, ""
		if err != nil {
			r.noGPUs = err.Error()
		}
	})
	r.sharingCondition()
	if len(devices) > 0 {
		notify(r.write)
	}
}

// refused records why the newest configuration was refused, or that it is in force if err is nil. It reports whether that has changed.
func (r *report) refused(ctx context.Context, err error) bool {
	now, before, inForce, reason := "", "", false, nodecontract.ReasonRefused
	if why := (*applyError)(nil); errors.As(err, &why) {
		reason = why.reason
	}
	if err != nil {
		now = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.locked(func() { before, r.refusal, r.refusalReason, inForce = r.refusal, now, reason, r.inForce })
	switch {
	case now != "" && now != before:
		message := "The configuration is kept out: " + now
		if inForce {
			message = "The configuration is kept out, and the last good one stays in force: " + now
		}
		r.events.tell(ctx, health.Event{Warning: true, Reason: reason, Message: message})
	case now == "" && before != "":
		r.events.tell(ctx, health.Event{Reason: nodecontract.ReasonApplied, Message: "The configuration is good again, and in force"})
	}
	r.sharingCondition()
	return now != before
}

// mpsDown records why GPUs have no MPS daemon. why is "" if all have theirs.
func (r *report) mpsDown(why string) { r.notSharing(&r.daemonsDown, why) }

// notSharing records why GPUs are not shared as configured, and writes to the Node if that has changed. why is "" if they are.
func (r *report) notSharing(problem *string, why string) {
	same := false
	r.locked(func() {
		same = *problem == why
		*problem = why
	})
	if !same {
		r.sharingCondition()
	}
}

func (r *report) sharing(c sharing.Config, devices []gpu.Device) {
	// The labels have one number of replicas for all GPUs. If the GPUs differ, it is not set.
	s := labels.Sharing{Strategy: c.Label(), Replication: c.Replication}
	s.Replicas, s.Renamed = c.Replication(nodecontract.ResourceGPU)
	resources, _ := c.Resources(devices) // The configuration has just been applied.
	settings, _ := c.Settings()
	s.MIGStrategy = settings.MIGStrategy
	machine := machineOf(sysfs, settings.MachineTypeFile)
	r.locked(func() {
		r.labels, r.inForce = stamped(labels.For(devices, r.driver, s, machine), r.labels, settings.Timestamp, time.Now()), true
		maps.DeleteFunc(r.aside, func(name, _ string) bool {
			return !slices.ContainsFunc(resources, func(r sharing.Resource) bool { return r.Name == name })
		})
	})
	r.sharingCondition()
	notify(r.write)
}

// timestamp is the label with the time at which the labels changed, in seconds since 1970.
const timestamp = nodecontract.NVIDIAPrefix + "gfd.timestamp"

// stamped adds the timestamp to labels. The timestamp changes only if the labels do.
func stamped(next, before map[string]string, wanted bool, now time.Time) map[string]string {
	if !wanted || len(next) == 0 {
		return next
	}
	stamp, had := before[timestamp]
	same := maps.Clone(before)
	delete(same, timestamp)
	if !had || !maps.Equal(same, next) {
		stamp = strconv.FormatInt(now.Unix(), 10)
	}
	next[timestamp] = stamp
	return next
}

// sharingCondition sets the sharing condition to the most serious problem.
func (r *report) sharingCondition() {
	var c health.Condition
	r.locked(func() {
		if c = r.unshared(); c.Reason == "" && r.inForce {
			c = r.shared()
		}
	})
	if c.Reason != "" {
		c.Type, c.Status = nodecontract.SharingCondition, cmp.Or(c.Status, "False")
		r.condition(c)
	}
}

// unshared returns why the GPUs are not shared as configured, whatever configuration is in force. The reason is "" if nothing keeps them from it.
func (r *report) unshared() health.Condition {
	var aside []string
	for _, resource := range slices.Sorted(maps.Keys(r.aside)) {
		if why := r.aside[resource]; why != "" {
			aside = append(aside, resource+": "+why)
		}
	}
	switch {
	case r.driverGone != nil && r.driverGone.Reason == nodecontract.ReasonPaused:
		return health.Condition{Reason: r.driverGone.Reason, Message: r.driverGone.Message}
	case r.noGPUs != "":
		return health.Condition{Reason: nodecontract.ReasonNone, Message: r.noGPUs}
	case r.refusal != "" && r.inForce:
		return health.Condition{Reason: r.refusalReason, Message: "The last good configuration stays in force: " + r.refusal}
	case r.refusal != "":
		return health.Condition{Reason: r.refusalReason, Message: r.refusal}
	case len(aside) > 0:
		return health.Condition{Reason: nodecontract.ReasonStandingBack, Message: strings.Join(aside, "; ")}
	}
	return health.Condition{}
}

// shared returns the condition of the configuration that is in force.
func (r *report) shared() health.Condition {
	switch {
	case r.daemonsDown != "":
		return health.Condition{Reason: nodecontract.ReasonMPSDaemonDown, Message: r.daemonsDown}
	case r.unpublished != "":
		return health.Condition{Reason: nodecontract.ReasonSliceNotPublished, Message: r.unpublished}
	case r.nvidia.promised && r.nvidia.slice == "":
		return health.Condition{Reason: nodecontract.ReasonNVIDIADriverMissing, Message: "NVIDIA's DRA driver (" + nodecontract.NVIDIADRADriver +
			") is to serve the GPUs and has no ResourceSlice for this node: install it, or look at its kubelet plugin on the node"}
	case r.nvidia.promised:
		return health.Condition{Status: "True", Reason: nodecontract.ReasonServedByNVIDIA, Message: "NVIDIA's DRA driver (" + nodecontract.NVIDIADRADriver +
			") serves the GPUs (ResourceSlice " + r.nvidia.slice + "), and this agent reports on them"}
	}
	return health.Condition{Status: "True", Reason: nodecontract.ReasonApplied, Message: "The GPUs are shared as configured"}
}

// driverAway sets the hardware condition to report while no GPU can be used. The caller passes nil once GPUs can be used.
func (r *report) driverAway(away *health.Condition) {
	r.locked(func() { r.driverGone = away })
	r.sharingCondition()
	notify(r.write)
}

// maxCondition is the longest message of a condition, in bytes. The Node is read by many.
const maxCondition = 4 << 10

func (r *report) condition(c health.Condition) {
	c.Message = plain.Shorten(c.Message, maxCondition)
	same := false
	r.locked(func() {
		same = r.conditions[c.Type] == c
		r.conditions[c.Type] = c
	})
	if !same {
		notify(r.write)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
