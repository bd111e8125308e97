package consolidate_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/consolidate"
)

func TestAccountCountsSavingsThatLasted(t *testing.T) {
	t.Parallel()
	type look struct {
		after            time.Duration
		saving, restarts planner.MicroUSD
		want             planner.MicroUSD
	}
	for name, looks := range map[string][]look{
		"nothing counts before the first look":               {{time.Hour, 100, 500, 0}, {time.Hour, 100, 500, 100}},
		"the smaller of two savings counts":                  {{0, 100, 500, 0}, {time.Hour, 40, 500, 40}, {time.Hour, 100, 500, 80}},
		"no more is held than the restarts cost":             {{0, 100, 150, 0}, {2 * time.Hour, 100, 150, 150}, {time.Hour, 100, 120, 120}},
		"nothing is held without steps":                      {{0, 100, 500, 0}, {time.Hour, 100, 500, 100}, {time.Second, 0, 0, 0}, {time.Hour, 100, 500, 0}},
		"what is held stays while steps cannot begin":        {{0, 100, 500, 0}, {time.Hour, 100, 500, 100}, {time.Hour, 0, 500, 100}},
		"a clock that went back counts nothing":              {{0, 100, 500, 0}, {-time.Hour, 100, 500, 0}},
		"a clock that went a year ahead counts as one day":   {{0, 1, 1 << 40, 0}, {365 * 24 * time.Hour, 1, 1 << 40, 24}},
		"high prices do not overflow":                        {{0, 1 << 50, 1 << 60, 0}, {24 * time.Hour, 1 << 50, 1 << 60, 24 << 50}},
		"looks in quick succession lose less than a percent": slices.Concat([]look{{0, 226_000, 600_000, 0}}, slices.Repeat([]look{{2 * time.Second, 226_000, 600_000, -1}}, 1799), []look{{2 * time.Second, 226_000, 600_000, 225_000}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var a consolidate.Account
			for i, l := range looks {
				if a = a.Look(l.after, l.saving, l.restarts); l.want >= 0 && a.Wasted != l.want {
					t.Fatalf("after look %d it holds %d, want %d", i, a.Wasted, l.want)
				}
			}
		})
	}
}

func TestBestStepsArePaidForFirst(t *testing.T) {
	t.Parallel()
	steps := []consolidate.Worth{{Saving: 10, Restarts: 10}, {Saving: 30, Restarts: 10}, {Saving: 1}, {Saving: 3, Restarts: 1}, {Saving: 5}}
	if got := consolidate.Ranked(steps); !slices.Equal(got, []int{2, 4, 3, 1, 0}) {
		t.Errorf("the order is %v", got)
	}
}

// TestAccountNeverPaysMoreThanWasWasted checks the two halves of the rule for renting or buying: what an account has paid was wasted before, and while a step is possible, no
// more than its restarts cost is wasted without it, apart from the waste between two looks.
func TestAccountNeverPaysMoreThanWasWasted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a consolidate.Account
		var wasted, paid, since float64
		var last planner.MicroUSD
		restarts := planner.MicroUSD(rapid.IntRange(0, 1_000_000).Draw(t, "restarts"))
		for range rapid.IntRange(1, 50).Draw(t, "looks") {
			minutes := rapid.IntRange(0, 60).Draw(t, "minutes")
			saving, cost := planner.MicroUSD(rapid.IntRange(0, 2_000_000).Draw(t, "saving")), restarts
			if saving == 0 {
				cost = 0
			}
			between := float64(max(saving, last)) * float64(minutes) / 60
			wasted += float64(last) * float64(minutes) / 60
			since += float64(min(last, saving)) * float64(minutes) / 60
			a = a.Look(time.Duration(minutes)*time.Minute, saving, cost)
			last = saving
			if saving == 0 {
				since = 0
				continue
			}
			if a.Wasted < cost {
				if since > float64(cost)+between+float64(minutes)+100 {
					t.Fatalf("%.0f was wasted, and restarts for %d are not paid for with %d", since, cost, a.Wasted)
				}
				continue
			}
			a.Wasted -= cost
			paid += float64(cost)
			a.Saving, last, since = 0, 0, 0
		}
		if paid > wasted {
			t.Fatalf("%.0f was paid and %.0f wasted", paid, wasted)
		}
	})
}

func TestMovesOfPodsThatHaveRunForLongCountLess(t *testing.T) {
	t.Parallel()
	for ran, want := range map[time.Duration]planner.MicroUSD{
		-time.Hour: 3_000_000, 0: 3_000_000, time.Hour: 25_000, 3 * time.Hour: 8_333, 12 * time.Hour: 2_083, 1000 * time.Hour: 2_083, math.MaxInt64: 2_083,
	} {
		if got := consolidate.Move(50_000, ran); got != want {
			t.Errorf("the move of a pod that has run for %s counts %d an hour, want %d", ran, got, want)
		}
	}
	if got := consolidate.Move(0, time.Hour); got != 1 {
		t.Errorf("a free move counts %d, want 1", got)
	}
}
