package advice

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// Measured is what was measured of a fleet.
type Measured struct {
	From, To time.Time
	// Cluster has the NodePools, the GPUNodeClasses, their instance types and DaemonSets, as they are today.
	Cluster   *facts.Cluster
	Workloads []Workload
	// Billed is what Karve's machines cost according to Karve's metrics, in micro-dollars. It is 0 if that is not known.
	Billed planner.MicroUSD
	// GPUBusy is the mean share of time in which a GPU ran a kernel. It is negative if that is not known.
	GPUBusy float64
	// Expired is how many pods moved because their machine was about to expire, by NodePool.
	Expired map[string]float64
	// Notes are for the user: what was not measured.
	Notes []string
}

// Advice is what to change.
type Advice struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Workloads, Pods and MeanPods are what was replayed.
	Workloads int     `json:"workloads"`
	Pods      int     `json:"pods"`
	MeanPods  float64 `json:"meanPods"`
	// Replayed is what the replay costs without changes, and After what it costs with all steps.
	Replayed planner.MicroUSD `json:"replayedMicroUSD"`
	After    planner.MicroUSD `json:"afterMicroUSD"`
	// Billed is what the machines cost in reality, or 0 if that is not known.
	Billed planner.MicroUSD `json:"billedMicroUSD,omitempty"`
	// Bought is what fills the machines.
	Bought []Bought `json:"bought,omitempty"`
	// GPUBusy is the mean share of time in which a GPU ran a kernel.
	GPUBusy *float64 `json:"gpuBusyRatio,omitempty"`
	// Steps are in the order of what they save. Each saves this after the ones before it.
	Steps []Step   `json:"steps"`
	Notes []string `json:"notes,omitempty"`
}

// Bought is a resource whose requests need machines.
type Bought struct {
	Resource string `json:"resource"`
	// Price is the part of the price that would not be paid if pods requested nothing of it, and Used the mean part of the requests that pods use.
	Price float64 `json:"priceRatio"`
	Used  float64 `json:"usedRatio"`
}

// Step is one change, or several that save only together.
type Step struct {
	// Saves is what the step saves in the range, according to the replay.
	Saves   planner.MicroUSD `json:"savesMicroUSD"`
	Changes []Change         `json:"changes"`
}

const (
	// minSaving is the smallest part of the price that a step must save.
	minSaving = 0.005
	// maxSingleChanges is the largest number of workloads whose requests are changed one by one. The others change together.
	maxSingleChanges = 10
)

// Of returns what to change. If a namespace is named, it returns only changes of its workloads.
func Of(m Measured, namespace string) (Advice, error) {
	sc := &scenario{cluster: *m.Cluster, end: m.To.Sub(m.From)}
	a := Advice{From: m.From, To: m.To, Billed: m.Billed, Notes: slices.Clone(m.Notes), Steps: []Step{}}
	if m.GPUBusy >= 0 {
		a.GPUBusy = &m.GPUBusy
	}
	for _, w := range m.Workloads {
		sc.workloads, sc.templates = append(sc.workloads, w), append(sc.templates, w.Template)
	}
	a.Notes = append(a.Notes, sc.keepPlaceable()...)
	if len(sc.workloads) == 0 {
		return a, fmt.Errorf("no pod of %s to %s can be replayed on the NodePools of Karve: %s", m.From.Format(time.DateTime), m.To.Format(time.DateTime), strings.Join(a.Notes, "; "))
	}
	for i := range sc.workloads {
		a.Pods += sc.workloads[i].Pods
		a.MeanPods += sc.workloads[i].hours() / sc.end.Hours()
	}
	a.Workloads = len(sc.workloads)
	before, err := sc.replayed()
	if err != nil {
		return a, err
	}
	a.Replayed, a.After = before, before
	changes, notes := sc.changes()
	a.Notes = append(a.Notes, notes...)
	if namespace != "" {
		changes = slices.DeleteFunc(changes, func(c change) bool { return c.Namespace != namespace })
	}
	s := newSearch(sc, changes)
	a.Bought = sc.bought(s.base)
	steps := s.steps()
	if namespace == "" {
		for _, c := range sc.expiries(m.Expired) {
			steps = append(steps, []change{c})
		}
	}
	for _, chosen := range steps {
		after, err := sc.changed(slices.Concat(s.taken, chosen)).replayed()
		if err != nil {
			return a, err
		}
		if saves := a.After - after; saves > 0 && float64(saves) >= minSaving*float64(before) {
			step := Step{Saves: saves}
			for _, c := range chosen {
				step.Changes = append(step.Changes, c.Change)
			}
			a.Steps, a.After, s.taken = append(a.Steps, step), after, append(s.taken, chosen...)
		}
	}
	return a, nil
}

