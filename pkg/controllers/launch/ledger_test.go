package launch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func shape(instanceType string) Shape {
	return Shape{Class: "shared", Pool: "gpu", InstanceType: instanceType, Zone: "us-east-1a", CapacityType: "on-demand"}
}

// refusal is the one refusal that the ledger remembers.
func refusal(t *testing.T, l *Ledger, at time.Time) v1alpha1.RefusedOffering {
	t.Helper()
	list := l.ForStatus("shared", at)
	if len(list) != 1 {
		t.Fatalf("the ledger remembers %d refusals, want 1: %v", len(list), list)
	}
	return list[0]
}

func TestARefusedOfferingIsLeftAloneTwiceAsLongEachTimeAndAtMostAnHour(t *testing.T) {
	t.Parallel()
	l, at := NewLedger(), now
	for i, minutes := range []int{3, 6, 12, 24, 48, 60, 60} {
		r, news := l.Refuse(shape("g4dn.xlarge"), false, "no capacity", at)
		if got := r.NotBefore.Sub(at); got.Minutes() != float64(minutes) || !news || r.Failures != int32(i)+1 {
			t.Errorf("refusal %d: left alone for %s, failures %d, news %t; want %d minutes, %d, true", i+1, got, r.Failures, news, minutes, i+1)
		}
		at = r.NotBefore.Time
	}
}

func TestClaimsOfOnePlanThatAreRefusedTogetherAreOneFailure(t *testing.T) {
	t.Parallel()
	for _, hung := range []bool{false, true} {
		l := NewLedger()
		first, _ := l.Refuse(shape("g4dn.xlarge"), hung, "first", now)
		for i := range 9 {
			r, news := l.Refuse(shape("g4dn.xlarge"), hung, "another", now.Add(time.Duration(i)*time.Second))
			if news || !cmp.Equal(r, first) {
				t.Errorf("hung %t: refusal %d of the plan is news (%t) or changes %v to %v", hung, i+2, news, first, r)
			}
		}
	}
}

func TestARefusalCountsForAnHourAfterItsBackoff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration
		want  int32
	}{
		"a moment before": {firstBackoff + memory - time.Second, 2},
		"an hour later":   {firstBackoff + memory, 1},
	} {
		l := NewLedger()
		l.Refuse(shape("g4dn.xlarge"), false, "", now)
		at := now.Add(c.after)
		if c.want == 1 {
			// Whether the status was written in between makes no difference.
			clone := NewLedger()
			clone.Learn("shared", l.ForStatus("shared", now))
			if list := clone.ForStatus("shared", at); len(list) != 0 {
				t.Errorf("%s: the status still holds %v", name, list)
			}
		}
		if r, _ := l.Refuse(shape("g4dn.xlarge"), false, "", at); r.Failures != c.want {
			t.Errorf("%s: %d failures, want %d", name, r.Failures, c.want)
		}
	}
}

func TestAHungClaimRefusesItsWholeTypeAndQuietsEverything(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	if until := l.QuietUntil(); !until.IsZero() {
		t.Errorf("quiet until %s before anything happened", until)
	}
	l.Refuse(shape("g4dn.xlarge"), false, "no capacity", now)
	if until := l.QuietUntil(); !until.IsZero() {
		t.Errorf("quiet until %s after a refusal that Karpenter gave itself", until)
	}
	r, _ := l.Refuse(shape("g4dn.2xlarge"), true, "says nothing", now)
	if r.InstanceType != "g4dn.2xlarge" || r.Zone != AllZones || r.CapacityType != AllZones {
		t.Errorf("refused %v, want all zones and capacity types of g4dn.2xlarge", r)
	}
	if until := l.QuietUntil(); !until.Equal(now.Add(time.Minute)) {
		t.Errorf("quiet until %s, want a minute", until)
	}
}

func TestARestartedLedgerLearnsFromTheStatus(t *testing.T) {
	t.Parallel()
	before := NewLedger()
	before.Refuse(shape("g4dn.xlarge"), false, "no capacity", now)
	before.Refuse(shape("g4dn.2xlarge"), true, "says nothing", now)
	after := NewLedger()
	after.Learn("shared", before.ForStatus("shared", now))
	if diff := cmp.Diff(before.ForStatus("shared", now), after.ForStatus("shared", now)); diff != "" {
		t.Errorf("what was learnt differs (-before +after):\n%s", diff)
	}
	if r, _ := after.Refuse(shape("g4dn.xlarge"), false, "no capacity", now.Add(firstBackoff)); r.Failures != 2 {
		t.Errorf("the next failure is number %d, want 2", r.Failures)
	}
	// A status that was read before the last write does not undo it.
	after.Learn("shared", before.ForStatus("shared", now))
	if list := after.Refused()["shared"]; !slices.ContainsFunc(list, func(r v1alpha1.RefusedOffering) bool { return r.Failures == 2 }) {
		t.Errorf("an old status undid a refusal: %v", list)
	}
}

