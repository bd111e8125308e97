package booking

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/words"
)

// templatesWithin is how long after a request its PodTemplates may appear. Caches may show the request first.
const templatesWithin = time.Minute

// maxMessage is the largest length of the message of a condition. Kueue copies it into the status of a Workload.
const maxMessage = 1000

// maxNamed is how many nodes a message names.
const maxNamed = 5

// Reasons of conditions. Those of the first group are Cluster Autoscaler's.
const (
	accepted       = "Accepted"
	found          = "CapacityIsFound"
	notFound       = "CapacityIsNotFound"
	provisioned    = "CapacityIsProvisioned"
	bookingExpired = "CapacityReservationTimeExpired"
	expired        = "Expired"

	coming          = "NodesAreStarting"
	nothingFits     = "NothingFits"
	capacityGone    = "CapacityGone"
	templateMissing = "PodTemplateNotFound"
	noGPU           = "NoSharedGPU"
	tooManyPods     = "TooManyPods"
	waitsForOthers  = "OtherRequestsFirst"
)

// Next returns the conditions that a request gets, which are those that differ from the ones that it has.
func Next(f Facts) []metav1.Condition {
	r := f.Request
	var next []metav1.Condition
	set := func(condition string, status metav1.ConditionStatus, reason, message string) {
		next = append(next, metav1.Condition{Type: condition, Status: status, Reason: reason, Message: plain.Shorten(message, maxMessage), ObservedGeneration: r.Generation})
	}
	yes := func(condition, reason, message string) { set(condition, metav1.ConditionTrue, reason, message) }
	if r.Over() {
		return nil
	}
	if r.Is(provreq.Provisioned) {
		switch {
		case !f.Now.Before(r.Since(provreq.Provisioned).Add(snapshot.Booked)):
			yes(provreq.BookingExpired, bookingExpired, fmt.Sprintf("%d of %s came within %s: the room of the others is no longer kept", f.Taken, words.Count(f.Wants, "pod"), snapshot.Booked))
		case f.Refused != nil && f.Taken < f.Wants:
			yes(provreq.CapacityRevoked, capacityGone, fmt.Sprintf("room for %s is gone: %s", words.Count(f.Wants-f.Taken-f.Ready-f.Coming, "pod"), f.Refused.Message))
		}
		return changed(r, next)
	}
	if reason, message := f.impossible(); reason != "" {
		yes(provreq.Failed, reason, message)
		return changed(r, next)
	}
	if f.Missing != "" { // It may still appear.
		return nil
	}
	if !r.Is(provreq.Accepted) {
		yes(provreq.Accepted, accepted, "Karve plans for "+words.Count(f.Wants, "pod"))
	}
	switch {
	case f.Taken+f.Ready >= f.Wants:
		reason := provisioned
		if r.Class == provreq.CheckCapacity {
			reason = found
		}
		yes(provreq.Provisioned, reason, fmt.Sprintf("%s room for %s until %s", f.where("has", "have"), words.Count(f.Wants, "pod"), f.Now.Add(snapshot.Booked).UTC().Format(time.RFC3339)))
	case f.Later:
		set(provreq.Provisioned, metav1.ConditionFalse, waitsForOthers, fmt.Sprintf("the requests before it have so many pods that there is no place for %d more in a plan", f.Wants))
	case f.Refused == nil:
		set(provreq.Provisioned, metav1.ConditionFalse, coming, fmt.Sprintf("%s started with room for %d of %s", f.where("has not", "have not"), f.Coming, words.Count(f.Wants, "pod")))
	default:
		set(provreq.Provisioned, metav1.ConditionFalse, notFound, f.refusal()+"; it is tried again")
	}
	return changed(r, next)
}

// impossible returns why a request that is not provisioned has failed, or "" if it has not.
func (f *Facts) impossible() (reason, message string) {
	r := f.Request
	switch {
	case f.Missing != "":
		if f.Now.Sub(r.Created) >= templatesWithin {
			return templateMissing, fmt.Sprintf("there is no PodTemplate %s in namespace %s: create it and another request", f.Missing, r.Namespace)
		}
	case f.NoGPU != "":
		return noGPU, fmt.Sprintf("PodTemplate %s requests no GPU that Karve shares: request one, or use a provisioning class of another autoscaler", f.NoGPU)
	case f.Wants > snapshot.MaxRequested:
		return tooManyPods, fmt.Sprintf("%d pods are more than the %d for which Karve plans: make several requests", f.Wants, snapshot.MaxRequested)
	case f.Never != nil:
		return nothingFits, f.refusal()
	case f.Refused != nil && r.Class == provreq.CheckCapacity && r.NoRetry:
		return notFound, f.refusal()
	case r.Expired(f.Now):
		return expired, fmt.Sprintf("there was no room for all of its %s within %s of its creation: make another request", words.Count(f.Wants, "pod"), words.Age(r.ValidFor))
	}
	return "", ""
}

// where names the nodes of the request with their price and a verb.
func (f *Facts) where(verb, verbs string) string {
	var parts []string
	if len(f.Nodes) > 0 {
		parts = append(parts, words.Noun(len(f.Nodes), "node")+" "+words.Named(f.Nodes, maxNamed))
	}
	if f.Launches > 0 {
		parts = append(parts, words.Count(f.Launches, "new node"))
	}
	if len(parts) == 0 {
		return "its pods " + verbs
	}
	if len(f.Nodes)+f.Launches > 1 {
		verb = verbs
	}
	return fmt.Sprintf("%s ($%s per hour) %s", words.And(parts), words.USD(f.Price), verb)
}

// refusal returns why the request has no room, and what it would cost.
func (f *Facts) refusal() string {
	why := f.Refused
	if f.Never != nil {
		why = f.Never
	}
	text := why.Message
	switch {
	case f.Never != nil && why.Reason == planner.ReasonLimitReached:
		text = fmt.Sprintf("even if there were no other nodes, spec.limits of NodePool %s would allow nodes for only %d of its %s: raise them, or ask for fewer pods",
			words.Named(f.Limited, maxNamed), f.Within, words.Count(f.Wants-f.Taken, "pod"))
	case why.Reason != planner.ReasonGroup: // That message says so itself.
		text = fmt.Sprintf("there is no room for all of its %s at once: %s", words.Count(f.Wants, "pod"), text)
	}
	if f.AloneNodes > 0 {
		text += fmt.Sprintf("; %s would cost $%s per hour", words.Count(f.AloneNodes, "new node"), words.USD(f.Alone))
	}
	return text
}

func changed(r *provreq.Request, next []metav1.Condition) []metav1.Condition {
	var news []metav1.Condition
	for _, c := range next {
		if !r.Has(c) {
			news = append(news, c)
		}
	}
	return news
}
