package groups

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/firstfit"
	"karve.sh/karve/pkg/planner/plantest"
	"karve.sh/karve/pkg/planner/solve"
)

// Policy decides what happens to the pending pods.
type Policy string

// The policies: plans that know groups, the same plans without that knowledge, and a model of Karpenter's packing, which knows none either.
const (
	Whole    Policy = "groups"
	Parts    Policy = "no groups"
	FirstFit Policy = "first fit"
)

// Figures are what a day costs with a policy.
type Figures struct {
	Policy Policy `json:"policy"`
	// MachinesUSD is the price of the machines until the last job has ended. IdleUSD is the part of it for replicas whose pods wait for others of their job, by their share of a machine's replicas.
	MachinesUSD float64 `json:"machinesUSD"`
	IdleUSD     float64 `json:"idleUSD"`
	// Wait is the mean time from a job's arrival to its start, and Long that of the slowest job in twenty.
	Wait time.Duration `json:"wait"`
	Long time.Duration `json:"long"`
	// GaveUp counts how often a job ended because some of its pods did not come.
	GaveUp int `json:"gaveUp"`
	// Ended is when the last job ended, and Starved counts those that had not started two days after the day.
	Ended   time.Duration `json:"ended"`
	Starved int           `json:"starved"`
}

const (
	every    = time.Minute
	startup  = 2 * time.Minute  // of a machine
	idle     = 5 * time.Minute  // after which a machine without pods is removed
	patience = 10 * time.Minute // for which torchrun's rendezvous waits, by default 600 s
	backoff  = 5 * time.Minute  // before a job that gave up tries again
	longest  = 3 * 24 * time.Hour
	effort   = 10_000
)

// machine is a machine with the jobs of its pods.
type machine struct {
	offering int
	ready    time.Duration
	empty    time.Duration
	pods     map[*running]int
}

// running is a job with the places that its pods have.
type running struct {
	job
	placed int
	since  time.Duration // when the first pod got its place
	starts time.Duration // when the job started, or -1
	after  time.Duration // when it may be planned for
}

type cluster struct {
	policy   Policy
	now      time.Duration
	offers   planner.Snapshot
	gpus     int64
	machines []*machine
	waiting  []*running
	started  []*running
	waits    []time.Duration
	figures  Figures
}

// Run runs the jobs of a day on machines with at most so many GPUs.
func Run(policy Policy, seed int64, jobs int, gpus int64) (Figures, error) {
	c := &cluster{policy: policy, gpus: gpus, figures: Figures{Policy: policy}}
	c.offers = planner.Snapshot{Pools: []planner.Pool{plantest.Pool("gpu-shared")}, Offerings: plantest.Offerings(plantest.G4dn(), 10)}
	coming := day(seed, jobs)
	slices.SortStableFunc(coming, func(a, b job) int { return cmp.Compare(a.arrives, b.arrives) })
	for i := 0; c.now < longest && (i < len(coming) || len(c.waiting)+len(c.started) > 0); c.now += every {
		for ; i < len(coming) && coming[i].arrives <= c.now; i++ {
			coming[i].name = fmt.Sprintf("job-%05d", i)
			c.waiting = append(c.waiting, &running{job: coming[i], starts: -1})
		}
		c.end()
		if err := c.place(); err != nil {
			return c.figures, err
		}
		c.start()
		c.pay()
	}
	for _, j := range c.waiting {
		c.waits = append(c.waits, c.now-j.arrives)
	}
	c.figures.Starved = len(c.waiting)
	slices.Sort(c.waits)
	var sum time.Duration
	for _, w := range c.waits {
		sum += w
	}
	c.figures.Wait, c.figures.Long, c.figures.Ended = sum/time.Duration(len(c.waits)), c.waits[len(c.waits)*19/20], c.now
	return c.figures, nil
}

// end ends jobs that have run, jobs that gave up, and machines that are idle.
func (c *cluster) end() {
	c.started = slices.DeleteFunc(c.started, func(j *running) bool {
		ends := j.starts+j.runs <= c.now
		if ends {
			c.leave(j)
		}
		return ends
	})
	for _, j := range c.waiting {
		if j.placed > 0 && c.now-j.since >= patience {
			c.leave(j)
			c.figures.GaveUp++
			j.placed, j.after = 0, c.now+backoff
		}
	}
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool { return len(m.pods) == 0 && c.now-max(m.empty, m.ready) >= idle })
}