func TestALaunchedClaimRestoresTrust(t *testing.T) {
	t.Parallel()
	l, s := NewLedger(), shape("g4dn.xlarge")
	l.Refuse(s, false, "no capacity", now)
	l.Refuse(s, true, "says nothing", now)
	l.Refuse(shape("g4dn.2xlarge"), false, "no capacity", now)
	status := l.ForStatus("shared", now)

	l.Launched("seen-launched-after-a-restart", s)
	if list := l.ForStatus("shared", now); len(list) != 3 {
		t.Errorf("a claim that was launched before the refusals took them away: %v", list)
	}
	l.Await("gpu-1", s)
	l.Launched("gpu-1", s)
	l.Learn("shared", status) // The status has not been written yet.
	if r := refusal(t, l, now); r.InstanceType != "g4dn.2xlarge" {
		t.Errorf("%v is left, want g4dn.2xlarge alone", r)
	}
	for _, r := range l.Refused()["shared"] {
		if r.InstanceType == "g4dn.xlarge" && now.Before(r.NotBefore.Time) {
			t.Errorf("%v still holds g4dn.xlarge back", r)
		}
	}
	if r, _ := l.Refuse(s, false, "no capacity", now); r.Failures != 1 {
		t.Errorf("the next failure is number %d, want 1", r.Failures)
	}
}

func TestAClaimIsAwaitedUntilItIsGoneOrLaunched(t *testing.T) {
	t.Parallel()
	l, s := NewLedger(), shape("g4dn.xlarge")
	if _, never := l.Gone("gpu-1"); never {
		t.Error("a claim that was never awaited is gone")
	}
	if !l.Await("gpu-1", s) || l.Await("gpu-1", s) {
		t.Error("a claim is news once")
	}
	if got, ok := l.Awaited("gpu-1"); !ok || got != s {
		t.Errorf("awaited is %v, %t", got, ok)
	}
	if got, never := l.Gone("gpu-1"); !never || got != s {
		t.Errorf("gone is %v, %t", got, never)
	}
	if _, never := l.Gone("gpu-1"); never {
		t.Error("a claim is gone twice")
	}
	l.Await("gpu-2", s)
	l.Launched("gpu-2", s)
	if _, never := l.Gone("gpu-2"); never {
		t.Error("a claim that was launched and deleted later counts as never launched")
	}
}

func TestTheStatusHoldsAHundredRefusalsTheLatestFirst(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	for i := range 120 {
		l.Refuse(shape(fmt.Sprintf("type-%03d", i)), false, "", now.Add(time.Duration(i)*time.Second))
	}
	list := l.ForStatus("shared", now.Add(2*time.Minute))
	if len(list) != 100 || list[0].InstanceType != "type-119" || list[99].InstanceType != "type-020" {
		t.Errorf("%d refusals from %s to %s, want 100 from type-119 to type-020", len(list), list[0].InstanceType, list[len(list)-1].InstanceType)
	}
	if n := len(l.Refused()["shared"]); n != 120 {
		t.Errorf("the ledger itself knows %d, want all 120", n)
	}
}

func TestAMessageFitsTheStatusAndStaysText(t *testing.T) {
	t.Parallel()
	r, _ := NewLedger().Refuse(shape("g4dn.xlarge"), false, strings.Repeat("é", maxMessage), now)
	if len(r.Message) > maxMessage || !utf8.ValidString(r.Message) {
		t.Errorf("%d bytes, valid %t", len(r.Message), utf8.ValidString(r.Message))
	}
}

// What must hold whatever happens: no offering is tried again within three minutes of its refusal, failures only count up by one, and nothing is
// remembered for longer than its backoff and an hour.
func TestNoRefusedOfferingIsTriedAgainAtOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, at := NewLedger(), now
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 4_000_000).Draw(t, "milliseconds")) * time.Millisecond)
			s := shape(rapid.SampledFrom([]string{"g4dn.xlarge", "g4dn.2xlarge"}).Draw(t, "type"))
			switch rapid.SampledFrom([]string{"refuse", "hang", "launch", "restart"}).Draw(t, "step") {
			case "refuse":
				checkRefusal(t, l, s, false, at)
			case "hang":
				checkRefusal(t, l, s, true, at)
			case "launch":
				claim := fmt.Sprint("claim-", i)
				l.Await(claim, s)
				l.Launched(claim, s)
			case "restart":
				status := l.ForStatus("shared", at)
				l = NewLedger()
				l.Learn("shared", status)
			}
			for _, r := range l.ForStatus("shared", at) {
				if r.Failures < 1 || r.NotBefore.Add(memory).Before(at) || r.NotBefore.After(at.Add(maxBackoff+time.Second)) {
					t.Fatalf("at %s the status holds %v", at, r)
				}
			}
		}
	})
}

func checkRefusal(t *rapid.T, l *Ledger, s Shape, hung bool, at time.Time) {
	t.Helper()
	r, news := l.Refuse(s, hung, "no", at)
	switch wait := r.NotBefore.Sub(at); {
	case news && (wait < firstBackoff || wait > maxBackoff+time.Second):
		t.Fatalf("refused at %s and left alone for %s", at, wait)
	case !news && wait <= 0:
		t.Fatalf("an offering that may be tried was refused at %s, and that is no news: %v", at, r)
	}
}

func TestLearningNothingIsHarmless(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	l.Learn("shared", nil)
	l.Learn("shared", []v1alpha1.RefusedOffering{{InstanceType: "old", Zone: "*", CapacityType: "*", Failures: 5, NotBefore: metav1.NewTime(now.Add(-2 * time.Hour))}})
	if list := l.ForStatus("shared", now); len(list) != 0 {
		t.Errorf("something long past is remembered: %v", list)
	}
}
