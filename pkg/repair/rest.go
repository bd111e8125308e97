package repair

import (
	"fmt"
	"strconv"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot/records"
)

// Unhealthy is the value of the replacing annotation of a machine that is replaced because it is unhealthy.
const Unhealthy = "Unhealthy"

// If a machine that replaced an unhealthy one also becomes unhealthy, the cause is probably not the machine, but an image, a driver or a pod. Karve
// waits longer each time before it replaces the next one.
const (
	// firstRest is the age from which Karve replaces a machine that replaced one unhealthy machine. The age doubles with each further one, up to
	// maxRest.
	firstRest = 30 * time.Minute
	maxRest   = lifecycle.LongestRepairRest
)

// Repairs returns how many consecutive machines became unhealthy soon after their launch before this one replaced them.
func Repairs(m *records.Machine) int {
	n, err := strconv.Atoi(m.Claim.Annotations[v1alpha1.RepairsAnnotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// RepairsOfNext returns the number for a machine that is launched for the pods of this one. It is 0 if this machine is not replaced because it is
// unhealthy. A machine that lived long starts the count again.
func RepairsOfNext(m *records.Machine) int {
	if m.Replacing() != Unhealthy {
		return 0
	}
	before := Repairs(m)
	since, err := time.Parse(time.RFC3339, m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation])
	if err != nil || since.Sub(m.Claim.CreationTimestamp.Time) > 2*replacementAge(before) {
		return 1
	}
	return before + 1
}

// replacementAge returns the age from which Karve replaces a machine with this number of repairs.
func replacementAge(repairs int) time.Duration {
	if repairs == 0 {
		return 0
	}
	return lifecycle.Backoff(firstRest, maxRest, repairs)
}

// resting returns why a machine is not replaced yet, because those before it were also unhealthy. It returns "" if it may be replaced.
func resting(m *records.Machine, now time.Time) string {
	n := Repairs(m)
	until := m.Claim.CreationTimestamp.Add(replacementAge(n))
	if !now.Before(until) {
		return ""
	}
	return fmt.Sprintf("the %d before it were unhealthy soon as well, so it is not replaced before %s: look for what they share, as an image, a driver or a pod that breaks "+
		"what it runs on (remove the annotation %s from its NodeClaim to replace it now)", n, until.UTC().Format(time.RFC3339), v1alpha1.RepairsAnnotation)
}
