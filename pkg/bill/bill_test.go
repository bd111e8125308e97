package bill_test

import (
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/bill"
	"karve.sh/karve/pkg/internal/properties"
)

func TestPodsPayForTheReplicasThatTheyHoldAndTheRestIsIdle(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		price, replicas int64
		held, shares    []int64
		idle            int64
	}{
		"a node that nobody uses":                      {526_000, 10, nil, []int64{}, 526_000},
		"one replica of ten":                           {526_000, 10, []int64{1}, []int64{52_600}, 473_400},
		"two replicas cost twice as much":              {526_000, 10, []int64{1, 2}, []int64{52_600, 105_200}, 368_200},
		"a full node":                                  {526_000, 2, []int64{1, 1}, []int64{263_000, 263_000}, 0},
		"rounding leaves the rest to idle replicas":    {100, 3, []int64{1, 1}, []int64{33, 33}, 34},
		"and to the first pod if there are none":       {100, 3, []int64{1, 1, 1}, []int64{34, 33, 33}, 0},
		"which is the first that holds any":            {100, 3, []int64{0, 3}, []int64{0, 100}, 0},
		"a pod without replicas pays nothing":          {100, 2, []int64{0, 1}, []int64{0, 50}, 50},
		"more is held than there is":                   {900, 2, []int64{1, 2}, []int64{300, 600}, 0},
		"a node whose replicas are unknown":            {900, 0, []int64{2, 1}, []int64{600, 300}, 0},
		"a node whose replicas are unknown and unused": {900, 0, nil, []int64{}, 900},
		"a node without a price":                       {0, 10, []int64{3}, []int64{0}, 0},
		"numbers that make no sense":                   {-5, -1, []int64{-3}, []int64{0}, 0},
	} {
		shares, idle := bill.Split(c.price, c.replicas, c.held)
		if diff := cmp.Diff(c.shares, shares); diff != "" || idle != c.idle {
			t.Errorf("%s: idle %d, want %d (-want +got):\n%s", name, idle, c.idle, diff)
		}
	}
}

func splits(t *rapid.T) {
	price := rapid.OneOf(rapid.Int64Range(0, 50_000_000), rapid.Int64Range(0, math.MaxInt64)).Draw(t, "price")
	replicas := rapid.Int64Range(0, 400).Draw(t, "replicas")
	held := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 12), rapid.Int64Range(0, math.MaxInt64/64)), 0, 40).Draw(t, "held")
	shares, idle := bill.Split(price, replicas, held)
	sum := idle
	for i, share := range shares {
		sum += share
		if share < 0 || held[i] == 0 && share != 0 {
			t.Fatalf("pod %d holds %d and pays %d", i, held[i], share)
		}
		for j := range shares[:i] { // Equal pods pay equal shares, but for the rest of rounding.
			if held[i] == held[j] && max(share-shares[j], shares[j]-share) > int64(len(shares)) {
				t.Fatalf("pods %d and %d hold %d, and pay %d and %d", i, j, held[i], share, shares[j])
			}
		}
	}
	if sum != price || idle < 0 || len(shares) != len(held) {
		t.Fatalf("%v and %d idle are %d, want %d", shares, idle, sum, price)
	}
	if full := slices.Max(append(held, 0)) >= max(1, replicas); full && idle != 0 {
		t.Fatalf("all replicas are held, and %d are idle", idle)
	}
}

func TestSharesAndIdleRestAddUpToThePrice(t *testing.T) { properties.Check(splits)(t) }

func FuzzSplit(f *testing.F) { f.Fuzz(rapid.MakeFuzz(splits)) }

func TestANodeIsSplitAmongItsHolders(t *testing.T) {
	t.Parallel()
	n := bill.Node{MicroUSDPerHour: 526_000, Replicas: 10, Holders: []bill.Holder{{Namespace: "a", Name: "x", Replicas: 4}, {Namespace: "b", Name: "y", Replicas: 5}}}
	shares, idle := n.Split()
	if diff := cmp.Diff([]int64{210_400, 263_000}, shares); diff != "" || idle != 52_600 {
		t.Errorf("idle %d (-want +got):\n%s", idle, diff)
	}
}
