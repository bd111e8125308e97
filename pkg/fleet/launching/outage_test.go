package launching

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	awserrors "github.com/aws/karpenter-provider-aws/pkg/errors"
	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// request is the prefix of the SDK's CreateFleet errors.
const request = "operation error EC2: CreateFleet, "

// failures are CreateFleet errors in the wording of the SDK and of Karpenter's AWS provider, and the scope of each.
var failures = map[string]struct {
	text  string
	about cloud.Scope
}{
	"a connection that is refused":   {request + `https response error StatusCode: 0, RequestID: , request send failed, Post "https://ec2.us-east-1.amazonaws.com/": dial tcp 10.0.0.1:443: connect: connection refused`, cloud.AboutClass},
	"a connection that is reset":     {request + `https response error StatusCode: 0, RequestID: , request send failed, Post "https://ec2.us-east-1.amazonaws.com/": read tcp 10.0.0.2:51874->10.0.0.1:443: read: connection reset by peer`, cloud.AboutClass},
	"a connection that is closed":    {request + `exceeded maximum number of attempts, 3, https response error StatusCode: 0, RequestID: , request send failed, Post "http://127.0.0.1:4566/": EOF`, cloud.AboutClass},
	"a DNS failure":                  {request + `https response error StatusCode: 0, RequestID: , request send failed, Post "https://ec2.us-east-1.amazonaws.com/": dial tcp: lookup ec2.us-east-1.amazonaws.com: i/o timeout`, cloud.AboutClass},
	"a timeout":                      {request + `https response error StatusCode: 0, RequestID: , canceled, context deadline exceeded`, cloud.AboutClass},
	"a client's timeout":             {request + `https response error StatusCode: 0, RequestID: , request send failed, Post "https://ec2.us-east-1.amazonaws.com/": net/http: request canceled (Client.Timeout exceeded while awaiting headers)`, cloud.AboutClass},
	"an HTML response":               {request + `https response error StatusCode: 503, RequestID: , deserialization failed, failed to decode response body, expected element type <Response> but have <html>`, cloud.AboutClass},
	"a truncated response":           {request + `https response error StatusCode: 200, RequestID: , deserialization failed, failed to decode response body, XML syntax error on line 1: unexpected EOF`, cloud.AboutClass},
	"an empty message":               {request + `https response error StatusCode: 503, RequestID: , api error UnknownError: UnknownError`, cloud.AboutClass},
	"an unavailable service":         {request + `https response error StatusCode: 503, RequestID: 0, api error Unavailable: The service is unavailable. Please try again shortly.`, cloud.AboutClass},
	"an error of the service":        {request + `https response error StatusCode: 500, RequestID: 0, api error InternalError: An internal error has occurred`, cloud.AboutAccount},
	"throttling":                     {request + `https response error StatusCode: 503, RequestID: 0, api error RequestLimitExceeded: Request limit exceeded.`, cloud.AboutAccount},
	"a token that has expired":       {request + `https response error StatusCode: 400, RequestID: 0, api error RequestExpired: Request has expired.`, cloud.AboutClass},
	"wrong credentials":              {request + `https response error StatusCode: 401, RequestID: 0, api error AuthFailure: AWS was not able to validate the provided access credentials`, cloud.AboutClass},
	"a missing right":                {request + `https response error StatusCode: 403, RequestID: 0, api error UnauthorizedOperation: You are not authorized to perform this operation.`, cloud.AboutClass},
	"an invalid parameter":           {request + `https response error StatusCode: 400, RequestID: 0, api error InvalidParameterValue: Value (x) for parameter y is invalid.`, cloud.AboutClass},
	"a launch template":              {request + `https response error StatusCode: 400, RequestID: 0, api error InvalidLaunchTemplateName.NotFoundException: At least one of the launch templates specified in the request does not exist.`, cloud.AboutClass},
	"a launch template's id":         {request + `https response error StatusCode: 400, RequestID: 0, api error InvalidLaunchTemplateId.NotFound: The specified launch template does not exist.`, cloud.AboutClass},
	"an image":                       {"InvalidAMIID.NotFound: The image id '[ami-0123456789abcdef0]' does not exist", cloud.AboutClass},
	"fewer instances than requested": {"too few instances returned: too few instances returned", cloud.AboutClass},
	"a spot quota among others":      {overSpot + "; " + "InvalidParameterValue: x", cloud.AboutQuota},
	"a vCPU quota among others":      {overLimit + "; " + "InvalidParameterValue: x", cloud.AboutQuota},
	"addresses among others":         {noAddresses + "; " + "InvalidParameterValue: x", cloud.AboutZones},
	"a free tier":                    {"InvalidParameterCombination: The specified instance type is not eligible for Free Tier.", cloud.AboutQuota},
	"capacity among others":          {noCapacity + "; " + "InvalidParameterValue: x", cloud.AboutClass}, // The provider reports neither.
}

