package launching

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func shape(instanceType string) Shape {
	return Shape{Class: "shared", Pool: "gpu", InstanceTypes: []string{instanceType}, Zones: []string{"us-east-1a"}, CapacityType: "on-demand"}
}

// refuse records a refusal with the reason. It returns the ledger's entry and whether it is new.
func refuse(l *Ledger, instanceType, reason, message string, at time.Time) (v1alpha1.RefusedOffering, bool) {
	r := RefusalFor(shape(instanceType), reason, message, Cloud{})
	news := l.Refuse("shared", r, at)
	if len(news) > 0 {
		return news[0], true
	}
	for _, known := range l.Refused()["shared"] {
		if known.InstanceType == r.InstanceTypes[0] && known.Zone == r.Zones[0] && known.CapacityType == r.CapacityType {
			return known, false
		}
	}
	return v1alpha1.RefusedOffering{}, false
}

const (
	ice  = v1alpha1.RefusalInsufficientCapacity
	hang = v1alpha1.RefusalSilent
)

// refusal returns the ledger's only refusal.
func refusal(t *testing.T, l *Ledger, at time.Time) v1alpha1.RefusedOffering {
	t.Helper()
	list := l.ForStatus("shared", at)
	if len(list) != 1 {
		t.Fatalf("the ledger remembers %d refusals, want 1: %v", len(list), list)
	}
	return list[0]
}

func TestBackoffOfRefusedOfferingDoublesUpToAnHour(t *testing.T) {
	t.Parallel()
	l, at := NewLedger(), now
	for i, seconds := range []int{195, 390, 780, 1560, 3120, 3600, 3600} {
		r, news := refuse(l, "g4dn.xlarge", ice, "no capacity", at)
		least := time.Duration(seconds) * time.Second
		if got := r.NotBefore.Sub(at); got < least || got > least+least/10+time.Second || !news || r.Failures != int32(i)+1 {
			t.Errorf("refusal %d: left alone for %s, failures %d, news %t; want %s and up to a tenth more, %d, true", i+1, got, r.Failures, news, least, i+1)
		}
		at = r.NotBefore.Time
	}
}

func TestEachReasonHasItsOwnBackoff(t *testing.T) {
	t.Parallel()
	for reason, c := range everyCause() {
		r, _ := refuse(NewLedger(), "g4dn.xlarge", reason, "", now)
		if got := r.NotBefore.Sub(now); got < c.First || got > c.First+c.First/10+time.Second || r.Reason != reason {
			t.Errorf("%s is left alone for %s for %s, want %s", reason, got, r.Reason, c.First)
		}
	}
}

func TestBackoffHasJitter(t *testing.T) {
	t.Parallel()
	l, ends := NewLedger(), map[time.Time]bool{}
	for i := range 20 {
		r, _ := refuse(l, fmt.Sprint("type-", i), ice, "", now)
		ends[r.NotBefore.Time] = true
	}
	if len(ends) < 5 {
		t.Errorf("20 offerings are tried again at %d times", len(ends))
	}
}

func TestClaimsRefusedTogetherCountAsOneFailure(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{ice, hang, "Unauthorized"} {
		l := NewLedger()
		first, _ := refuse(l, "g4dn.xlarge", reason, "first", now)
		for i := range 9 {
			r, news := refuse(l, "g4dn.xlarge", reason, "another", now.Add(time.Duration(i)*time.Second))
			if news || !cmp.Equal(r, first) {
				t.Errorf("%s: refusal %d of the plan is news (%t) or changes %v to %v", reason, i+2, news, first, r)
			}
		}
	}
}

func TestPauseForVanishedClaimEndsOnceExplained(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	vanished := RefusalFor(shape("g4dn.xlarge"), v1alpha1.RefusalVanished, "vanished", Cloud{})
	for _, claim := range []string{"gpu-1", "gpu-2"} {
		l.Await(claim, "", shape("g4dn.xlarge"))
		l.Refuse("shared", vanished, now)
		l.Lose(claim, now)
	}
	if r := refusal(t, l, now); !r.PausesLaunches() || r.Failures != 1 || r.NotBefore.Sub(now) > 20*time.Second {
		t.Fatalf("vanished claims refuse %+v, want a short pause", r)
	}
	l.Explain("gpu-1", "shared")
	l.Gone("gpu-1")
	if r := refusal(t, l, now); !r.PausesLaunches() {
		t.Errorf("the pause ended before the last claim was explained: %+v", r)
	}
	l.Explain("gpu-2", "shared")
	if list := l.ForStatus("shared", now); len(list) != 0 {
		t.Errorf("the pause goes on: %+v", list)
	}
	if r, news := refuse(l, "g4dn.xlarge", ice, "no capacity", now); !news || r.Failures != 1 {
		t.Errorf("the explanation is no news: %+v", r)
	}
}

