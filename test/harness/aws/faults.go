package aws

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"
)

// Refusal selects the offerings that CreateFleet refuses: those that match all non-empty fields.
type Refusal struct {
	Type         string // "g4dn.xlarge"; any type when empty
	Zone         string // "us-east-1a"; any zone when empty
	CapacityType string // "on-demand", "spot", "reserved"; any when empty
	Reservation  string // the ID of the reservation into which is launched; any or none when empty
	// Code is EC2's error code; InsufficientInstanceCapacity when empty. Karpenter also knows VcpuLimitExceeded, MaxSpotInstanceCountExceeded,
	// UnfulfillableCapacity, Unsupported, InsufficientFreeAddressesInSubnet, and the codes of invalid requests, such as InvalidParameterValue.
	Code string
}

// Refuse makes CreateFleet refuse offerings until Allow is called with the same value.
func (s *Server) Refuse(r Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = append(s.refusals, r)
}

// Allow withdraws a refusal.
func (s *Server) Allow(r Refusal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusals = slices.DeleteFunc(s.refusals, func(other Refusal) bool { return other == r })
}

// refused returns the error code with which a pool is refused, or "".
func (s *Server) refused(p pool) string {
	of := func(wanted, is string) bool { return wanted == "" || wanted == is }
	for _, r := range s.refusals {
		if of(r.Type, p.machine.name()) && of(r.Zone, p.zone) && of(r.CapacityType, p.capacityType) && of(r.Reservation, p.reservation) {
			if r.Code == "" {
				return insufficientCapacity
			}
			return r.Code
		}
	}
	return ""
}

// fault is what happens to calls instead of a response.
type fault string

const (
	throttled fault = "throttled"
	denied    fault = "denied"
	cutOff    fault = "cut off"
	hung      fault = "hung"
	down      fault = "down"
	garbled   fault = "garbled"
)

// The names of the faults below are actions, such as "DescribeInstanceTypes", or services: "EC2", "SSM", "Pricing", "EKS", "IAM", "SQS", "STS". Without
// a name, a fault affects every call. "karve/DescribeImages" affects only the calls of the program with this name: see [Server.EnvAs].

// Throttle fails calls with the service's throttling error, RequestLimitExceeded for EC2, until Heal.
func (s *Server) Throttle(names ...string) { s.fault(throttled, names) }

// Deny fails calls with the service's authorization error, UnauthorizedOperation for EC2, until Heal.
func (s *Server) Deny(names ...string) { s.fault(denied, names) }

// Cut closes the connection of calls without a response, as if the service were unreachable, until Heal.
func (s *Server) Cut(names ...string) { s.fault(cutOff, names) }

// Hang keeps calls open without a response until Heal, or until the caller gives up. It then closes the connection.
func (s *Server) Hang(names ...string) { s.fault(hung, names) }

// Down answers calls like a load balancer without a healthy backend: HTML with HTTP status 503, until Heal.
func (s *Server) Down(names ...string) { s.fault(down, names) }

// Garble answers calls with HTTP status 200 and a body that no client can decode, until Heal.
func (s *Server) Garble(names ...string) { s.fault(garbled, names) }

// Heal ends the faults with these names, or all faults without a name.
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

// Calls returns how often an action such as "CreateFleet" was called. Failed calls count too.
func (s *Server) Calls(action string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[action]
}

// errCut fails a call without a response.
var errCut = errors.New("the connection is cut")

// html is a response that does not come from the service.
type html struct {
	status int
	text   string
}

func (h html) Error() string { return h.text }

var (
	errUnavailable = html{http.StatusServiceUnavailable, "<html><body><h1>503 Service Unavailable</h1></body></html>"}
	errGarbled     = html{http.StatusOK, "<html><body>Please log in<br>"}
)

// outlast waits while calls of an action hang.
func (s *Server) outlast(ctx context.Context, api service, action, key string) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for s.faultOf(api, action, key) == hung {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// faultOf returns the fault of an action that a program calls, or "" if there is none.
func (s *Server) faultOf(api service, action, key string) fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range []string{key + "/" + action, action, api.name, everything} {
		if f := s.faults[name]; f != "" {
			return f
		}
	}
	return ""
}

// admit counts a call and returns the error of its fault.
func (s *Server) admit(ctx context.Context, api service, action, key string) error {
	s.mu.Lock()
	s.calls[action]++
	s.mu.Unlock()
	switch s.faultOf(api, action, key) {
	case throttled:
		return api.throttled
	case denied:
		return api.denied
	case cutOff:
		return errCut
	case hung:
		s.outlast(ctx, api, action, key)
		return errCut
	case down:
		return errUnavailable
	case garbled:
		return errGarbled
	}
	return nil
}
