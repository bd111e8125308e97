package aws

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"
)

// Refusal is what CreateFleet says no to: the offerings that match all of the fields that are not empty.
type Refusal struct {
	Type         string // "g4dn.xlarge"; any type when empty
	Zone         string // "us-east-1a"; any zone when empty
	CapacityType string // "on-demand", "spot"; either when empty
	// Code is EC2's error code; InsufficientInstanceCapacity when empty. Others that Karpenter knows: VcpuLimitExceeded, MaxSpotInstanceCountExceeded,
	// UnfulfillableCapacity, Unsupported, InsufficientFreeAddressesInSubnet; and those of a mistake, as InvalidParameterValue.
	Code string
}

// Refuse makes CreateFleet refuse offerings until Allow is called with the same value.
func (s *Server) Refuse(r Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, r)
}

// Allow takes a refusal back.
func (s *Server) Allow(r Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = slices.DeleteFunc(s.refusals, func(other Refusal) bool { return other == r })
}

// refused is the code with which an offering is refused, or "".
func (s *Server) refused(instanceType, zone, capacityType string) string {
	for _, r := range s.refusals {
		if (r.Type == "" || r.Type == instanceType) && (r.Zone == "" || r.Zone == zone) && (r.CapacityType == "" || r.CapacityType == capacityType) {
			if r.Code == "" {
				return insufficientCapacity
			}
			return r.Code
		}
	}
	return ""
}

// fault is what becomes of calls instead of an answer.
type fault string

const (
	throttled fault = "throttled"
	denied    fault = "denied"
	cutOff    fault = "cut off"
	hung      fault = "hung"
	down      fault = "down"
	garbled   fault = "garbled"
)

// The names of the faults below are those of actions, "DescribeInstanceTypes", or of services, "EC2", "SSM", "Pricing", "EKS", "IAM", "SQS", "STS";
// with none it is every call.

// Throttle answers calls with the service's error for too many of them, RequestLimitExceeded for EC2, until Heal.
func (s *Server) Throttle(names ...string) { s.fault(throttled, names) }

// Deny answers calls with the service's error for missing rights, UnauthorizedOperation for EC2, until Heal.
func (s *Server) Deny(names ...string) { s.fault(denied, names) }

// Cut closes the connection of calls without an answer, as if the service could not be reached, until Heal.
func (s *Server) Cut(names ...string) { s.fault(cutOff, names) }

// Hang keeps the connection of calls open without an answer until Heal, or until the caller gives up; then it closes it.
func (s *Server) Hang(names ...string) { s.fault(hung, names) }

// Down answers calls with the page of a load balancer that has no service behind it: HTML, with HTTP status 503, until Heal.
func (s *Server) Down(names ...string) { s.fault(down, names) }

// Garble answers calls with HTTP status 200 and something that no client can decode, until Heal.
func (s *Server) Garble(names ...string) { s.fault(garbled, names) }

// Heal ends the faults of these names; with none, all faults.
func (s *Server) Heal(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) == 0 {
		clear(s.faults)
	}
	for _, name := range names {
		delete(s.faults, name)
	}
}

const everything = ""

func (s *Server) fault(kind fault, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(names) == 0 {
		names = []string{everything}
	}
	for _, name := range names {
		s.faults[name] = kind
	}
}

// Calls is how often an action was called: "CreateFleet". Those that failed are counted too.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

// errCut is for a call that gets no answer.
var errCut = errors.New("the connection is cut")

// html is what a call gets instead of an answer of the service.
type html struct {
	status int
	text   string
}

func (h html) Error() string { return h.text }

var (
	errUnavailable = html{http.StatusServiceUnavailable, "<html><body><h1>503 Service Unavailable</h1></body></html>"}
	errGarbled     = html{http.StatusOK, "<html><body>Please log in<br>"}
)

// outlast waits for as long as calls of an action hang.
func (s *Server) outlast(ctx context.Context, api service, action string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for s.faultOf(api, action) == hung {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// faultOf is what becomes of calls of an action; "" when they are answered.
func (s *Server) faultOf(api service, action string) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range []string{action, api.name, everything} {
		if f := s.faults[name]; f != "" {
			return f
		}
	}
	return ""
}

// admit counts a call and fails it if it has to.
func (s *Server) admit(ctx context.Context, api service, action string) error {
	s.mu.Lock()
	s.calls[action]++
	s.mu.Unlock()
	switch s.faultOf(api, action) {
	case throttled:
		return api.throttled
	case denied:
		return api.denied
	case cutOff:
		return errCut
	case hung:
		s.outlast(ctx, api, action)
		return errCut
	case down:
		return errUnavailable
	case garbled:
		return errGarbled
	}
	return nil
}