func TestExplanationOfVanishedClaimIsNoNewFailure(t *testing.T) {
	t.Parallel()
	for _, late := range []time.Duration{0, 10 * time.Second, Explained} {
		l := NewLedger()
		refuse(l, "g4dn.xlarge", v1alpha1.RefusalVanished, "vanished", now)
		if r, news := refuse(l, "g4dn.xlarge", "Unauthorized", "no rights", now.Add(late)); !news || r.Failures != 1 || r.Reason != "Unauthorized" {
			t.Errorf("explained after %s: news %t, %+v; want failure 1", late, news, r)
		}
	}
}

// One outage can cause several kinds of failures, and not all of them concern a generation of the node class.
func TestOutageWithSeveralSymptomsBacksOff(t *testing.T) {
	t.Parallel()
	l, at := NewLedger(), now
	for i, reason := range []string{v1alpha1.RefusalLaunchFailed, hang, "InternalError", v1alpha1.RefusalLaunchFailed, hang} {
		r := RefusalFor(shape("g4dn.xlarge"), reason, "", Cloud{Generation: 3})
		for range 3 { // the NodeClaims of one plan
			l.Refuse("shared", r, at)
		}
		if got := refusal(t, l, at); got.Failures != int32(i)+1 || !got.PausesLaunches() {
			t.Errorf("round %d: %+v, want as many failures", i+1, got)
		}
		at = refusal(t, l, at).NotBefore.Time
	}
	if news := l.Refuse("shared", RefusalFor(shape("g4dn.xlarge"), "Unauthorized", "", Cloud{Generation: 3}), at.Add(-time.Second)); len(news) != 0 {
		t.Errorf("a refusal during a pause is news: %+v", news)
	}
}

func TestRefusalOfChangedNodeClassIsNew(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	refused := func(generation int64) []v1alpha1.RefusedOffering {
		return l.Refuse("shared", RefusalFor(shape("g4dn.xlarge"), "AMINotFound", "", Cloud{Generation: generation}), now)
	}
	for _, generation := range []int64{1, 2} {
		news := refused(generation)
		if len(news) != 1 || news[0].NodeClassGeneration != generation || news[0].Failures != 1 || news[0].InstanceType != v1alpha1.Any {
			t.Errorf("generation %d: %+v", generation, news)
		}
		if len(refused(generation)) != 0 {
			t.Errorf("generation %d is refused twice", generation)
		}
	}
}

func TestFailureCountResetsAnHourAfterBackoff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration
		want  int32
	}{
		"a moment before": {memory - time.Second, 2},
		"an hour later":   {memory, 1},
	} {
		l := NewLedger()
		first, _ := refuse(l, "g4dn.xlarge", ice, "", now)
		at := first.NotBefore.Add(c.after)
		if c.want == 1 {
			// It makes no difference whether the status was written in between.
			clone := NewLedger()
			clone.Learn("shared", l.ForStatus("shared", now), now)
			if list := clone.ForStatus("shared", at); len(list) != 0 {
				t.Errorf("%s: the status still holds %v", name, list)
			}
		}
		if r, _ := refuse(l, "g4dn.xlarge", ice, "", at); r.Failures != c.want {
			t.Errorf("%s: %d failures, want %d", name, r.Failures, c.want)
		}
	}
}

func TestRefusalCoversEveryOfferingThatClaimPermits(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	if news := l.Refuse("shared", Attribute(flexible, noCapacity, aCloud)[0], now); len(news) != 4 {
		t.Errorf("%d offerings were refused, want two types in two zones: %v", len(news), news)
	}
	l.Await("gpu-1", "", flexible)
	l.Launched("gpu-1", "shared", "g4dn.2xlarge", "us-east-1b", "spot", now)
	if list := l.ForStatus("shared", now); len(list) != 3 {
		t.Errorf("%v are left, want all but what was launched", list)
	}
}

