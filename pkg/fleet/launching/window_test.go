package launching

import (
	"fmt"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/snapshot/records"
)

// condition sets the state of a launch as Karpenter reports it.
func condition(claim *karpv1.NodeClaim, s metav1.ConditionStatus, reason string, at time.Time) {
	claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: s, Reason: reason, LastTransitionTime: metav1.NewTime(at)}}
}

// machine returns a machine whose NodeClaim was created and launched the given times ago. If launched is negative, it is not launched.
func machine(created, launched time.Duration) records.Machine {
	claim := &karpv1.NodeClaim{}
	claim.CreationTimestamp = metav1.NewTime(now.Add(-created))
	if launched >= 0 {
		condition(claim, metav1.ConditionTrue, "Launched", now.Add(-launched))
	}
	return records.Machine{Claim: claim}
}

func TestWindow(t *testing.T) {
	t.Parallel()
	const not = -time.Second
	failing := machine(time.Second, not)
	condition(failing.Claim, metav1.ConditionUnknown, "RequestLimitExceeded", now)
	waiting := machine(time.Second, not)
	condition(waiting.Claim, metav1.ConditionUnknown, "AwaitingReconciliation", now)
	five := func(created, launched time.Duration) []records.Machine {
		var all []records.Machine
		for range 5 {
			all = append(all, machine(created, launched))
		}
		return all
	}
	for name, c := range map[string]struct {
		machines []records.Machine
		more     []records.Machine
		most     int
		want     int
	}{
		"starts with ten":                                                 {nil, nil, 100, 10},
		"grows by recent launches":                                        {five(4*time.Second, 2*time.Second), nil, 100, 20},
		"does not exceed the limit":                                       {five(4*time.Second, 2*time.Second), nil, 12, 12},
		"a limit below ten applies at the start":                          {nil, nil, 3, 3},
		"does not grow by old launches":                                   {five(62*time.Second, time.Minute), nil, 100, 10},
		"does not grow by unlaunched claims":                              {five(2*time.Second, not), nil, 100, 10},
		"queued claims do not shrink the window":                          {five(4*time.Second, 2*time.Second), []records.Machine{waiting}, 100, 20},
		"a failing launch resets the window":                              {five(4*time.Second, 2*time.Second), []records.Machine{failing}, 100, 10},
		"a hung launch resets the window if nothing else was launched":    {five(20*time.Second, 16*time.Second), []records.Machine{machine(cloud.FailingGrace, not)}, 100, 10},
		"a hung launch leaves the launches of the same time":              {five(4*time.Second, 2*time.Second), []records.Machine{machine(cloud.FailingGrace, not)}, 100, 20},
		"after a slow launch the launches of the grace period count":      {five(22*time.Second, 20*time.Second), []records.Machine{machine(17*time.Second, 2*time.Second)}, 100, 12},
		"launches beside a slow one count":                                {five(4*time.Second, time.Second), []records.Machine{machine(17*time.Second, 2*time.Second)}, 100, 22},
		"a slow launch is forgotten after a minute":                       {five(22*time.Second, 20*time.Second), []records.Machine{machine(77*time.Second, time.Minute)}, 100, 20},
		"a launch just within the grace period does not reset the window": {five(6*time.Second, 4*time.Second), []records.Machine{machine(16*time.Second, 2*time.Second)}, 100, 22},
	} {
		if got := Window(append(c.machines, c.more...), now, c.most); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// burst simulates a cloud, a Karpenter that never gives up, and a controller that launches machines on them.
type burst struct {
	// latency is the response time of the cloud. It does not answer from hangs until back, and then answers the calls that are overdue.
	latency     time.Duration
	hangs, back time.Duration
	// tokens is how many launches the cloud admits at once, and refill is how many it adds each second. It throttles all others.
	tokens, refill float64
	// queue is how many launches Karpenter carries out each second, or 0 if there is no limit. The others wait without an error.
	queue float64
	// window returns how many NodeClaims may be unlaunched at the same time.
	window func([]records.Machine, time.Time) int

	began, now time.Time
	ledger     *Ledger
	machines   []records.Machine
	made       int
	givenUp    int
	// turns is how many launches Karpenter can carry out now.
	turns float64
	// atStake is the largest number of unlaunched NodeClaims while the cloud hung.
	atStake int
	// growing is called after the controller has created NodeClaims.
	growing func()
}

const (
	// step is the interval at which all components act.
	step = 200 * time.Millisecond
	// class is the class of all NodeClaims.
	class = "shared"
)

func (b *burst) age() time.Duration { return b.now.Sub(b.began) }
func (b *burst) hanging() bool      { return b.age() >= b.hangs && b.age() < b.back }

// answer lets the cloud answer the launches that are due.
func (b *burst) answer() {
	b.tokens += b.refill * step.Seconds()
	b.turns = min(b.turns+b.queue*step.Seconds(), max(1, b.queue))
	if b.hanging() {
		return
	}
	for _, m := range b.machines {
		asked := m.Claim.CreationTimestamp.Time
		if asked.Sub(b.began) < b.back && b.age() >= b.back && asked.Add(b.latency).Sub(b.began) >= b.hangs {
			asked = b.began.Add(b.back) // Karpenter repeats the call that hung.
		}
		switch {
		case m.Launched() || b.now.Sub(asked) < b.latency:
		case b.refill > 0 && b.tokens < 1:
			condition(m.Claim, metav1.ConditionUnknown, "RequestLimitExceeded", b.now)
		case b.queue > 0 && b.turns < 1:
		default:
			b.tokens--
			b.turns--
			condition(m.Claim, metav1.ConditionTrue, "Launched", b.now)
			b.ledger.Launched(m.Claim.Name, class, "g4dn.xlarge", "us-east-1a", "on-demand", b.now)
		}
	}
}

// judge gives up launches as the controller does.
func (b *burst) judge() {
	var kept []records.Machine
	for _, m := range b.machines {
		d := Decide(m.Claim, b.now, time.Minute)
		if d.Verdict != Hung {
			kept = append(kept, m)
			continue
		}
		b.givenUp++
		b.ledger.Refuse(class, b.ledger.Judge(shape("g4dn.xlarge"), d.Reason, d.Message, aCloud, m.Claim.CreationTimestamp.Time, b.now), b.now)
		if d.Held {
			b.ledger.Quiet(b.now)
		}
	}
	b.machines = kept
}

func (b *burst) unlaunched() (n int) {
	for i := range b.machines {
		if !b.machines[i].Launched() {
			n++
		}
	}
	return n
}

// launch creates as many NodeClaims as the window permits.
func (b *burst) launch(wanted int) {
	for _, r := range b.ledger.Refused()[class] {
		if b.now.Before(r.NotBefore.Time) {
			return
		}
	}
	if b.now.Before(b.ledger.QuietUntil()) {
		return
	}
	for n := min(wanted-len(b.machines), b.window(b.machines, b.now)-b.unlaunched()); n > 0; n-- {
		b.made++
		claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", b.made), CreationTimestamp: metav1.NewTime(b.now)}}
		b.machines = append(b.machines, records.Machine{Claim: claim})
		b.ledger.Await(claim.Name, "", shape("g4dn.xlarge"))
	}
}

// run advances the clock until the wanted number of machines is launched. It returns how long that took, at most an hour.
func (b *burst) run(wanted int) time.Duration {
	b.began, b.now, b.ledger = now, now, NewLedger()
	for ; b.age() < time.Hour; b.now = b.now.Add(step) {
		b.answer()
		b.judge()
		b.launch(wanted)
		if b.hanging() {
			b.atStake = max(b.atStake, b.unlaunched())
		}
		if b.growing != nil {
			b.growing()
		}
		if len(b.machines) == wanted && b.unlaunched() == 0 {
			break
		}
	}
	return b.age()
}

func upTo(most int) func([]records.Machine, time.Time) int {
	return func(machines []records.Machine, now time.Time) int { return Window(machines, now, most) }
}

func TestWindowLaunchesBurstsAsFastAsCloudAllows(t *testing.T) {
	t.Parallel()
	const never = 2 * time.Hour
	for name, c := range map[string]struct {
		cloud burst
		// within limits the time for 500 launches. fixed is the minimum time with a constant window of ten.
		within, fixed time.Duration
		// atStake and givenUp limit the number of NodeClaims that hang and that are given up.
		atStake, givenUp int
	}{
		"a cloud that answers at once":                  {burst{latency: step, hangs: never}, 2 * time.Second, 10 * time.Second, 0, 0},
		"a cloud that answers within two seconds":       {burst{latency: 2 * time.Second, hangs: never}, 12 * time.Second, 100 * time.Second, 0, 0},
		"a cloud that takes ten seconds":                {burst{latency: 10 * time.Second, hangs: never}, time.Minute, 500 * time.Second, 0, 0},
		"a cloud that hangs from the start":             {burst{latency: 2 * time.Second, back: 5 * time.Minute}, 8 * time.Minute, 8 * time.Minute, 10, 30},
		"a cloud that hangs in the middle":              {burst{latency: 2 * time.Second, hangs: 9 * time.Second, back: 40 * time.Second}, 55 * time.Second, 2 * time.Minute, 160, 0},
		"a cloud that hangs for long in the middle":     {burst{latency: 2 * time.Second, hangs: 9 * time.Second, back: 5 * time.Minute}, 6 * time.Minute, 6 * time.Minute, 160, 170},
		"a busy Karpenter that launches six per second": {burst{latency: 8 * time.Second, hangs: never, queue: 6}, 110 * time.Second, 5 * time.Minute, 0, 0},
		"a cloud that admits ten launches per second":   {burst{latency: 2 * time.Second, hangs: never, tokens: 100, refill: 10}, time.Minute, 90 * time.Second, 0, 0},
		"a cloud that admits two launches per second":   {burst{latency: 2 * time.Second, hangs: never, tokens: 100, refill: 2}, 200 * time.Second, 195 * time.Second, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slow, fast := c.cloud, c.cloud
			slow.window, fast.window = upTo(firstWindow), upTo(250)
			fixed, took := slow.run(500), fast.run(500)
			t.Logf("%s, %d at stake, %d given up; with a window of ten %s, %d at stake, %d given up", took, fast.atStake, fast.givenUp, fixed, slow.atStake, slow.givenUp)
			if took > c.within || fixed < c.fixed || fast.atStake > c.atStake || fast.givenUp > c.givenUp {
				t.Errorf("want it within %s, at most %d at stake and %d given up, and at least %s with a window of ten", c.within, c.atStake, c.givenUp, c.fixed)
			}
		})
	}
}

// TestWindowAllowsTwoLaunchesForEachThatRecentlySucceeded checks for any behavior of the cloud that no more launches are in flight than twice those that have recently
// succeeded, plus ten, and that all machines are launched in the end.
func TestWindowAllowsTwoLaunchesForEachThatRecentlySucceeded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seconds := func(least, most int, what string) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(t, what)) * time.Second
		}
		most := rapid.IntRange(1, 300).Draw(t, "most")
		b := burst{latency: seconds(0, 20, "latency"), hangs: seconds(0, 60, "hangs"), window: upTo(most)}
		b.back = b.hangs + seconds(0, 120, "back")
		if rapid.Bool().Draw(t, "throttles") {
			b.tokens, b.refill = float64(rapid.IntRange(0, 100).Draw(t, "tokens")), float64(rapid.IntRange(2, 20).Draw(t, "refill"))
		}
		before := 0
		b.growing = func() {
			launched := 0
			for i := range b.machines {
				if at := launchedAt(b.machines[i].Claim); !at.IsZero() && b.now.Sub(at) < shownFor {
					launched++
				}
			}
			n := b.unlaunched()
			if created := n - before; n > before && (n > most || n > firstWindow+2*launched) {
				t.Fatalf("%d are unlaunched, %d of them new, after %d launches in a minute", n, created, launched)
			}
			before = n
		}
		if took := b.run(rapid.IntRange(1, 200).Draw(t, "wanted")); took >= time.Hour {
			t.Fatalf("%d of %d are not launched after an hour", b.unlaunched(), len(b.machines))
		}
	})
}
