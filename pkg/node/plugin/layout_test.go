package plugin

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/node/alloc"
)

func set(resource string, ids ...string) idSet {
	s := idSet{}
	for _, id := range ids {
		s.add(resource, id)
	}
	return s
}

func TestLayout(t *testing.T) {
	t.Parallel()
	const r, other = "nvidia.com/gpu", "nvidia.com/gpu.shared"
	a := func(numbers ...int) []string {
		var out []string
		for _, n := range numbers {
			out = append(out, alloc.ID("a", n))
		}
		return out
	}
	for name, c := range map[string]struct {
		target        target
		listed, inUse idSet
		want          map[string][]string
		settling      bool
	}{
		"at first":                          {target{uuid: "a", resource: r, replicas: 3}, nil, nil, map[string][]string{r: a(0, 1, 2)}, false},
		"a whole GPU":                       {target{uuid: "a", resource: r, replicas: 1}, nil, nil, map[string][]string{r: {"a"}}, false},
		"growing":                           {target{uuid: "a", resource: r, replicas: 4}, set(r, a(0, 1)...), set(r, a(1)...), map[string][]string{r: a(0, 1, 2, 3)}, false},
		"shrinking, unused":                 {target{uuid: "a", resource: r, replicas: 2}, set(r, a(0, 1, 2, 3)...), nil, map[string][]string{r: a(0, 1)}, false},
		"shrinking, high replicas held":     {target{uuid: "a", resource: r, replicas: 2}, set(r, a(0, 1, 2, 3)...), set(r, a(3)...), map[string][]string{r: a(0, 3)}, false},
		"shrinking below the held replicas": {target{uuid: "a", resource: r, replicas: 2}, set(r, a(0, 1, 2, 3)...), set(r, a(1, 2, 3)...), map[string][]string{r: a(1, 2, 3)}, true},
		"a reload changes nothing":          {target{uuid: "a", resource: r, replicas: 2}, set(r, a(0, 3)...), nil, map[string][]string{r: a(0, 3)}, false},
		"renamed":                           {target{uuid: "a", resource: other, replicas: 3}, set(r, a(0, 1, 2)...), set(r, a(1)...), map[string][]string{r: a(1), other: a(0, 1)}, true},
		"sharing a GPU that a pod holds exclusively": {target{uuid: "a", resource: r, replicas: 3}, set(r, "a"), set(r, "a"), map[string][]string{r: {"a"}}, true},
		"unsharing a GPU with held replicas":         {target{uuid: "a", resource: r, replicas: 1}, set(r, a(0, 1, 2)...), set(r, a(2)...), map[string][]string{r: a(2)}, true},
		"renamed and whole":                          {target{uuid: "a", resource: r, replicas: 1}, set(other, a(0, 1)...), set(other, a(0)...), map[string][]string{r: nil, other: a(0)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, settling := layout([]target{c.target}, c.listed, c.inUse, false)
			if diff := cmp.Diff(c.want, got); diff != "" || settling != c.settling {
				t.Errorf("settling: %t\n%s", settling, diff)
			}
		})
	}
}

// TestReloadsKeepHeldReplicas reloads the configuration while pods come and go. After every step, held replicas are listed, a GPU offers max(target, held) replicas in
// total, and no pod shares a GPU that another holds exclusively. Once the pods are gone, the list matches the target exactly.
func TestReloadsKeepHeldReplicas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		listed, inUse := idSet{}, idSet{}
		draw := func() []target {
			var out []target
			for _, uuid := range []string{"a", "b"} {
				if rapid.IntRange(0, 9).Draw(t, "lost") > 0 {
					out = append(out, target{uuid: uuid, resource: rapid.SampledFrom([]string{"r", "s"}).Draw(t, "resource"), replicas: rapid.IntRange(1, 6).Draw(t, "replicas")})
				}
			}
			return out
		}
		targets := draw()
		step := func() {
			offered, settling := layout(targets, listed, inUse, false)
			next := idSet{}
			for r, ids := range offered {
				for _, id := range ids {
					if next.has(r, id) {
						t.Fatalf("%s is listed twice", id)
					}
					next.add(r, id)
				}
			}
			for r, ids := range inUse {
				for id := range ids {
					if !next.has(r, id) {
						t.Fatalf("%s of %s is held and not listed: %v", id, r, offered)
					}
				}
			}
			for _, g := range targets {
				check(t, g, offered, inUse, settling)
			}
			if again, _ := layout(targets, next, inUse, false); !cmp.Equal(again, offered) {
				t.Fatalf("a second look changes\n%s", cmp.Diff(offered, again))
			}
			listed = next
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			step()
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				targets = draw()
			case 1: // A pod starts.
				for _, r := range slices.Sorted(maps.Keys(listed)) {
					free := slices.DeleteFunc(slices.Sorted(maps.Keys(listed[r])), func(id string) bool { return inUse.has(r, id) })
					if len(free) > 0 {
						inUse.add(r, rapid.SampledFrom(free).Draw(t, "free"))
					}
				}
			case 2: // A pod ends.
				for _, r := range slices.Sorted(maps.Keys(inUse)) {
					if ids := slices.Sorted(maps.Keys(inUse[r])); len(ids) > 0 {
						delete(inUse[r], rapid.SampledFrom(ids).Draw(t, "held"))
					}
				}
			}
		}
		inUse = idSet{}
		step()
	})
}

func check(t *rapid.T, g target, offered map[string][]string, inUse idSet, settling bool) {
	total, whole, heldTotal, heldWhole := 0, 0, 0, 0
	for r, ids := range offered {
		for _, id := range ids {
			uuid, _, replica := alloc.Parse(id)
			if uuid != g.uuid {
				continue
			}
			total++
			if !replica {
				whole++
			}
			if inUse.has(r, id) {
				heldTotal++
				if !replica {
					heldWhole++
				}
			}
		}
	}
	want := max(g.replicas, heldTotal)
	if heldWhole > 0 || g.replicas == 1 && heldTotal > 0 {
		want = heldTotal
	}
	if total != want || whole > 0 && total != whole {
		t.Fatalf("%v: %d listed (%d whole), want %d; %v held %v", g, total, whole, want, offered, inUse)
	}
	if total == 0 {
		t.Fatalf("%v: nothing is listed", g)
	}
	if !settling && total != g.replicas {
		t.Fatalf("%v: settled with %d", g, total)
	}
}

func BenchmarkLayout480(b *testing.B) {
	var targets []target
	for g := range 48 {
		targets = append(targets, target{uuid: fmt.Sprintf("GPU-00000000-0000-0000-0000-0000000000%02d", g), resource: "nvidia.com/gpu", replicas: 10})
	}
	offered, _ := layout(targets, nil, nil, false)
	listed := idSet{}
	for _, id := range offered["nvidia.com/gpu"] {
		listed.add("nvidia.com/gpu", id)
	}
	for b.Loop() {
		layout(targets, listed, listed, false)
	}
}