func TestQuiet(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	refuse(l, "g4dn.xlarge", ice, "no capacity", now)
	if until := l.QuietUntil(); !until.IsZero() {
		t.Errorf("quiet until %s before anything was held up", until)
	}
	l.Quiet(now)
	if until := l.QuietUntil(); !until.Equal(now.Add(time.Minute)) {
		t.Errorf("quiet until %s, want a minute", until)
	}
}

func TestLedgerWaitsBrieflyForVanishedClaim(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	l.Await("gpu-1", "", shape("g4dn.xlarge"))
	l.Await("gpu-2", "", shape("g4dn.xlarge"))
	if l.Vanished(sets.New("gpu-1", "gpu-2", "other").Has, now) {
		t.Error("existing claims count as vanished")
	}
	if !l.Vanished(sets.New("gpu-1").Has, now) || !l.Vanished(sets.New("gpu-1").Has, now.Add(noted-1)) {
		t.Error("a claim that is gone does not count as vanished")
	}
	if l.Vanished(sets.New("gpu-1").Has, now.Add(noted)) {
		t.Error("the ledger still waits for a claim after it was gone for long")
	}
	l.Gone("gpu-2")
	if l.Vanished(sets.New("gpu-1").Has, now) {
		t.Error("the ledger waits for a claim whose end is noted")
	}
}

func TestRestartedLedgerLearnsFromStatus(t *testing.T) {
	t.Parallel()
	before := NewLedger()
	refuse(before, "g4dn.xlarge", ice, "no capacity", now)
	refuse(before, "g4dn.2xlarge", hang, "says nothing", now)
	after := NewLedger()
	after.Learn("shared", before.ForStatus("shared", now), now)
	if diff := cmp.Diff(before.ForStatus("shared", now), after.ForStatus("shared", now)); diff != "" {
		t.Errorf("what was learnt differs (-before +after):\n%s", diff)
	}
	if r, _ := refuse(after, "g4dn.xlarge", ice, "no capacity", now.Add(providersMemory*2)); r.Failures != 2 {
		t.Errorf("the next failure is number %d, want 2", r.Failures)
	}
	// A status that was read before the last write does not undo that write.
	after.Learn("shared", before.ForStatus("shared", now), now)
	if list := after.Refused()["shared"]; !slices.ContainsFunc(list, func(r v1alpha1.RefusedOffering) bool { return r.Failures == 2 }) {
		t.Errorf("an old status undid a refusal: %v", list)
	}
}

func TestClockSkewDoesNotExtendRefusal(t *testing.T) {
	t.Parallel()
	lasts := func(ahead time.Duration) time.Duration {
		before, after := NewLedger(), NewLedger()
		refuse(before, "g4dn.xlarge", ice, "no capacity", now.Add(ahead))
		after.Learn("shared", before.ForStatus("shared", now), now)
		return refusal(t, after, now).NotBefore.Sub(now)
	}
	usual := lasts(0)
	for ahead, want := range map[time.Duration]time.Duration{time.Hour: usual, -time.Minute: usual - time.Minute} {
		if got := lasts(ahead); got != want {
			t.Errorf("written by a clock %s ahead it lasts for %s, want %s", ahead, got, want)
		}
	}
}

func TestSuccessfulLaunchClearsRefusals(t *testing.T) {
	t.Parallel()
	l, s := NewLedger(), shape("g4dn.xlarge")
	refuse(l, "g4dn.xlarge", ice, "no capacity", now)
	refuse(l, "g4dn.xlarge", hang, "says nothing", now)
	refuse(l, "g4dn.2xlarge", ice, "no capacity", now)
	status := l.ForStatus("shared", now)

	l.Launched("seen-launched-after-a-restart", "shared", "g4dn.xlarge", "us-east-1a", "on-demand", now)
	if list := l.ForStatus("shared", now); len(list) != 3 {
		t.Errorf("a claim that was launched before the refusals took them away: %v", list)
	}
	l.Await("gpu-1", "", s)
	l.Launched("gpu-1", "shared", "g4dn.xlarge", "us-east-1a", "on-demand", now)
	l.Learn("shared", status, now) // The status does not have the launch yet.
	if r := refusal(t, l, now); r.InstanceType != "g4dn.2xlarge" {
		t.Errorf("%v is left, want g4dn.2xlarge alone", r)
	}
	for _, r := range l.Refused()["shared"] {
		if r.InstanceType == "g4dn.xlarge" && now.Before(r.NotBefore.Time) {
			t.Errorf("%v still holds g4dn.xlarge back", r)
		}
	}
	if r, _ := refuse(l, "g4dn.xlarge", ice, "no capacity", now); r.Failures != 1 {
		t.Errorf("the next failure is number %d, want 1", r.Failures)
	}
}

