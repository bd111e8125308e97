package launch

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
		want  decision
	}{
		"a new claim is waited for":                    {age: time.Second, want: decision{verdict: wait, again: 59 * time.Second}},
		"a queued claim is waited for":                 {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: 59 * time.Second, want: decision{verdict: wait, again: time.Second}},
		"a claim without conditions hangs":             {age: time.Minute, want: decision{verdict: hung, reason: "NotLaunched", message: "see that Karpenter runs, and that the cloud answers it", held: true}},
		"a claim queued for too long hangs":            {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: time.Minute, want: decision{verdict: hung, reason: "NotLaunched", message: "see that Karpenter runs", held: true}},
		"a claim whose launch fails gets a second try": {edits: edits(saying("Unknown", "LaunchFailed")), age: 14 * time.Second, want: decision{verdict: wait, again: time.Second}},
		"a claim whose launch still fails hangs":       {edits: edits(saying("Unknown", "LaunchFailed")), age: 15 * time.Second, want: decision{verdict: hung, reason: "LaunchFailed", message: "LaunchFailed: words of the cloud; Karpenter's log has the error", held: true}},
		"a claim with Launched=False hangs": {
			edits: edits(saying("False", "LaunchFailed")), age: 15 * time.Second, want: decision{verdict: hung, reason: "LaunchFailed", message: "words of the cloud", held: true},
		},
		"an unknown reason is a failed launch": {
			edits: edits(saying("Unknown", "NewInKarpenter2")), age: 15 * time.Second, want: decision{verdict: hung, reason: "LaunchFailed", message: "NewInKarpenter2: words of the cloud", held: true},
		},
		"a permanent error is given up at once": {
			edits: edits(saying("Unknown", "Unauthorized")), age: time.Second, want: decision{verdict: hung, reason: "Unauthorized", message: "Unauthorized: words of the cloud"},
		},
		"a throttled claim waits for the full timeout": {edits: edits(saying("Unknown", "RequestLimitExceeded")), age: 59 * time.Second, want: decision{verdict: wait, again: time.Second}},
		"a throttled claim hangs after the timeout": {
			edits: edits(saying("Unknown", "RequestLimitExceeded")), age: time.Minute, want: decision{verdict: hung, reason: "RequestLimitExceeded", message: "words of the cloud", held: true},
		},
		"a late launch counts as launched":              {edits: edits(saying("True", "Launched")), age: time.Hour, want: decision{verdict: launched}},
		"a deleted launched claim is leaving":           {edits: edits(saying("True", "Launched"), deleted), age: time.Second, want: decision{verdict: leaving}},
		"a claim deleted before launch is refused":      {edits: edits(deleted), age: time.Second, want: decision{verdict: refused, message: "given up before it was launched"}},
		"a hung claim deleted before launch is refused": {edits: edits(saying("Unknown", "AMINotFound"), deleted), age: time.Hour, want: decision{verdict: refused, reason: "AMINotFound", message: "AMINotFound: words"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
			for _, edit := range c.edits {
				edit(claim)
			}
			got := decide(claim, now.Add(c.age), time.Minute)
			if !strings.Contains(got.message, c.want.message) || (got.message == "") != (c.want.message == "") {
				t.Errorf("the message is %q, want %q", got.message, c.want.message)
			}
			if got.message = c.want.message; got != c.want {
				t.Errorf("decide = %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestShortTimeoutAppliesToFailingLaunches(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
	claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "LaunchFailed"}}
	if got := decide(claim, now.Add(5*time.Second), 5*time.Second); got.verdict != hung {
		t.Errorf("decide = %+v, want hung", got)
	}
}

func edits(e ...func(*karpv1.NodeClaim)) []func(*karpv1.NodeClaim) { return e }
