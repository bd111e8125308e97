package disruption

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/fleet/disruption"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/metrics"
	"karve.sh/karve/pkg/planning"
	"karve.sh/karve/pkg/repair"
	"karve.sh/karve/pkg/watchdog"
)

// soon is the delay after a conflict.
const soon = time.Second

// maxRest is the longest time that events wait for the next pass.
const maxRest = 2 * time.Second

// maxWait is the longest time between two passes.
const maxWait = time.Minute

// Config has the dependencies and settings of the controller.
type Config struct {
	Client   client.Client
	Gatherer *gather.Gatherer
	Planner  *planning.Planner
	Metrics  *metrics.Metrics
	Recorder events.EventRecorder
	Clock    clock.Clock
	// Settle is how long a tainted node is watched before it is deleted, so that Karve notices a pod that was bound at the last moment.
	Settle time.Duration
	// Tolerations are how long unhealthy machines are tolerated.
	Tolerations repair.Tolerations
}

// Controller decides about all machines together, because budgets apply to all of them.
type Controller struct {
	Config
	// memory is what is remembered between rounds of decisions.
	memory disruption.Memory
	pace   watchdog.Pace
	// arrived has the events since the last pass. urgent reports whether one of them should not wait.
	arrived metrics.Arrivals
	urgent  atomic.Bool
}

// New returns a new controller.
func New(config Config) *Controller { return &Controller{Config: config} }