// keepPlaceable removes the workloads that no NodePool can hold, and says why.
func (sc *scenario) keepPlaceable() (notes []string) {
	_, why := sc.trace()
	var workloads []Workload
	var templates []corev1.Pod
	for i, reason := range why {
		if reason == "" {
			workloads, templates = append(workloads, sc.workloads[i]), append(templates, sc.templates[i])
			continue
		}
		notes = append(notes, fmt.Sprintf("%s is left out: %s", &sc.workloads[i], reason))
	}
	sc.workloads, sc.templates = workloads, templates
	return notes
}

func (sc *scenario) changes() (all []change, notes []string) {
	byMoney := make([]int, len(sc.workloads))
	for i := range byMoney {
		byMoney[i] = i
	}
	slices.SortStableFunc(byMoney, func(a, b int) int { return cmp.Compare(sc.workloads[b].hours(), sc.workloads[a].hours()) })
	requests := func(name corev1.ResourceName) func(int) (change, bool) {
		return func(i int) (change, bool) { return sc.lowerRequests(i, name) }
	}
	for _, of := range []func(int) (change, bool){requests(corev1.ResourceCPU), requests(corev1.ResourceMemory), sc.lowerDeviceMemory} {
		var found []change
		for _, i := range byMoney {
			if c, ok := of(i); ok {
				found = append(found, c)
			}
		}
		if n := len(found); n > maxSingleChanges+1 {
			rest := grouped(found[maxSingleChanges:])
			rest.Object = words.Count(n-maxSingleChanges, "smaller workload")
			found = append(found[:maxSingleChanges:maxSingleChanges], rest)
		}
		all = append(all, found...)
	}
	t, _ := sc.trace()
	sites, replicas := sc.sites(&t.Snapshot), map[string]int64{}
	for _, x := range sites {
		c, note, ok := sc.moreReplicas(&x)
		if ok {
			all, replicas[x.class.Name] = append(all, c), c.maxReplicas
		} else if note != "" {
			notes = append(notes, note)
		}
		for _, i := range x.members {
			if c, ok := sc.requestFewer(&x, i); ok {
				all = append(all, c)
			}
		}
	}
	for j := range sc.cluster.NodePools {
		if c, ok := sc.moreTypes(&t.Snapshot, j); ok {
			all = append(all, c)
		}
	}
	gpus := sc.gpus(&t.Snapshot)
	all = append(append(all, sc.shares(sites, gpus, replicas)...), sc.merges(sites, gpus, replicas)...)
	for i := range sc.cluster.GPUNodeClasses {
		class := &sc.cluster.GPUNodeClasses[i]
		c, note, ok := sc.lessHeadroom(class)
		if ok {
			all = append(all, c)
		} else if note != "" {
			notes = append(notes, note)
		}
	}
	return all, notes
}

func (sc *scenario) bought(base planner.MicroUSD) (all []Bought) {
	for _, r := range []struct {
		name corev1.ResourceName
		unit float64
		of   func(Container) Use
	}{{corev1.ResourceCPU, 1000, func(c Container) Use { return c.CPU }}, {corev1.ResourceMemory, 1, func(c Container) Use { return c.Memory }}} {
		without := sc.changed([]change{{apply: func(sc *scenario) {
			for i := range sc.templates {
				pod := sc.template(i)
				for j := range pod.Spec.Containers {
					c := &pod.Spec.Containers[j].Resources
					delete(c.Requests, r.name)
					delete(c.Limits, r.name)
				}
			}
		}}}).planned()
		var used, requested float64
		for i := range sc.workloads {
			w := &sc.workloads[i]
			for _, c := range sc.templates[i].Spec.Containers {
				if u := r.of(w.Containers[c.Name]); u.Samples > 0 {
					now := float64(requestOf(&c, r.name)) / r.unit
					used, requested = used+u.Mean*w.hours(), requested+now*w.hours()
				}
			}
		}
		if base > 0 && requested > 0 {
			all = append(all, Bought{string(r.name), float64(base-without) / float64(base), used / requested})
		}
	}
	return all
}
