package launching

import (
	"slices"
	"strings"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
)

// Refusal is what Karve should avoid after a failed launch, and why: each of the instance types in each of the zones.
type Refusal struct {
	InstanceTypes, Zones []string
	CapacityType         string
	// Reservation is the ID of the only reservation that the refusal is about, or "" if it is not about one.
	Reservation string
	// Reason is a reason of v1alpha1, or one of Karpenter's condition Launched.
	Reason  string
	Message string
	// Generation is that of the cloud's node class if the refusal is about the node class, and 0 otherwise.
	Generation int64
}

// Cloud is the state of the cloud's node class at the time of a refusal.
type Cloud struct {
	Generation int64
	// Subnets has the zones of the node class's subnets, by ID.
	Subnets map[string]string
}

// ofKarpenter lists the texts that identify refusals in messages of Karpenter. Those of the clouds are in their Providers.
var ofKarpenter = []cloud.Error{
	{Text: "all requested instance types were unavailable", Reason: v1alpha1.RefusalInsufficientCapacity},
	{Text: "resolving nodeclass", Reason: v1alpha1.RefusalNodeClassNotFound},
}

// fault is one of the errors in a message.
type fault struct {
	reason string
	// text is the message from this error up to the next one.
	text string
}

// faults returns the errors in a message, in order.
func faults(message string) []fault {
	type place struct {
		at     int
		reason string
	}
	var places []place
	texts := slices.Clone(ofKarpenter)
	for _, p := range clouds.All {
		texts = append(texts, p.Errors...)
	}
	for _, r := range texts {
		for from := 0; ; {
			i := strings.Index(message[from:], r.Text)
			if i < 0 {
				break
			}
			places = append(places, place{from + i, r.Reason})
			from += i + len(r.Text)
		}
	}
	slices.SortFunc(places, func(a, b place) int { return a.at - b.at })
	var out []fault
	for i, p := range places {
		end := len(message)
		if i+1 < len(places) {
			end = places[i+1].at
		}
		out = append(out, fault{p.reason, message[p.at:end]})
	}
	return out
}

// Attribute returns the refusals in the message of Karpenter's event InsufficientCapacityError about a NodeClaim. Karpenter truncates the message to
// 1,024 bytes, and before 1.15 to 300. Offerings of the NodeClaim that the message does not explain also count as refused for lack of capacity, because the cloud launched
// none of them.
func Attribute(s Shape, message string, class Cloud) []Refusal {
	var out []Refusal
	for _, f := range faults(message) {
		// An error for lack of capacity names only one of the offerings that were tried.
		if f.reason == v1alpha1.RefusalInsufficientCapacity || f.reason == v1alpha1.RefusalUnsupported && !s.named(f.text) {
			continue
		}
		r := s.within(scopeOf(f.reason), f.text, class)
		r.Reason, r.Message = f.reason, message
		out = append(out, r)
	}
	return append(out, s.rest(out, message)...)
}

// named reports whether a text contains an instance type and a zone of the shape.
func (s Shape) named(text string) bool {
	return slices.ContainsFunc(s.InstanceTypes, func(t string) bool { return mentions(text, t) }) &&
		slices.ContainsFunc(s.Zones, func(z string) bool { return inParentheses(text, z) })
}

// inParentheses reports whether a text has the zone in parentheses, which marks the zone that an error is about. Other zones follow as advice.
func inParentheses(text, zone string) bool { return strings.Contains(text, "("+zone+")") }

// within returns the part of the shape that a refusal with the scope is about: what the text names, or all of it.
func (s Shape) within(of cloud.Scope, text string, class Cloud) Refusal {
	everything := []string{v1alpha1.Any}
	r := Refusal{InstanceTypes: everything, Zones: everything, CapacityType: v1alpha1.Any}
	switch of {
	case cloud.AboutOfferings:
		r.InstanceTypes, r.CapacityType = those(s.InstanceTypes, func(t string) bool { return mentions(text, t) }), s.CapacityType
		r.Zones, r.Reservation = those(s.Zones, func(z string) bool { return inParentheses(text, z) }), s.Reservation
	case cloud.AboutTypes:
		r.InstanceTypes = s.InstanceTypes
	case cloud.AboutQuota:
		r.InstanceTypes, r.CapacityType = those(s.InstanceTypes, func(t string) bool { return mentions(text, t) }), s.CapacityType
	case cloud.AboutZones:
		r.Zones = s.withoutAddresses(text, class)
	case cloud.AboutCapacityType:
		r.CapacityType = s.CapacityType
	case cloud.AboutClass:
		r.Generation = class.Generation
	case cloud.AboutAccount:
	}
	return r
}

// those returns the values that pass, or all values if none passes.
func those(values []string, pass func(string) bool) []string {
	some := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !pass(v) })
	if len(some) == 0 {
		return values
	}
	return some
}

// mentions reports whether a text contains the name of an instance type, other than as part of another name.
func mentions(text, name string) bool {
	part := func(c byte) bool { return c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' }
	for from := 0; name != ""; {
		i := strings.Index(text[from:], name)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(name)
		if (start == 0 || !part(text[start-1]) && text[start-1] != '.') && (end == len(text) || !part(text[end])) {
			return true
		}
		from = start + 1
	}
	return false
}

// withoutAddresses returns the zones of the subnets that a text names, or all zones of the shape.
func (s Shape) withoutAddresses(text string, class Cloud) []string {
	var zones []string
	for id, zone := range class.Subnets {
		if mentions(text, id) && !slices.Contains(zones, zone) {
			zones = append(zones, zone)
		}
	}
	if len(zones) == 0 {
		return s.Zones
	}
	slices.Sort(zones)
	return zones
}

// rest returns refusals for the offerings of the shape that no refusal covers yet.
func (s Shape) rest(listed []Refusal, message string) []Refusal {
	var out []Refusal
	for _, t := range s.InstanceTypes {
		missing := slices.DeleteFunc(slices.Clone(s.Zones), func(z string) bool {
			return slices.ContainsFunc(listed, func(r Refusal) bool { return r.covers(t, z, s.CapacityType) })
		})
		if len(missing) == 0 {
			continue
		}
		if last := len(out) - 1; last >= 0 && slices.Equal(out[last].Zones, missing) {
			out[last].InstanceTypes = append(out[last].InstanceTypes, t)
			continue
		}
		out = append(out, Refusal{
			InstanceTypes: []string{t}, Zones: missing, CapacityType: s.CapacityType, Reservation: s.Reservation, Reason: v1alpha1.RefusalInsufficientCapacity, Message: message,
		})
	}
	return out
}

func (r Refusal) covers(instanceType, zone, capacityType string) bool {
	has := func(list []string, value string) bool {
		return slices.Contains(list, v1alpha1.Any) || slices.Contains(list, value)
	}
	return has(r.InstanceTypes, instanceType) && has(r.Zones, zone) && (r.CapacityType == v1alpha1.Any || r.CapacityType == capacityType)
}

// RefusalFor returns the refusal for a reason without further details.
func RefusalFor(s Shape, reason, message string, class Cloud) Refusal {
	reason = Known(reason)
	r := s.within(scopeOf(reason), "", class)
	r.Reason, r.Message = reason, message
	return r
}