func TestClaimIsAwaitedUntilGoneOrLaunched(t *testing.T) {
	t.Parallel()
	l, s := NewLedger(), shape("g4dn.xlarge")
	awaited := func() bool { _, ok := l.awaited["gpu-1"]; return ok }
	if !l.Await("gpu-1", "", s) || l.Await("gpu-1", "", s) || !awaited() {
		t.Error("a claim is news once, and awaited")
	}
	l.Name("gpu-1", "uid")
	if e, lost, ok := l.Unlaunched("gpu-1"); !ok || lost || e.UID != "uid" || !cmp.Equal(e.Shape, s) {
		t.Errorf("unlaunched is %+v, %t, %t", e, lost, ok)
	}
	l.Lose("gpu-1", now)
	if e, lost, ok := l.Unlaunched("gpu-1"); !ok || !lost || e.UID != "uid" || !e.Missing.Equal(now) || awaited() {
		t.Errorf("lost is %+v, %t, %t", e, lost, ok)
	}
	if l.Await("gpu-1", "another", s); !awaited() {
		t.Error("a claim of the same name is not awaited")
	}
	if e, lost, _ := l.Unlaunched("gpu-1"); lost || e.UID != "another" {
		t.Error("it is taken for the lost one")
	}
	l.Gone("gpu-1")
	if _, _, ok := l.Unlaunched("gpu-1"); ok {
		t.Error("a claim that is gone is still awaited")
	}
	l.Await("gpu-1", "", s)
	l.Launched("gpu-1", "shared", "g4dn.xlarge", "us-east-1a", "on-demand", now)
	if awaited() {
		t.Error("a claim that was launched is awaited")
	}
}

func TestLedgerKnowsEarlierClaimOfThatName(t *testing.T) {
	t.Parallel()
	l, now := NewLedger(), time.Now()
	want := func(uid, earlier types.UID) {
		t.Helper()
		if e, _, ok := l.Unlaunched("claim"); !ok || e.UID != uid || e.Earlier != earlier {
			t.Errorf("awaited is %+v, %v, want %s after %s", e, ok, uid, earlier)
		}
	}
	l.Await("claim", "", Shape{})
	l.Name("claim", "first")
	l.Await("claim", "first", Shape{})
	want("first", "")
	l.Lose("claim", now)
	l.Await("claim", "", Shape{})
	want("", "first")
	l.Name("claim", "second")
	l.Await("claim", "second", Shape{})
	want("second", "first")
	l.Lose("claim", now)
	want("second", "first")
	l.Await("claim", "third", Shape{})
	want("third", "second")
	l.Gone("claim")
	l.Await("claim", "fourth", Shape{})
	want("fourth", "")
}

func TestStatusHoldsLatestRefusals(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	for i := range 270 {
		refuse(l, fmt.Sprintf("type-%03d", i), ice, "", now.Add(time.Duration(i)*time.Minute))
	}
	list := l.ForStatus("shared", now.Add(2*time.Minute))
	if len(list) != 250 || list[0].InstanceType != "type-269" || list[249].InstanceType != "type-020" {
		t.Errorf("%d refusals from %s to %s, want 250 from type-269 to type-020", len(list), list[0].InstanceType, list[len(list)-1].InstanceType)
	}
	if n := len(l.Refused()["shared"]); n != 270 {
		t.Errorf("the ledger itself knows %d, want all 270", n)
	}
}

func TestMessageIsTruncatedToValidUTF8(t *testing.T) {
	t.Parallel()
	r, _ := refuse(NewLedger(), "g4dn.xlarge", ice, strings.Repeat("é", maxMessage), now)
	if len(r.Message) > maxMessage || !utf8.ValidString(r.Message) {
		t.Errorf("%d bytes, valid %t", len(r.Message), utf8.ValidString(r.Message))
	}
}