func (c *cluster) leave(j *running) {
	for _, m := range c.machines {
		if m.pods[j] > 0 {
			delete(m.pods, j)
			m.empty = c.now
		}
	}
}

// place plans for the pods without a place and carries the plan out.
func (c *cluster) place() error {
	s, of := c.snapshot()
	if len(s.Classes) == 0 {
		return nil
	}
	var p planner.Plan
	switch c.policy {
	case FirstFit:
		p = firstfit.Plan(s)
	case Parts:
		p = solve.Solver{Effort: effort}.Plan(s)
	case Whole:
		s.Groups = groupsOf(s, of)
		p = solve.Solver{Effort: effort}.Plan(s)
	}
	if err := check.Plan(s, p); err != nil {
		return fmt.Errorf("%s at %s: %w", c.policy, c.now, err)
	}
	seat := func(m *machine, pods []string) {
		for _, pod := range pods {
			j := of[pod]
			if j.placed == 0 {
				j.since = c.now
			}
			j.placed++
			m.pods[j]++
		}
	}
	there := c.machines
	for _, l := range p.Launches {
		m := &machine{offering: l.Offering, ready: c.now + startup, pods: map[*running]int{}}
		c.machines = append(c.machines, m)
		seat(m, l.Pods)
	}
	for _, x := range p.Placements {
		seat(there[x.Node], x.Pods)
	}
	return nil
}

// snapshot returns the pods without a place, a class for each job, and the job of each pod.
func (c *cluster) snapshot() (s planner.Snapshot, of map[string]*running) {
	s, of = c.offers, map[string]*running{}
	used := int64(0)
	var all []int
	for i, m := range c.machines {
		o := s.Offerings[m.offering]
		used += o.Physical.GPUs
		free := o.Free
		for j, n := range m.pods {
			free.MilliCPU -= int64(n) * j.request.MilliCPU
			free.MemoryBytes -= int64(n) * j.request.MemoryBytes
			free.Pods -= int64(n)
			free.Replicas -= int64(n) * j.request.Replicas
		}
		s.Nodes, all = append(s.Nodes, planner.Node{Name: fmt.Sprintf("node-%05d", i), Free: free}), append(all, i)
	}
	s.Pools = slices.Clone(s.Pools)
	s.Pools[0].Remaining.GPUs = c.gpus - used
	for _, j := range c.waiting {
		if j.after > c.now || j.placed == j.pods {
			continue
		}
		class := plantest.Class(s, j.name, j.pods-j.placed, j.request)
		class.Nodes = all
		for _, pod := range class.Pods {
			of[pod] = j
		}
		s.Classes = append(s.Classes, class)
	}
	return s, of
}

// groupsOf returns a group for each job of several pods, the oldest first.
func groupsOf(s planner.Snapshot, of map[string]*running) []planner.Group {
	var groups []planner.Group
	for i, class := range s.Classes {
		if j := of[class.Pods[0]]; j.pods > 1 {
			groups = append(groups, planner.Group{Name: j.name, Classes: []int{i}, Min: int64(len(class.Pods))})
		}
	}
	return groups
}

// start starts the jobs all of whose pods are on machines that are ready.
func (c *cluster) start() {
	c.waiting = slices.DeleteFunc(c.waiting, func(j *running) bool {
		if j.placed < j.pods || slices.ContainsFunc(c.machines, func(m *machine) bool { return m.pods[j] > 0 && m.ready > c.now }) {
			return false
		}
		j.starts = c.now
		c.started, c.waits = append(c.started, j), append(c.waits, c.now-j.arrives)
		return true
	})
}

// pay adds what the machines cost until the next step.
func (c *cluster) pay() {
	const hour = float64(every) / float64(time.Hour) / 1e6
	for _, m := range c.machines {
		o := c.offers.Offerings[m.offering]
		c.figures.MachinesUSD += float64(o.Price) * hour
		for j, n := range m.pods {
			if j.starts < 0 && m.ready <= c.now {
				c.figures.IdleUSD += float64(o.Price) * hour * float64(int64(n)*j.request.Replicas) / float64(o.Free.Replicas)
			}
		}
	}
}
