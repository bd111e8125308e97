package gather

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// server is an API server for NodeClaims that delivers watch events to the informer one at a time.
type server struct {
	client.Client
	b       testbed
	version int
	events  []func()
	// fault is what happens to the next write: it is lost before it is carried out ("before"), or its answer is lost ("after").
	fault string
}

var errLost = errors.New("lost")

func (s *server) claim(name string) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	if s.b.live.Get(context.Background(), client.ObjectKey{Name: name}, claim) != nil {
		return nil
	}
	return claim
}

func (s *server) store(claim *karpv1.NodeClaim) {
	s.version++
	claim.ResourceVersion = strconv.Itoa(s.version)
	stored := claim.DeepCopy()
	s.b.live.set(stored)
	s.events = append(s.events, func() { s.b.cached.set(stored) })
}

func (s *server) forget(claim *karpv1.NodeClaim) {
	s.version++
	s.b.live.remove(claim)
	s.events = append(s.events, func() { s.b.cached.remove(claim) })
}

// carry carries out a write as fault says.
func (s *server) carry(write func() error) error {
	switch s.fault {
	case "before":
		return errLost
	case "after":
		_ = write()
		return errLost
	}
	return write()
}

func (s *server) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	given := o.(*karpv1.NodeClaim)
	claim := given.DeepCopy()
	err := s.carry(func() error {
		if s.claim(claim.Name) != nil {
			return apierrors.NewAlreadyExists(schema.GroupResource{}, claim.Name)
		}
		claim.UID = types.UID(fmt.Sprint("uid-", s.version))
		s.store(claim)
		return nil
	})
	if err == nil {
		*given = *claim
	}
	return err
}

func (s *server) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	given := o.(*karpv1.NodeClaim)
	claim := given.DeepCopy()
	err := s.carry(func() error {
		if now := s.claim(claim.Name); now == nil || now.UID != claim.UID {
			return apierrors.NewNotFound(schema.GroupResource{}, claim.Name)
		}
		s.store(claim)
		return nil
	})
	if err == nil {
		*given = *claim
	}
	return err
}

func (s *server) Delete(_ context.Context, o client.Object, _ ...client.DeleteOption) error {
	return s.carry(func() error {
		claim := s.claim(o.GetName())
		if claim == nil || claim.UID != o.GetUID() {
			return apierrors.NewNotFound(schema.GroupResource{}, o.GetName())
		}
		if claim.DeletionTimestamp.IsZero() {
			claim.DeletionTimestamp = &metav1.Time{Time: s.b.clock.Now()}
			s.store(claim)
		}
		return nil
	})
}

