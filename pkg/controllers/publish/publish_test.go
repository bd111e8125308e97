package publish

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// world is an API server, and a cluster whose only instance type has a price.
type world struct {
	client.Client
	clock      *clocktesting.FakeClock
	price      int64
	generation uint64
	err        error
	version    string
	settings   published.Settings
	// vcpus is the quota of the account, and asked how often it was read.
	vcpus, asked int64
	quotaErr     error
	// reserved are the reservations, and launched when NodeClaims for slots of them were launched.
	reserved []catalog.Reservation
	launched []time.Time
}

func newWorld() *world {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	return &world{Client: fake.NewClientBuilder().WithScheme(scheme.Scheme).Build(), clock: clocktesting.NewFakeClock(start), price: 526_000, generation: 1, version: "v1"}
}

func (w *world) cluster(context.Context) (*facts.Cluster, error) {
	var types []catalog.InstanceType
	if w.price > 0 {
		types = []catalog.InstanceType{{Name: "g4dn.xlarge", Offerings: []catalog.Offering{{Zone: "eu-west-1a", CapacityType: "spot", MicroUSDPerHour: w.price}}}}
	}
	ref := v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}
	c := &facts.Cluster{Generation: w.generation, NodeClasses: map[v1alpha1.NodeClassReference]facts.NodeClassState{ref: {InstanceTypes: types, Reservations: w.reserved}}}
	if len(w.launched) > 0 {
		shared, kind := snapshottest.Shared(), snapshottest.TypeNamed("g4dn.xlarge")
		c.NodePools, c.GPUNodeClasses = shared.NodePools, shared.GPUNodeClasses
		for i, at := range w.launched {
			c.NodeClaims = append(c.NodeClaims, snapshottest.Claim(fmt.Sprint("slot-", i), &c.NodePools[0], kind, snapshottest.Reserved("cr-1"), snapshottest.Launched(at)))
		}
	}
	return c, w.err
}

// publisher returns a publisher, as of a leader that has just started.
func (w *world) publisher() *Publisher {
	return New(Config{Client: w, Live: w, Cluster: w.cluster, Clock: w.clock, Namespace: "karve-system", Version: w.version, Settings: w.settings, Quotas: w.quotas})
}

func (w *world) quotas(context.Context) ([]catalog.Quota, error) {
	w.asked++
	return []catalog.Quota{{Group: "G and VT", CapacityType: "spot", Code: "L-3819A6DF", VCPUs: w.vcpus}}, w.quotaErr
}

// published returns the price and the time in the ConfigMap, and 0 if there is none.
func (w *world) published(t *testing.T) (int64, time.Time) {
	t.Helper()
	var m corev1.ConfigMap
	if err := w.Get(t.Context(), client.ObjectKey{Namespace: "karve-system", Name: published.Name}, &m); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	} else if err != nil {
		return 0, time.Time{}
	}
	c, at, err := published.Read(&m)
	if err != nil {
		t.Fatal(err)
	}
	for _, listing := range c {
		return listing.InstanceTypes[0].Offerings[0].MicroUSDPerHour, at
	}
	return 0, at
}

