package launching

import (
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	saying := func(s metav1.ConditionStatus, reason string) func(*karpv1.NodeClaim) {
		return func(claim *karpv1.NodeClaim) {
			claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: s, Reason: reason, Message: "words of the cloud"}}
		}
	}
	deleted := func(claim *karpv1.NodeClaim) { claim.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, c := range map[string]struct {
		edits []func(*karpv1.NodeClaim)
		age   time.Duration
		want  Decision
	}{
		"a new claim is waited for":                    {age: time.Second, want: Decision{Verdict: Wait, Again: 59 * time.Second}},
		"a queued claim is waited for":                 {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: 59 * time.Second, want: Decision{Verdict: Wait, Again: time.Second}},
		"a claim without conditions hangs":             {age: time.Minute, want: Decision{Verdict: Hung, Reason: "NotLaunched", Message: "see that Karpenter runs, and that the cloud answers it", Held: true}},
		"a claim queued for too long hangs":            {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: time.Minute, want: Decision{Verdict: Hung, Reason: "NotLaunched", Message: "see that Karpenter runs", Held: true}},
		"a claim whose launch fails gets a second try": {edits: edits(saying("Unknown", "LaunchFailed")), age: 14 * time.Second, want: Decision{Verdict: Wait, Again: time.Second}},
		"a claim whose launch still fails hangs":       {edits: edits(saying("Unknown", "LaunchFailed")), age: 15 * time.Second, want: Decision{Verdict: Hung, Reason: "LaunchFailed", Message: "LaunchFailed: words of the cloud; Karpenter's log has the error", Held: true}},
		"a claim with Launched=False hangs": {
			edits: edits(saying("False", "LaunchFailed")), age: 15 * time.Second, want: Decision{Verdict: Hung, Reason: "LaunchFailed", Message: "words of the cloud", Held: true},
		},
		"an unknown reason is a failed launch": {
			edits: edits(saying("Unknown", "NewInKarpenter2")), age: 15 * time.Second, want: Decision{Verdict: Hung, Reason: "LaunchFailed", Message: "NewInKarpenter2: words of the cloud", Held: true},
		},
		"a permanent error is given up at once": {
			edits: edits(saying("Unknown", "Unauthorized")), age: time.Second, want: Decision{Verdict: Hung, Reason: "Unauthorized", Message: "Unauthorized: words of the cloud"},
		},
		"a throttled claim waits for the full timeout": {edits: edits(saying("Unknown", "RequestLimitExceeded")), age: 59 * time.Second, want: Decision{Verdict: Wait, Again: time.Second}},
		"a throttled claim hangs after the timeout": {
			edits: edits(saying("Unknown", "RequestLimitExceeded")), age: time.Minute, want: Decision{Verdict: Hung, Reason: "RequestLimitExceeded", Message: "words of the cloud", Held: true},
		},
		"a late launch counts as launched":              {edits: edits(saying("True", "Launched")), age: time.Hour, want: Decision{Verdict: Launched}},
		"a deleted launched claim is leaving":           {edits: edits(saying("True", "Launched"), deleted), age: time.Second, want: Decision{Verdict: Leaving}},
		"a claim deleted before launch is refused":      {edits: edits(deleted), age: time.Second, want: Decision{Verdict: Refused, Message: "given up before it was launched"}},
		"a hung claim deleted before launch is refused": {edits: edits(saying("Unknown", "AMINotFound"), deleted), age: time.Hour, want: Decision{Verdict: Refused, Reason: "AMINotFound", Message: "AMINotFound: words"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
			for _, edit := range c.edits {
				edit(claim)
			}
			got := Decide(claim, now.Add(c.age), time.Minute)
			if !strings.Contains(got.Message, c.want.Message) || (got.Message == "") != (c.want.Message == "") {
				t.Errorf("the message is %q, want %q", got.Message, c.want.Message)
			}
			if got.Message = c.want.Message; got != c.want {
				t.Errorf("decide = %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestShortTimeoutAppliesToFailingLaunches(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
	claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "LaunchFailed"}}
	if got := Decide(claim, now.Add(5*time.Second), 5*time.Second); got.Verdict != Hung {
		t.Errorf("decide = %+v, want hung", got)
	}
}

func edits(e ...func(*karpv1.NodeClaim)) []func(*karpv1.NodeClaim) { return e }
