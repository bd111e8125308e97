package rollout

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// kind is the behavior of a machine image. A rollout learns it only by testing the image.
type kind int

const (
	fine kind = iota
	neverJoins
	neverExposes
	failsItsCheck
	// ails means that the canary is healthy at first, and fails half a soak time later.
	ails
	// failsLater means that the canary is healthy, but nodes launched after the promotion never expose their replicas.
	failsLater
	kinds
)

// start is Monday, 2 March 2026, at noon, within the window of most tests.
var start = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

const (
	soak     = time.Hour
	trial    = 10 * time.Minute
	joinTime = 2 * time.Minute
	// drainTime is how long a deleted machine still exists.
	drainTime = 40 * time.Second
)

// simulation is a fake cluster that carries out the rollout's decisions, with the faults that a test sets.
type simulation struct {
	now     time.Time
	rollout *v1alpha1.GPUImageRollout

	kinds    map[string]kind
	newest   *v1alpha1.GPUImage
	released map[string]*v1alpha1.GPUImage

	// The EC2NodeClass: whether it is gone, the rollout that has adopted it, and its pinned images.
	gone bool
	mark string
	pin  []string

	// vanished are the IDs of images that AWS no longer has.
	vanished map[string]bool

	architectures []string
	noAWS         bool
	noPlace       bool
	poolUnwell    string
	refuses       bool // launches fail
	stuck         bool // launches hang

	shadow, claim, pod *canaryObject
	// going is until when a deleted machine still exists.
	going time.Time
	// twice is true if there were two canary machines at once.
	twice bool
	// nodes are the images of the production nodes.
	nodes []string

	events []Event
}

type canaryObject struct {
	name, image string
	since       time.Time
	launched    time.Time
}

func newSimulation(current *v1alpha1.GPUImage) *simulation {
	w := &simulation{
		now: start, kinds: map[string]kind{}, newest: current, released: map[string]*v1alpha1.GPUImage{}, vanished: map[string]bool{},
		pin: current.IDs(), architectures: []string{"amd64"},
		rollout: &v1alpha1.GPUImageRollout{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "uid", Generation: 1},
			Spec: v1alpha1.GPUImageRolloutSpec{
				NodeClassRef: v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
				Image:        v1alpha1.ImageNewest, Promotion: v1alpha1.PromotionAutomatic, Soak: "1h", CanaryTimeout: "10m",
				Windows: []v1alpha1.PromotionWindow{{Schedule: "0 9 * * 1-4", Duration: "6h"}},
			},
		},
	}
	w.released[current.Release] = current
	return w
}

// release returns release n with an image for each architecture.
func release(n int, architectures ...string) *v1alpha1.GPUImage {
	image := &v1alpha1.GPUImage{Release: fmt.Sprintf("v%d", n), Created: &metav1.Time{Time: start.Add(time.Duration(n) * time.Hour)}}
	for _, a := range architectures {
		image.Images = append(image.Images, v1alpha1.ArchitectureImage{Architecture: a, ID: fmt.Sprintf("ami-%d%s", n, a)})
	}
	return image
}

func (w *simulation) publish(image *v1alpha1.GPUImage, is kind) {
	w.newest = image
	w.released[image.Release] = image
	for _, id := range image.IDs() {
		w.kinds[id] = is
	}
}

// vanish makes AWS lose the images of a release.
func (w *simulation) vanish(image *v1alpha1.GPUImage) {
	for _, id := range image.IDs() {
		w.vanished[id] = true
	}
}

func (w *simulation) exists(image *v1alpha1.GPUImage) bool {
	return !slices.ContainsFunc(image.IDs(), func(id string) bool { return w.vanished[id] })
}

func (w *simulation) edit(change func(*v1alpha1.GPUImageRolloutSpec)) {
	change(&w.rollout.Spec)
	w.rollout.Generation++
}

// step observes and acts once. A crash happens after the status was written and before the actions.
func (w *simulation) step(crash bool) Result {
	seen := w.see()
	result := Next(w.rollout, &seen)
	w.rollout.Status = result.Status
	w.events = append(w.events, result.Events...)
	if !crash {
		w.act(&result)
	}
	return result
}

// run steps for a time, as often as the decisions request and at least once a minute.
func (w *simulation) run(d time.Duration) {
	for until := w.now.Add(d); ; {
		result := w.step(false)
		w.now = w.now.Add(min(max(result.Again, time.Second), time.Minute))
		if w.now.After(until) {
			return
		}
	}
}

func (w *simulation) act(result *Result) {
	canary := result.Status.Canary
	for _, o := range []**canaryObject{&w.shadow, &w.claim, &w.pod} {
		if *o != nil && (canary == nil || (*o).name != canary.Name) {
			if *o == w.claim {
				w.going = w.now.Add(drainTime)
			}
			*o = nil
		}
	}
	if result.Pin {
		w.mark, w.pin = w.rollout.Name, result.Status.Current.IDs()
		return
	}
	if canary == nil {
		return
	}
	object := &canaryObject{name: canary.Name, image: canary.Image, since: w.now}
	switch {
	case canary.Requested == nil && w.shadow == nil:
		w.shadow = object
	case result.Launch && !w.refuses:
		w.claim, w.twice = object, w.twice || w.claim != nil || w.now.Before(w.going)
	case result.Check && w.pod == nil:
		w.pod = object
	}
}

