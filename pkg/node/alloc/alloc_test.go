package alloc_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/alloc"
)

func ids(uuid string, numbers ...int) []string {
	var out []string
	for _, n := range numbers {
		out = append(out, alloc.ID(uuid, n))
	}
	return out
}

func TestPreferred(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		request alloc.Request
		want    []string
	}{
		"a request of size zero":                    {alloc.Request{Available: ids("a", 0)}, []string{}},
		"nothing available":                         {alloc.Request{Size: 2}, []string{}},
		"the GPU with most free replicas":           {alloc.Request{Available: slices.Concat(ids("a", 2, 3), ids("b", 1, 2, 3)), Size: 1}, ids("b", 1)},
		"packed, the GPU with fewest free replicas": {alloc.Request{Available: slices.Concat(ids("a", 2, 3), ids("b", 1, 2, 3)), Size: 1, Packed: true}, ids("a", 2)},
		"two replicas from two GPUs":                {alloc.Request{Available: slices.Concat(ids("a", 0, 1), ids("b", 0, 1)), Size: 2}, slices.Concat(ids("a", 0), ids("b", 0))},
		"packed, two replicas from one GPU":         {alloc.Request{Available: slices.Concat(ids("a", 0, 1), ids("b", 0, 1)), Size: 2, Packed: true}, ids("a", 0, 1)},
		"equal free replicas, then memory":          {alloc.Request{Available: slices.Concat(ids("a", 0), ids("b", 0)), Size: 1, Loads: map[string]alloc.Load{"a": {1, 0}, "b": {2, 9}}}, ids("b", 0)},
		"equal memory, then utilization":            {alloc.Request{Available: slices.Concat(ids("a", 0), ids("b", 0)), Size: 1, Loads: map[string]alloc.Load{"a": {2, 9}, "b": {2, 8}}}, ids("b", 0)},
		"equal load, then UUID":                     {alloc.Request{Available: slices.Concat(ids("b", 0), ids("a", 0)), Size: 1}, ids("a", 0)},
		"whole GPUs":                                {alloc.Request{Available: []string{"b", "a", "c"}, Size: 2}, []string{"a", "b"}},
		"included devices come first":               {alloc.Request{Available: slices.Concat(ids("a", 0, 1), ids("b", 0, 1)), MustInclude: ids("b", 1), Size: 2}, slices.Concat(ids("b", 1), ids("a", 0))},
		"included devices are never dropped":        {alloc.Request{Available: ids("a", 0, 1), MustInclude: ids("a", 0, 1), Size: 1}, ids("a", 0, 1)},
		"replica numbers sort numerically":          {alloc.Request{Available: ids("a", 10, 9), Size: 1}, ids("a", 9)},
		"included devices count as used":            {alloc.Request{Available: slices.Concat(ids("a", 0, 1), ids("b", 0)), MustInclude: ids("a", 0), Size: 2}, slices.Concat(ids("a", 0), ids("b", 0))},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, alloc.Preferred(c.request)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// holds checks that the answer to a request has no duplicates, contains everything required and only offered devices, has as many devices as possible, and does
// not depend on the order.
func holds(t interface {
	Helper()
	Fatalf(string, ...any)
}, r alloc.Request,
) {
	t.Helper()
	got := alloc.Preferred(r)
	known := map[string]bool{}
	for _, id := range slices.Concat(r.Available, r.MustInclude) {
		known[id] = true
	}
	settled := map[string]bool{}
	for _, id := range r.MustInclude {
		settled[id] = true
		if !slices.Contains(got, id) {
			t.Fatalf("%v misses %q", got, id)
		}
	}
	seen := map[string]bool{}
	for _, id := range got {
		if seen[id] || !known[id] {
			t.Fatalf("%q in %v is there twice or from nowhere", id, got)
		}
		seen[id] = true
	}
	if want := max(len(settled), min(r.Size, len(known))); len(got) != want {
		t.Fatalf("got %d, want %d", len(got), want)
	}
	shuffled := r
	shuffled.Available = slices.Clone(r.Available)
	rand.New(rand.NewPCG(1, uint64(len(r.Available)))).Shuffle(len(shuffled.Available), func(i, j int) {
		shuffled.Available[i], shuffled.Available[j] = shuffled.Available[j], shuffled.Available[i]
	})
	if again := alloc.Preferred(shuffled); !slices.Equal(got, again) {
		t.Fatalf("%v in another order is %v", got, again)
	}
}

func requests() *rapid.Generator[alloc.Request] {
	return rapid.Custom(func(t *rapid.T) alloc.Request {
		id := rapid.OneOf(
			rapid.Custom(func(t *rapid.T) string {
				return alloc.ID(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "uuid"), rapid.IntRange(0, 12).Draw(t, "n"))
			}),
			rapid.SampledFrom([]string{"a", "b", "", "::", "a::-1", "a::01", "::3", "a::b::2"}))
		r := alloc.Request{
			Available: rapid.SliceOfN(id, 0, 30).Draw(t, "available"), Size: rapid.IntRange(-2, 20).Draw(t, "size"), Packed: rapid.Bool().Draw(t, "packed"),
			Loads: map[string]alloc.Load{"a": {rapid.Int64().Draw(t, "memory"), rapid.Int().Draw(t, "percent")}},
		}
		r.MustInclude = rapid.SliceOfN(id, 0, 4).Draw(t, "must")
		return r
	})
}

func TestPreferredReturnsValidChoice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { holds(t, requests().Draw(t, "request")) })
}

func FuzzPreferred(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { holds(t, requests().Draw(t, "request")) }))
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "::", "GPU-1", "GPU-1::0", "GPU-1::-1", "GPU-1::007", "a::1::2", "a::99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		uuid, n, replica := alloc.Parse(id)
		switch {
		case replica && alloc.ID(uuid, n) != id:
			t.Errorf("%q is read as %q, %d", id, uuid, n)
		case !replica && uuid != id:
			t.Errorf("%q is read as the GPU %q", id, uuid)
		}
	})
}

func TestSpreadFillsGPUsEvenly(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		gpus, replicas := rapid.IntRange(1, 8).Draw(t, "gpus"), rapid.IntRange(1, 12).Draw(t, "replicas")
		var free []string
		for g := range gpus {
			for n := range replicas {
				free = append(free, alloc.ID(fmt.Sprint(g), n))
			}
		}
		used := map[string]int{}
		for range rapid.IntRange(0, gpus*replicas).Draw(t, "pods") {
			id := alloc.Preferred(alloc.Request{Available: free, Size: 1})[0]
			used[alloc.UUID(id)]++
			free = slices.DeleteFunc(free, func(f string) bool { return f == id })
		}
		lo, hi := replicas, 0
		for g := range gpus {
			lo, hi = min(lo, used[fmt.Sprint(g)]), max(hi, used[fmt.Sprint(g)])
		}
		if hi-lo > 1 {
			t.Fatalf("%v", used)
		}
	})
}

func BenchmarkPreferred480(b *testing.B) {
	var free []string
	for g := range 48 {
		for n := range 10 {
			free = append(free, alloc.ID(fmt.Sprintf("GPU-00000000-0000-0000-0000-0000000000%02d", g), n))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		alloc.Preferred(alloc.Request{Available: free, Size: 4})
	}
}