func TestTheCatalogIsWrittenWhenItHasChangedAndNotTooOften(t *testing.T) {
	t.Parallel()
	w := newWorld()
	start := w.clock.Now()
	p := w.publisher()
	for _, step := range []struct {
		name  string
		after time.Duration
		do    func()
		price int64
		at    time.Duration
	}{
		{"nothing is known yet", 0, func() { w.price = 0 }, 0, 0},
		{"the first prices", time.Minute, func() { w.price = 500_000; w.generation++ }, 500_000, time.Minute},
		{"a price changes soon after", 2 * time.Minute, func() { w.price = 510_000; w.generation++ }, 500_000, time.Minute},
		{"five minutes after the first", 6 * time.Minute, func() {}, 510_000, 6 * time.Minute},
		{"nothing changes", 60 * time.Minute, func() { w.generation++ }, 510_000, 6 * time.Minute},
		{"another leader with the same prices", 70 * time.Minute, func() { p = w.publisher() }, 510_000, 6 * time.Minute},
		{"an upgraded controller with the same prices", 75 * time.Minute, func() { w.version = "v2"; p = w.publisher() }, 510_000, 75 * time.Minute},
		{"a controller with another setting and the same prices", 85 * time.Minute, func() { w.settings.SettleDuration.Duration = time.Minute; p = w.publisher() }, 510_000, 85 * time.Minute},
		{"AWS does not answer", 90 * time.Minute, func() { w.price = 0; w.generation++ }, 510_000, 85 * time.Minute},
		{"a price changes an hour later", 140 * time.Minute, func() { w.price = 520_000; w.generation++ }, 520_000, 140 * time.Minute},
	} {
		w.clock.SetTime(start.Add(step.after))
		step.do()
		if err := p.Publish(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		price, at := w.published(t)
		if price != step.price || price > 0 && !at.Equal(start.Add(step.at)) {
			t.Errorf("%s: the price is %d of %v, want %d of %v", step.name, price, at.Sub(start), step.price, step.at)
		}
	}
}

// TestACountOfSlotsIsPublishedAgainOnlyIfReadersSeeADifference counts the slots of a reservation each five minutes.
func TestACountOfSlotsIsPublishedAgainOnlyIfReadersSeeADifference(t *testing.T) {
	t.Parallel()
	w := newWorld()
	start, p := w.clock.Now(), w.publisher()
	slots := func(free int64) func() {
		return func() {
			w.reserved = []catalog.Reservation{{ID: "cr-1", InstanceType: "g4dn.xlarge", Zone: "us-east-1a", Free: free, Total: 5, Read: w.clock.Now()}}
		}
	}
	for _, step := range []struct {
		name  string
		after time.Duration
		do    func()
		// read is when the published slots were counted, and free how many were free.
		read time.Duration
		free int64
	}{
		{"the first count", 0, slots(3), 0, 3},
		{"nothing changes", 10 * time.Minute, slots(3), 0, 3},
		{"Karve launches a machine, of which readers know", 20 * time.Minute, func() { w.launched = append(w.launched, start.Add(19*time.Minute)); slots(2)() }, 0, 3},
		{"it still runs", 25 * time.Minute, slots(2), 0, 3},
		{"somebody else takes a slot", 30 * time.Minute, slots(1), 30 * time.Minute, 1},
		{"Karve launches one as another one of somebody else ends", 40 * time.Minute, func() { w.launched = append(w.launched, start.Add(39*time.Minute)); slots(1)() }, 40 * time.Minute, 1},
		{"nothing changes for an hour", 95 * time.Minute, slots(1), 40 * time.Minute, 1},
		{"the count would look old", 101 * time.Minute, slots(1), 101 * time.Minute, 1},
	} {
		w.clock.SetTime(start.Add(step.after))
		w.generation++
		step.do()
		if err := p.Publish(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var m corev1.ConfigMap
		if err := w.Get(t.Context(), client.ObjectKey{Namespace: "karve-system", Name: published.Name}, &m); err != nil {
			t.Fatal(err)
		}
		all, at, err := published.Read(&m)
		if err != nil {
			t.Fatal(err)
		}
		for _, listing := range all {
			if r := listing.Reservations[0]; r.Free != step.free || !r.Read.Equal(start.Add(step.read)) || !at.Equal(r.Read) {
				t.Errorf("%s: %d were free at %s, written at %s, want %d at %s", step.name, r.Free, r.Read.Sub(start), at.Sub(start), step.free, step.read)
			}
		}
	}
}

func TestQuotasAreReadFromTimeToTime(t *testing.T) {
	t.Parallel()
	w := newWorld()
	start, p := w.clock.Now(), w.publisher()
	for _, step := range []struct {
		name         string
		after        time.Duration
		do           func()
		asked, vcpus int64
		problem      string
	}{
		{"first", 0, func() { w.vcpus = 64 }, 1, 64, ""},
		{"half an hour later", 30 * time.Minute, func() { w.vcpus = 128 }, 1, 64, ""},
		{"an hour later, and nothing else has changed", time.Hour, func() {}, 2, 128, ""},
		{"it is denied", 2 * time.Hour, func() { w.quotaErr = errors.New("denied") }, 3, 0, "denied"},
		{"five minutes later", 125 * time.Minute, func() { w.quotaErr = nil }, 4, 128, ""},
	} {
		w.clock.SetTime(start.Add(step.after))
		step.do()
		if err := p.Publish(t.Context()); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		found, err := published.Find(t.Context(), w, "karve-system")
		if err != nil {
			t.Fatal(err)
		}
		vcpus := int64(0)
		for _, q := range found.Quotas.Quotas {
			vcpus += q.VCPUs
		}
		if w.asked != step.asked || vcpus != step.vcpus || found.Quotas.Problem != step.problem || found.Missing != "" {
			t.Errorf("%s: asked %d times, %d vCPUs, %q, %s", step.name, w.asked, vcpus, found.Quotas.Problem, found.Missing)
		}
	}
}

func TestWhatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	p := w.publisher()
	w.err = errors.New("no cluster")
	if err := p.Publish(t.Context()); err == nil {
		t.Error("there is no error")
	}
	w.err = nil
	if err := p.Publish(t.Context()); err != nil {
		t.Error(err)
	}
	if price, _ := w.published(t); price != w.price {
		t.Errorf("the price is %d", price)
	}
}

func TestAConfigMapThatSomebodyChangedIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld()
	m := published.ConfigMap("karve-system", []byte("nonsense"), published.Quotas{}, "v1", published.DefaultSettings(), w.clock.Now())
	m.Labels = map[string]string{"kept": "yes"}
	if err := w.Create(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := w.publisher().Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if price, _ := w.published(t); price != w.price {
		t.Errorf("the price is %d", price)
	}
}