// replace replaces one node by a node with the pinned image.
func (w *simulation) replace() {
	for i := range w.nodes {
		if !slices.Contains(w.pin, w.nodes[i]) {
			w.nodes[i] = w.pin[0]
			return
		}
	}
}

func (w *simulation) see() Seen {
	status := &w.rollout.Status
	s := Seen{Now: w.now, Architectures: w.architectures, Class: Class{Rollout: w.mark, Pin: w.pin}}
	for _, image := range w.nodes {
		s.Nodes.Total++
		if !slices.Contains(status.Current.IDs(), image) {
			continue
		}
		s.Nodes.Updated++
		if is := w.kinds[image]; is != fine && is != ails {
			s.Nodes.Awaiting++
			s.Nodes.Broken = append(s.Nodes.Broken, fmt.Sprint("node-", s.Nodes.Updated))
		} else {
			s.Nodes.Working++
		}
	}
	if w.gone {
		s.Blocked = &Blocked{Gone: true, Fault: Fault{"NodeClassNotFound", "gone"}}
		return s
	}
	for _, image := range w.released {
		if slices.Equal(image.IDs(), w.pin) {
			s.Class.Resolves = image
		}
	}
	switch {
	case w.noAWS:
		s.WantedFault = &Fault{"AWSThrottled", "too often"}
	case w.rollout.Spec.Image == v1alpha1.ImageNewest:
		s.Wanted = w.newest
	default:
		if s.Wanted = w.released[w.rollout.Spec.Image]; s.Wanted == nil {
			s.WantedFault = &Fault{"ImageNotFound", "no such release"}
		}
	}
	// Images that the status has come from there. All others come from AWS.
	if s.Wanted != nil && !w.exists(s.Wanted) && !s.Wanted.Same(status.Current) && !containsImage(status.Good, s.Wanted) {
		s.Wanted, s.WantedFault = nil, &Fault{"ImageNotFound", "AWS has no such image"}
	}
	if !w.noAWS {
		known := slices.Clone(status.Good)
		if status.Current != nil {
			known = append(known, *status.Current)
		}
		if status.Candidate != nil {
			known = append(known, status.Candidate.Image)
		}
		for i := range known {
			for _, id := range known[i].IDs() {
				if w.vanished[id] {
					s.Missing = append(s.Missing, id)
				}
			}
		}
	}
	if s.Class.Resolves != nil && !w.exists(s.Class.Resolves) {
		s.Class.Resolves, s.Class.ResolvesFault = nil, &Fault{"NodeClassNotReady", "AMISelector did not match any AMIs"}
	}
	if w.noPlace {
		s.NoPlace = map[string]Fault{"amd64": {"NoCanaryMachine", "limits"}, "arm64": {"NoCanaryMachine", "limits"}}
	}
	w.seeCanary(&s)
	return s
}

func (w *simulation) seeCanary(s *Seen) {
	canary := w.rollout.Status.Canary
	s.Leftovers = w.now.Before(w.going)
	for _, o := range []*canaryObject{w.shadow, w.claim, w.pod} {
		s.Leftovers = s.Leftovers || o != nil && (canary == nil || o.name != canary.Name)
	}
	if canary == nil {
		return
	}
	c := &s.Canary
	c.PoolUnwell, c.Resource, c.Promised = w.poolUnwell, "nvidia.com/gpu.shared", 10
	c.ClassReady = w.shadow != nil && w.shadow.name == canary.Name && !w.now.Before(w.shadow.since.Add(5*time.Second)) && !w.vanished[w.shadow.image]
	if w.claim == nil || w.claim.name != canary.Name {
		return
	}
	c.Claimed, c.Image = true, w.claim.image
	if w.stuck {
		c.LaunchError = "CreateError: no"
		return
	}
	if w.claim.launched.IsZero() {
		w.claim.launched = w.now
	}
	c.Launched = &w.claim.launched
	is := w.kinds[w.claim.image]
	if w.now.Before(w.claim.launched.Add(joinTime)) || is == neverJoins {
		return
	}
	c.Node = "node"
	if is != neverExposes {
		c.Exposed = 10
	}
	if is == ails && canary.Passed != nil && !w.now.Before(canary.Passed.Add(soak/2)) {
		c.Unwell = "its condition AcceleratedHardwareReady is False: XID 79"
	}
	if w.pod != nil && w.pod.name == canary.Name {
		switch c.Check = CheckRunning; {
		case is == failsItsCheck:
			c.Check, c.CheckMessage = CheckFailed, "exit status 1"
		case !w.now.Before(w.pod.since.Add(10 * time.Second)):
			c.Check = CheckPassed
		}
	}
}

// leftovers returns the names of all canary objects.
func (w *simulation) leftovers() []string {
	var names []string
	for _, o := range []*canaryObject{w.shadow, w.claim, w.pod} {
		if o != nil {
			names = append(names, o.name)
		}
	}
	return names
}
