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
		edits   []func(*karpv1.NodeClaim)
		age     time.Duration
		want    verdict
		message string
		again   time.Duration
	}{
		"a new claim is waited for":                             {age: time.Second, want: wait, again: 59 * time.Second},
		"a claim that waits its turn is waited for":             {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: 59 * time.Second, want: wait, again: time.Second},
		"a claim of which nothing is heard hangs":               {age: time.Minute, want: hung, message: "says nothing; see that Karpenter runs"},
		"so does one that waits its turn for too long":          {edits: edits(saying("Unknown", "AwaitingReconciliation")), age: time.Minute, want: hung, message: "says nothing"},
		"a claim whose launch fails gets a second try":          {edits: edits(saying("Unknown", "LaunchFailed")), age: 14 * time.Second, want: wait, again: time.Second},
		"and hangs then":                                        {edits: edits(saying("Unknown", "LaunchFailed")), age: 15 * time.Second, want: hung, message: "LaunchFailed: words of the cloud"},
		"a launch that is said to have failed hangs as well":    {edits: edits(saying("False", "LaunchFailed")), age: 15 * time.Second, want: hung, message: "words of the cloud"},
		"a machine that is made is launched, however late":      {edits: edits(saying("True", "Launched")), age: time.Hour, want: launched},
		"a launched claim that is deleted was launched":         {edits: edits(saying("True", "Launched"), deleted), age: time.Second, want: launched},
		"a claim that is deleted before it is launched refused": {edits: edits(deleted), age: time.Second, want: refused, message: "given up before it was launched"},
		"also when it had hung":                                 {edits: edits(saying("Unknown", "LaunchFailed"), deleted), age: time.Hour, want: refused, message: "given up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
			for _, edit := range c.edits {
				edit(claim)
			}
			got, message, again := decide(claim, now.Add(c.age), time.Minute)
			if got != c.want || again != c.again || !strings.Contains(message, c.message) || (message == "") != (c.message == "") {
				t.Errorf("decide = %d, %q, %s; want %d, %q, %s", got, message, again, c.want, c.message, c.again)
			}
		})
	}
}

func TestAShortTimeoutHoldsForFailingLaunchesToo(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", CreationTimestamp: metav1.NewTime(now)}}
	claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: "LaunchFailed"}}
	if got, _, _ := decide(claim, now.Add(5*time.Second), 5*time.Second); got != hung {
		t.Errorf("decide = %d, want hung", got)
	}
}

func edits(e ...func(*karpv1.NodeClaim)) []func(*karpv1.NodeClaim) { return e }