// TestClusterShowsEveryWrittenNodeClaim checks that a look shows each NodeClaim at least as new as this process wrote it, and none as it was before this
// process deleted it, however late the informer is.
func TestClusterShowsEveryWrittenNodeClaim(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		b := newTestbed()
		s := &server{b: b}
		pool := snapshottest.Pool("gpu-shared", "gpu-shared")
		claim := func(name string) *karpv1.NodeClaim {
			c := snapshottest.Claim(name, &pool, snapshottest.TypeNamed("g4dn.xlarge"))
			c.UID = ""
			return &c
		}
		if rapid.Bool().Draw(rt, "former leader") {
			former := claim("n0")
			former.UID = "former"
			s.store(former)
		}
		b.follow(t)
		written, deleted := map[string]int{}, map[string]types.UID{}
		if s.version > 0 {
			written["n0"] = s.version
		}
		c := b.Writing(s)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			name := fmt.Sprint("n", rapid.IntRange(0, 2).Draw(rt, "name"))
			s.fault = rapid.SampledFrom([]string{"", "", "before", "after"}).Draw(rt, "fault")
			before, now := s.version, s.claim(name)
			switch rapid.SampledFrom([]string{"create", "create", "patch", "delete", "karpenter", "ends", "event", "event", "event", "moment", "time"}).Draw(rt, "step") {
			case "create":
				_ = c.Create(t.Context(), claim(name))
			case "patch":
				if now != nil {
					_ = c.Patch(t.Context(), now, nil)
				}
			case "delete":
				if now != nil && c.Delete(t.Context(), now) == nil {
					deleted[name] = now.UID
				}
			case "karpenter": // Karpenter writes the status, which the look may show late.
				if now != nil {
					s.store(now)
				}
				before = s.version
			case "ends":
				if now != nil {
					s.forget(now)
				}
				before = s.version
			case "event":
				if len(s.events) > 0 {
					s.events[0]()
					s.events = s.events[1:]
				}
			case "moment": // The answer to a write does not stand for a read any more.
				b.clock.Step(reuseTime)
			case "time": // For up to a minute, the result of a failed write may be unknown. After that, the events have arrived.
				for _, event := range s.events {
					event()
				}
				s.events = nil
				b.clock.Step(doubtTime)
			}
			if s.version > before {
				written[name] = s.version
			}
			look := b.look(t).Indexed()
			for name, version := range written {
				shown, live := look.NodeClaim(name), s.claim(name)
				switch {
				case live == nil:
					delete(written, name) // The NodeClaim is gone, but a look may still show it.
				case shown == nil:
					rt.Fatalf("NodeClaim %s is not shown", name)
				default:
					if v, err := strconv.Atoi(shown.ResourceVersion); err != nil || v < version {
						rt.Fatalf("NodeClaim %s is shown as of %s, and was written as of %d", name, shown.ResourceVersion, version)
					}
				}
			}
			for i := 0; i < 3 && len(s.events) == 0; i++ { // The informer is up to date, so the look is.
				if name := fmt.Sprint("n", i); (s.claim(name) == nil) != (look.NodeClaim(name) == nil) {
					rt.Fatalf("NodeClaim %s is shown: %t", name, look.NodeClaim(name) != nil)
				}
			}
			for name, uid := range deleted {
				if shown := look.NodeClaim(name); shown != nil && shown.UID == uid && shown.DeletionTimestamp.IsZero() {
					rt.Fatalf("NodeClaim %s is shown as if it were not deleted", name)
				}
			}
		}
		for _, event := range s.events {
			event()
		}
		b.clock.Step(doubtTime)
		b.look(t)
		if left := len(b.written.named); left > 0 {
			rt.Errorf("%d writes are remembered although the informer shows all", left)
		}
		look := b.look(t).Indexed()
		for _, name := range []string{"n0", "n1", "n2"} {
			if live := s.claim(name); (live == nil) != (look.NodeClaim(name) == nil) {
				rt.Errorf("NodeClaim %s is shown: %t", name, look.NodeClaim(name) != nil)
			}
		}
	})
}

// A NodeClaim is created, deleted and gone, then a second one with its name, and the informer shows the first as it was created.
func TestClusterDoesNotShowEarlierNodeClaim(t *testing.T) {
	t.Parallel()
	for name, delete := range map[string]bool{"second deleted by Karve": true, "second deleted by others": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed()
			s := &server{b: b}
			c := b.Writing(s)
			b.follow(t)
			pool := snapshottest.Pool("gpu-shared", "gpu-shared")
			for range 2 {
				claim := snapshottest.Claim("a", &pool, snapshottest.TypeNamed("g4dn.xlarge"))
				if err := c.Create(t.Context(), &claim); err != nil {
					t.Fatal(err)
				}
				if first := len(s.events) == 1; first || delete {
					if err := c.Delete(t.Context(), &claim); err != nil {
						t.Fatal(err)
					}
				}
				s.forget(s.claim("a"))
			}
			b.clock.Step(reuseTime)
			for i, event := range s.events {
				for range 2 { // The second look knows that the NodeClaim is gone.
					if shown := b.look(t).Indexed().NodeClaim("a"); shown != nil && shown.DeletionTimestamp.IsZero() {
						t.Errorf("NodeClaim a of version %s is shown after %d events", shown.ResourceVersion, i)
					}
				}
				event()
			}
		})
	}
}