// TestRefusedOfferingIsNotRetriedBeforeBackoffEnds checks for any sequence of events that no offering is retried before the backoff of its reason ends, that failures
// increase by one, and that nothing is remembered for longer than its backoff plus an hour.
func TestRefusedOfferingIsNotRetriedBeforeBackoffEnds(t *testing.T) {
	t.Parallel()
	reasons := slices.Sorted(maps.Keys(everyCause()))
	rapid.Check(t, func(t *rapid.T) {
		l, at := NewLedger(), now
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			at = at.Add(time.Duration(rapid.IntRange(0, 4_000_000).Draw(t, "milliseconds")) * time.Millisecond)
			instanceType := rapid.SampledFrom([]string{"g4dn.xlarge", "g4dn.2xlarge"}).Draw(t, "type")
			switch rapid.SampledFrom([]string{"refuse", "launch", "restart"}).Draw(t, "step") {
			case "refuse":
				reason := rapid.SampledFrom(reasons).Draw(t, "reason")
				cause, _ := causeOf(reason)
				switch r, news := refuse(l, instanceType, reason, "no", at); {
				case news && (r.NotBefore.Sub(at) < cause.First || r.NotBefore.Sub(at) > cause.Most*11/10+time.Second):
					t.Fatalf("refused for %s at %s and left alone until %s", reason, at, r.NotBefore)
				case !news && !r.NotBefore.After(at):
					t.Fatalf("an offering that may be tried was refused at %s, and that is no news: %v", at, r)
				}
			case "launch":
				claim := fmt.Sprint("claim-", i)
				l.Await(claim, "", shape(instanceType))
				l.Launched(claim, "shared", instanceType, "us-east-1a", "on-demand", at)
				for _, r := range l.Refused()["shared"] {
					if at.Before(r.NotBefore.Time) && (r.InstanceType == instanceType || r.InstanceType == v1alpha1.Any) {
						t.Fatalf("%s was launched and is not trusted: %v", instanceType, r)
					}
				}
			case "restart":
				status := l.ForStatus("shared", at)
				l = NewLedger()
				l.Learn("shared", status, at)
			}
			for _, r := range l.ForStatus("shared", at) {
				if r.Failures < 1 || r.NotBefore.Add(memory).Before(at) {
					t.Fatalf("at %s the status holds %v", at, r)
				}
			}
		}
	})
}

func TestLearnIgnoresEmptyAndExpiredStatus(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	l.Learn("shared", nil, now)
	l.Learn("shared", []v1alpha1.RefusedOffering{{InstanceType: "old", Zone: "*", CapacityType: "*", Failures: 5, NotBefore: metav1.NewTime(now.Add(-2 * time.Hour))}}, now)
	if list := l.ForStatus("shared", now); len(list) != 0 {
		t.Errorf("something long past is remembered: %v", list)
	}
}

// A NodeClaim that another client creates can have any requirements, because the CRD does not validate their values.
func TestLedgerDropsRefusalsThatStatusCannotHold(t *testing.T) {
	t.Parallel()
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprint("type-", i)
	}
	for name, c := range map[string]struct {
		instanceTypes, zones []string
		capacityType         string
		want                 int
		as                   string
	}{
		"an offering":                           {[]string{"g4dn.xlarge"}, []string{"us-east-1a"}, "spot", 1, "spot"},
		"any capacity type":                     {[]string{"g4dn.xlarge"}, []string{"us-east-1a"}, "", 1, v1alpha1.Any},
		"an unknown capacity type":              {[]string{"g4dn.xlarge"}, []string{"us-east-1a"}, "borrowed", 0, ""},
		"an empty and an unknown instance type": {[]string{"", strings.Repeat("x", 64), "g4dn.xlarge"}, []string{strings.Repeat("z", 64), "us-east-1a"}, "spot", 1, "spot"},
		"more offerings than exist":             {many, many, "spot", maxOfferings, "spot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := NewLedger()
			news := l.Refuse("shared", Refusal{InstanceTypes: c.instanceTypes, Zones: c.zones, CapacityType: c.capacityType, Reason: ice}, now)
			if len(news) != c.want || len(l.Refused()["shared"]) != c.want || c.want > 0 && news[0].CapacityType != c.as {
				t.Errorf("%d are new, and %d remembered, want %d: %v", len(news), len(l.Refused()["shared"]), c.want, news[:min(len(news), 2)])
			}
		})
	}
}

func TestFailureCountSaturates(t *testing.T) {
	t.Parallel()
	l := NewLedger()
	r, _ := refuse(l, "g4dn.xlarge", ice, "", now)
	r.Failures = math.MaxInt32
	l = NewLedger()
	l.Learn("shared", []v1alpha1.RefusedOffering{r}, now)
	if again, _ := refuse(l, "g4dn.xlarge", ice, "", r.NotBefore.Time); again.Failures != math.MaxInt32 {
		t.Errorf("it failed %d times", again.Failures)
	}
}