// pauses reports whether a refusal pauses all launches.
func pauses(r Refusal) bool {
	return (&v1alpha1.RefusedOffering{InstanceType: r.InstanceTypes[0], Zone: r.Zones[0], CapacityType: r.CapacityType}).PausesLaunches()
}

func TestOnlyErrorsAboutOfferingRefuseIt(t *testing.T) {
	t.Parallel()
	for name, c := range failures {
		reason, _ := awserrors.ToReasonMessage(errors.New(c.text))
		if got := scopeOf(Known(reason)); got != c.about {
			t.Errorf("%s: %s is about %d, want %d", name, reason, got, c.about)
		}
		if r := NewLedger().Judge(flexible, reason, "", aCloud, now, now); pauses(r) != (c.about == cloud.AboutClass || c.about == cloud.AboutAccount) {
			t.Errorf("%s: %s refuses %+v", name, reason, r)
		}
	}
}

// failing returns a NodeClaim whose launch fails in one of the ways of an outage.
func failing(name, reason string, created time.Time) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
	if reason != v1alpha1.RefusalSilent {
		claim.Status.Conditions = []status.Condition{{Type: karpv1.ConditionTypeLaunched, Status: "Unknown", Reason: reason, Message: "Error creating fleet request"}}
	}
	return claim
}

// world launches NodeClaims of a few types during an outage of the cloud and after it.
type world struct {
	ledger *Ledger
	now    time.Time
	claims int
}

// free returns when the ledger permits launches again. It fails the test if a single offering is refused.
func (w *world) free(t *rapid.T) time.Time {
	free := w.now
	for _, r := range w.ledger.Refused()["shared"] {
		if r.Failures > 0 && !r.PausesLaunches() {
			t.Fatalf("an outage refuses an offering: %+v", r)
		}
		if r.NotBefore.After(free) {
			free = r.NotBefore.Time
		}
	}
	if quiet := w.ledger.QuietUntil(); quiet.After(free) {
		free = quiet
	}
	return free
}

