package mps

import (
	"testing"
	"time"
)

var noon = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func TestSupervisorDecides(t *testing.T) {
	t.Parallel()
	limits := Limits{UUID: "GPU-a", MemoryMiB: 1536, ThreadPercent: 10, MultiUser: true}
	other, single := limits, limits
	other.MemoryMiB, single.MultiUser = 3072, false
	running := state{running: true, multiUser: true, told: limits, answers: true, started: noon.Add(-time.Hour), asked: noon.Add(-time.Second)}
	with := func(change func(*state)) state {
		s := running
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		state  state
		wanted *Limits
		want   action
	}{
		"one that is wanted and not there":                {state{}, &limits, start},
		"one that ended a moment ago":                     {state{notBefore: noon.Add(time.Second)}, &limits, nothing},
		"one that ended a while ago":                      {state{notBefore: noon}, &limits, start},
		"one that is not wanted":                          {running, nil, stop},
		"one that is not wanted and has ended":            {state{}, nil, stop},
		"one that answered a moment ago":                  {running, &limits, nothing},
		"one that answered a while ago":                   {with(func(s *state) { s.asked = noon.Add(-AskEvery) }), &limits, ask},
		"one that has just started":                       {with(func(s *state) { s.answers, s.started = false, noon }), &limits, ask},
		"one with other limits":                           {running, &other, ask},
		"one for other users":                             {running, &single, kill},
		"one that misses two questions":                   {with(func(s *state) { s.answers, s.misses = false, 2 }), &limits, ask},
		"one that misses three questions":                 {with(func(s *state) { s.answers, s.misses = false, 3 }), &limits, kill},
		"one that misses three questions while it starts": {with(func(s *state) { s.answers, s.misses, s.started = false, 3, noon.Add(-time.Second) }), &limits, ask},
	} {
		if got := c.state.next(c.wanted, noon); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestDaemonThatEndsAgainAndAgainStartsLater(t *testing.T) {
	t.Parallel()
	s, now := state{}, noon
	var waits []time.Duration
	for range 6 {
		s.started, s.running = now, true
		s = s.ended(now)
		waits = append(waits, s.notBefore.Sub(now))
		now = s.notBefore
	}
	for i, want := range []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		if waits[i] != want {
			t.Errorf("the waits are %v, want %s at %d", waits, want, i)
		}
	}
	s.started = now.Add(-steady)
	if s = s.ended(now); !s.notBefore.Equal(now) {
		t.Errorf("one that ran for %s waits until %s", steady, s.notBefore)
	}
}

func TestStatusSaysWhichDaemonsAreDown(t *testing.T) {
	t.Parallel()
	a, b := Limits{UUID: "GPU-a", MemoryMiB: 1536, ThreadPercent: 10}, Limits{UUID: "GPU-b", MemoryMiB: 1536, ThreadPercent: 10}
	changed := a
	changed.MemoryMiB = 768
	up := Status{AsOf: noon, Daemons: []Daemon{{Limits: a, Answers: true}, {Limits: b, Answers: true}}}
	for name, c := range map[string]struct {
		status  Status
		wanted  []Limits
		after   time.Duration
		down    int
		unready int
	}{
		"all answer":           {up, []Limits{a, b}, time.Second, 0, 0},
		"nobody has looked":    {up, []Limits{a, b}, freshFor + 1, 2, 2},
		"there is no status":   {Status{}, []Limits{a}, 0, 1, 1},
		"one is missing":       {Status{AsOf: noon, Daemons: up.Daemons[:1]}, []Limits{a, b}, 0, 1, 1},
		"one does not answer":  {Status{AsOf: noon, Daemons: []Daemon{{Limits: a, Problem: "it ended"}, up.Daemons[1]}}, []Limits{a, b}, 0, 1, 1},
		"one has other limits": {up, []Limits{changed, b}, 0, 0, 1},
		"none is wanted":       {Status{}, nil, 0, 0, 0},
	} {
		down, unready := c.status.Down(c.wanted, noon.Add(c.after)), c.status.Unready(c.wanted, noon.Add(c.after))
		if len(down) != c.down || len(unready) != c.unready {
			t.Errorf("%s: down %v, unready %v", name, down, unready)
		}
	}
}
