package repair

import (
	"fmt"
	"strconv"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/snapshot"
)

// Unhealthy is the word that the mark of a machine carries which is replaced because it is sick.
const Unhealthy = "Unhealthy"

// A machine that was launched in the stead of a sick one and falls sick as well tells that it is not the machine: an image, a driver, a pod that breaks whatever
// it runs on. It is let be for longer each time.
const (
	// firstRest is how old a machine has to be that stands for one sick machine; twice as old for each more, at most longestRest.
	firstRest   = 30 * time.Minute
	longestRest = lifecycle.LongestRepairRest
)

// Repairs is how many machines in a row were sick soon after they were launched, before this one stood for them.
func Repairs(m *snapshot.Machine) int {
	n, err := strconv.Atoi(m.Claim.Annotations[v1alpha1.RepairsAnnotation])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// RepairsOfNext is the number for a machine that is launched for the pods of this one; 0 where this one does not go because it is sick. One that has lived for long
// has nothing to do with those before it.
func RepairsOfNext(m *snapshot.Machine) int {
	if m.Replacing() != Unhealthy {
		return 0
	}
	before := Repairs(m)
	since, err := time.Parse(time.RFC3339, m.Claim.Annotations[v1alpha1.ReplacingSinceAnnotation])
	if err != nil || since.Sub(m.Claim.CreationTimestamp.Time) > 2*rest(before) {
		return 1
	}
	return before + 1
}

// rest is how old a machine has to be that stands for so many sick ones.
func rest(repairs int) time.Duration {
	if repairs == 0 {
		return 0
	}
	d := firstRest
	for range repairs - 1 {
		if d *= 2; d >= longestRest {
			return longestRest
		}
	}
	return d
}

// resting says that a machine is let be for now since those before it were sick as well; "" when it is not.
func resting(m *snapshot.Machine, now time.Time) string {
	n := Repairs(m)
	until := m.Claim.CreationTimestamp.Add(rest(n))
	if !now.Before(until) {
		return ""
	}
	return fmt.Sprintf("the %d before it were unhealthy soon as well, so it is not replaced before %s: look for what they share, as an image, a driver or a pod that breaks "+
		"what it runs on (remove the annotation %s from its NodeClaim to replace it now)", n, until.UTC().Format(time.RFC3339), v1alpha1.RepairsAnnotation)
}
