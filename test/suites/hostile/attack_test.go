package hostile_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/hostile"
)

// What the bad objects of a tenant may cost all others in a round: the decisions of the controller, and answers of kubectl karve.
const (
	maxTime = time.Second
	// maxAnswer is how long a tenant may wait for an answer about an own pod.
	maxAnswer = 15 * time.Second
	maxHeap   = 64 << 20
	// trimming is how much longer than decoding it may take to trim objects, which happens once after each of their changes.
	trimming = 5
	// maxBytes is how large the objects of an attack are together.
	maxBytes = 100 << 20
	// maxElements is how many elements of lists in lists the API server is asked about. More do not fit into an object.
	maxElements = 50_000
)

// attack is what a tenant does: it creates objects, one of which is bad, several times.
type attack struct {
	seed    uint64
	objects []client.Object
	bad     int
	edits   []edit
	// most is how many elements each list and map of the bad object has at most.
	most, copies int

	// made has the created objects, by most.
	made map[int]made
}

// made has the encoded objects of a tenant, and the objects without what is in them.
type made struct {
	encoded  [][]byte
	outlines []client.Object
}

// edit makes an object bad.
type edit interface {
	On(o client.Object, salt, most int)
	Elements(most int) int
	String() string
}

func (a *attack) String() string {
	edits := make([]string, len(a.edits))
	for i, e := range a.edits {
		edits[i] = e.String()
	}
	return fmt.Sprintf("seed %d: %d times %T with at most %d elements in\n  %s", a.seed, a.copies, a.objects[a.bad], a.most, strings.Join(edits, "\n  "))
}

// draw returns an attack of which the API server accepts each object, and how many it rejected before.
func draw(v *hostile.Validator, seed uint64) (a *attack, rejected int) {
	for ; ; rejected++ {
		g := hostile.New("t", seed<<16+uint64(rejected)) //nolint:gosec // It is not negative.
		a := &attack{seed: seed, objects: g.Tenant()}
		a.bad = g.Below(len(a.objects))
		for _, e := range g.Edits(a.objects[a.bad]) {
			a.edits = append(a.edits, e)
		}
		a.copies = g.Copies()
		if a.grow(v) {
			return a, rejected
		}
	}
}

// grow sets the largest number of elements that the API server accepts. It reports false if that is none. It tries few elements first: errors for each of
// thousands take long.
func (a *attack) grow(v *hostile.Validator) bool {
	for _, most := range []int{3, math.MaxInt, 1000, 300, 128, 64, 32, 16, 8, 4} {
		elements := 1
		for _, e := range a.edits {
			elements = min(elements*e.Elements(most), 1<<20)
		}
		if elements > maxElements {
			continue
		}
		_, err := a.create(v, 0, most)
		if most == 3 && err != nil {
			return false
		}
		if a.most = most; most > 3 && err == nil {
			return true
		}
	}
	return false
}

// written returns the i-th copy of the objects as the tenant writes them. Lists and maps of the bad object grow to most elements, and it is the original one if
// most is 0.
func (a *attack) written(i, most int) []client.Object {
	objects := hostile.Copy(i, a.objects)
	for _, e := range a.edits {
		if most > 0 {
			e.On(objects[a.bad], i, most)
		}
	}
	return objects
}

// create returns what the API server stores of the written objects.
func (a *attack) create(v *hostile.Validator, i, most int) ([]client.Object, error) {
	created := a.written(i, most)
	for j, o := range created {
		stored, err := v.Create(o)
		if err != nil {
			return nil, err
		}
		created[j] = stored
	}
	return created, nil
}

// created creates all copies, with the bad objects or, if most is 0, with the original ones.
func (a *attack) created(v *hostile.Validator, most int) (m made, err error) {
	if m, ok := a.made[most]; ok {
		return m, nil
	}
	size, names := 0, map[string]bool{}
	for i := 0; i < a.copies && size < maxBytes; i++ {
		created, err := a.create(v, i, most)
		if err != nil {
			continue // This copy would be too large.
		}
		for _, o := range created {
			key := fmt.Sprintf("%T %s", o, o.GetName())
			if names[key] {
				continue // It exists.
			}
			encoded, err := hostile.Encode(o)
			if err != nil {
				return m, err
			}
			names[key], size = true, size+len(encoded)
			m.encoded, m.outlines = append(m.encoded, encoded), append(m.outlines, outline(o))
		}
	}
	if a.made == nil {
		a.made = map[int]made{}
	}
	a.made[most] = m
	return m, nil
}

// outline returns of a pod only what compare reads, and of other objects the name.
func outline(o client.Object) client.Object {
	if pod, ok := o.(*corev1.Pod); ok {
		of := &corev1.Pod{Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName}, Status: corev1.PodStatus{NominatedNodeName: pod.Status.NominatedNodeName}}
		of.Namespace, of.Name = pod.Namespace, pod.Name
		return of
	}
	return o
}

// harm returns how an attack harms others, or nil.
func (a *attack) harm(ctx context.Context, v *hostile.Validator) error {
	var err error
	for range 3 { // The garbage collector may run at bad times.
		var retry bool
		if err, retry = a.harmOnce(ctx, v); err == nil || !retry {
			return err
		}
	}
	return err
}

func (a *attack) harmOnce(ctx context.Context, v *hostile.Validator) (harm error, retry bool) {
	var places [2]map[string]place
	var costs [2]cost
	var m made
	for i, most := range []int{0, a.most} {
		var err error
		if m, err = a.created(v, most); err != nil {
			return err, false
		}
		own := client.ObjectKey{}
		for _, o := range m.outlines {
			if _, ok := o.(*corev1.Pod); ok {
				own = client.ObjectKeyFromObject(o)
			}
		}
		if places[i], costs[i], err = observe(ctx, m.encoded, own); err != nil {
			return err, false
		}
	}
	was, is := costs[0], costs[1]
	if is.round > was.round+maxTime || is.answer > maxAnswer || is.trim > maxTime+trimming*is.decode || is.kept > was.kept+maxHeap || is.peak > was.peak+maxHeap {
		return fmt.Errorf("a round takes %s, and %s without the bad value", is, was), true
	}
	if worse, _ := compare(places[0], places[1], m.outlines); len(worse) > 0 && !a.ruling() {
		return fmt.Errorf("others have worse places: %s", strings.Join(worse, ", ")), false
	}
	return nil, false
}

// ruling is rules for the bad object. A DaemonSet of a tenant takes room on the machines of all others.
func (a *attack) ruling() bool {
	_, daemons := a.objects[a.bad].(*appsv1.DaemonSet)
	return daemons || rules(a.objects[a.bad])
}

// smallest returns the attack with fewer copies and edits if that does the same harm, and the harm. It looks until a time.
func (a *attack) smallest(ctx context.Context, v *hostile.Validator, harm error, until time.Time) (*attack, error) {
	var less []*attack
	for i := range a.edits {
		if len(a.edits) > 1 {
			less = append(less, &attack{a.seed, a.objects, a.bad, slices.Concat(a.edits[:i], a.edits[i+1:]), a.most, a.copies, nil})
		}
	}
	for _, copies := range []int{1, 8, 40} {
		if copies < a.copies {
			less = append(less, &attack{a.seed, a.objects, a.bad, a.edits, a.most, copies, nil})
		}
	}
	for _, b := range less {
		if time.Now().After(until) {
			break
		}
		if err := b.harm(ctx, v); err != nil {
			return b.smallest(ctx, v, err, until)
		}
	}
	return a, harm
}