// fail creates NodeClaims now and lets each fail for its reason after the reason's delay.
func (w *world) fail(t *rapid.T, shapes []Shape, reasons []string) {
	created, end := w.now, w.now
	for i, s := range shapes {
		w.claims++
		name := fmt.Sprint("claim-", w.claims)
		w.ledger.Await(name, "", s)
		if reasons[i] == v1alpha1.RefusalVanished || reasons[i] == v1alpha1.RefusalNodeClassNotReady {
			w.ledger.Refuse(s.Class, RefusalFor(s, reasons[i], "", aCloud), created.Add(time.Second))
			w.ledger.Gone(name)
			end = later(end, created.Add(time.Second))
			continue
		}
		claim := failing(name, reasons[i], created)
		at := created.Add(Decide(claim, created, time.Minute).Again)
		d := Decide(claim, at, time.Minute)
		if d.Verdict != Hung {
			t.Fatalf("a claim that fails for %s is not given up: %+v", reasons[i], d)
		}
		w.ledger.Refuse(s.Class, w.ledger.Judge(s, d.Reason, d.Message, aCloud, created, at), at)
		if d.Held {
			w.ledger.Quiet(at)
		}
		w.ledger.Gone(name)
		end = later(end, at)
	}
	w.now = end
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// launch lets the launch of one NodeClaim succeed.
func (w *world) launch(s Shape) {
	w.claims++
	name := fmt.Sprint("claim-", w.claims)
	w.ledger.Await(name, "", s)
	w.now = w.now.Add(2 * time.Second)
	w.ledger.Launched(name, s.Class, s.InstanceTypes[0], s.Zones[0], s.CapacityType, w.now)
}

// outages are the reasons that occur during an outage of the cloud, and how long launches pause for each of them.
var outages = map[string]time.Duration{
	v1alpha1.RefusalLaunchFailed: cloud.LongestPause, v1alpha1.RefusalSilent: cloud.LongestPause, v1alpha1.RefusalVanished: cloud.LongestPause,
	v1alpha1.RefusalNodeClassNotReady: cloud.LongestPause, "InternalError": cloud.LongestPause, "InstanceTypeResolutionFailed": cloud.LongestPause,
	"NodeClassReadinessUnknown": cloud.LongestPause, "RequestLimitExceeded": 5 * time.Minute, "Unauthorized": 5 * time.Minute,
}

// TestOutageRefusesNoOfferingAndLaunchesResumeSoon checks that no outage, not even a repeated one, makes the ledger refuse an offering, and that launches
// resume soon after it ends.
func TestOutageRefusesNoOfferingAndLaunchesResumeSoon(t *testing.T) {
	t.Parallel()
	var reasons []string
	for reason := range outages {
		reasons = append(reasons, reason)
	}
	rapid.Check(t, func(t *rapid.T) {
		w, types := &world{ledger: NewLedger(), now: now}, rapid.SampledFrom([]string{"g4dn.xlarge", "g4dn.2xlarge", "g5.xlarge"})
		for range rapid.IntRange(1, 2).Draw(t, "outages") {
			longest := time.Duration(0)
			for range rapid.IntRange(1, 12).Draw(t, "rounds") {
				var shapes []Shape
				var why []string
				for range rapid.IntRange(1, 10).Draw(t, "claims") {
					reason := rapid.SampledFrom(reasons).Draw(t, "reason")
					shapes, why = append(shapes, shape(types.Draw(t, "type"))), append(why, reason)
					longest = max(longest, outages[reason])
				}
				w.fail(t, shapes, why)
				if wait := w.free(t).Sub(w.now); wait > longest*11/10+time.Second {
					t.Fatalf("launches pause for %s after %v", wait, why)
				}
				if rapid.Bool().Draw(t, "restart") {
					status := w.ledger.ForStatus("shared", w.now)
					w.ledger = NewLedger()
					w.ledger.Learn("shared", status, w.now)
				}
				w.now = w.free(t)
			}
			// The outage is over.
			w.launch(shape(types.Draw(t, "first")))
			for _, r := range w.ledger.Refused()["shared"] {
				if w.now.Before(r.NotBefore.Time) {
					t.Fatalf("launches pause although one has succeeded: %+v", r)
				}
			}
			w.now = w.now.Add(time.Duration(rapid.IntRange(0, 3600).Draw(t, "seconds")) * time.Second)
		}
	})
}

func TestTypeIsRefusedOnceOnlyItFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// steps are launches: - fails and + succeeds. Those in parentheses are of another type. z lets a long time pass.
		steps string
		want  bool
	}{
		"not if nothing succeeds":                                    {"-----------", false},
		"not after two failures":                                     {"-(+)-", false},
		"after three failures while another type succeeds each time": {"-(+)-(+)-", true},
		"after several failures while another type rarely succeeds":  {"--(+)---(+)-", true},
		"not by one outage before and one after a success":           {"-----(+)------", false},
		"not if the other type succeeded before":                     {"(+)---", false},
		"not if the type succeeded in between":                       {"-(+)-+-(+)-", false},
		"not if the other types fail too":                            {"-(-)-(-)-", false},
		"not by old failures":                                        {"-(+)-(+)z-", false},
		"again after as many further failures":                       {"-(+)-(+)-(+)-(+)-(+)-", true},
		"not by the next failure after a refusal":                    {"-(+)-(+)-(+)-", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, at, other, got := NewLedger(), now, false, false
			for _, step := range c.steps {
				s := shape("g4dn.xlarge")
				if other {
					s = shape("g5.xlarge")
				}
				switch step {
				case '(', ')':
					other = step == '('
					continue
				case 'z':
					at = at.Add(blameWithin)
				case '+':
					at = at.Add(2 * time.Second)
					l.Launched("claim", s.Class, s.InstanceTypes[0], s.Zones[0], s.CapacityType, at)
				case '-':
					created := at.Add(time.Second)
					at = created.Add(cloud.FailingGrace)
					var r Refusal
					for range 4 { // The NodeClaims of one plan count as one failure.
						r = l.Judge(s, v1alpha1.RefusalLaunchFailed, "", aCloud, created, at)
						if got = got && s.InstanceTypes[0] != "g4dn.xlarge"; r.Reason == v1alpha1.RefusalTypeFailing {
							got = true
							break
						}
					}
				}
			}
			if got != c.want {
				t.Errorf("set aside: %t, want %t", got, c.want)
			}
		})
	}
}

// everyCause returns the causes of all reasons, also those of the clouds.
func everyCause() map[string]cloud.Cause {
	all := maps.Clone(causes)
	for _, p := range clouds.All {
		maps.Copy(all, p.Causes)
	}
	return all
}