// The API server answers none of the reads before all of them have come.
func TestClusterReadsWrittenNodeClaimsAtOnce(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	b.look(t)
	pool := snapshottest.Pool("gpu-shared", "gpu-shared")
	var all sync.WaitGroup
	for i := range claimsInParallel {
		claim := snapshottest.Claim(fmt.Sprint("n", i), &pool, snapshottest.TypeNamed("g4dn.xlarge"))
		b.live.set(&claim)
		b.written.begin(claim.Name)
		b.written.end(claim.Name, write{uid: claim.UID, version: "1"}, nil, b.clock.Now())
		all.Add(1)
	}
	b.live.getting = func() { all.Done(); all.Wait() }
	look := b.look(t).Indexed()
	for i := range claimsInParallel {
		if look.NodeClaim(fmt.Sprint("n", i)) == nil {
			t.Errorf("NodeClaim n%d is missed", i)
		}
	}
}

// The answer to a write is as good as a read for a moment. After that, others may have changed the NodeClaim.
func TestClusterTakesAnswerToWriteForRead(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	c := b.Writing(&server{b: b})
	b.follow(t)
	b.look(t)
	pool := snapshottest.Pool("gpu-shared", "gpu-shared")
	claim := snapshottest.Claim("a", &pool, snapshottest.TypeNamed("g4dn.xlarge"))
	if err := c.Create(t.Context(), &claim); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{0, 1} {
		b.live.counts()
		if shown := b.look(t).Indexed().NodeClaim("a"); shown == nil || shown.ResourceVersion != claim.ResourceVersion {
			t.Errorf("the NodeClaim that was created is shown as %v", shown)
		}
		if got := b.live.counts()["get NodeClaim"]; got != want {
			t.Errorf("asked %d times, want %d", got, want)
		}
		b.clock.Step(reuseTime)
	}
}

// The informer is locked while it says what it has seen, and a look reads what the informer has.
func TestLookAndInformerDoNotBlockEachOther(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	pool := snapshottest.Pool("gpu-shared", "gpu-shared")
	claim := snapshottest.Claim("a", &pool, snapshottest.TypeNamed("g4dn.xlarge"))
	b.live.set(&claim)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 5000 {
			b.cached.set(&claim)
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
			b.written.editWrite("a", func(is *write) { *is = write{uid: claim.UID, version: "later"} })
			b.written.unseen(b.followed.nodeClaims.stored, b.clock.Now())
		}
	}
}

// While a write has no answer yet, a look asks the API server.
func TestClusterAsksAPIServerDuringWrite(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	b.look(t)
	b.live.counts()
	b.written.begin("a")
	b.look(t)
	if got := b.live.counts()["get NodeClaim"]; got != 1 {
		t.Errorf("asked %d times", got)
	}
	b.written.end("a", write{uid: "uid", version: "1"}, nil, b.clock.Now())
	b.cached.set(&karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid", ResourceVersion: "1"}})
	b.look(t)
	if got := b.live.counts()["get NodeClaim"]; got != 0 {
		t.Errorf("asked %d times although the informer shows the write", got)
	}
	b.clock.Step(time.Hour)
}

// In a burst, the informer may lack dozens of NodeClaims.
func TestManyUnseenNodeClaimsAreReadWithOneList(t *testing.T) {
	t.Parallel()
	b := newTestbed()
	b.follow(t)
	c, pool := b.Writing(&server{b: b}), snapshottest.Pool("gpu-shared", "gpu-shared")
	b.look(t)
	for i := range 20 {
		claim := snapshottest.Claim(fmt.Sprint("n", i), &pool, snapshottest.TypeNamed("g4dn.xlarge"))
		claim.UID = ""
		if err := c.Create(t.Context(), &claim); err != nil {
			t.Fatal(err)
		}
	}
	b.clock.Step(reuseTime)
	b.written.begin("not yet")
	b.live.counts()
	look := b.look(t).Indexed()
	for i := range 20 {
		if look.NodeClaim(fmt.Sprint("n", i)) == nil {
			t.Errorf("NodeClaim n%d is not shown", i)
		}
	}
	if reads := b.live.counts(); reads["NodeClaimList"] != 1 || reads["get NodeClaim"] != 1 {
		t.Errorf("%d lists, and %d reads of the one that does not exist yet", reads["NodeClaimList"], reads["get NodeClaim"])
	}
}
