// Package groups measures what a day of training jobs and single pods costs, and how long they wait, with plans that know groups and with plans that do not.
package groups

import (
	"math"
	"math/rand"
	"time"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/plantest"
)

// job is a number of equal pods that run for a time once all of them have a place.
type job struct {
	name    string
	pods    int
	request planner.Resources
	arrives time.Duration
	runs    time.Duration
}

// day draws the jobs of a day. As in the traces of Alibaba's PAI (Weng et al., NSDI 2022), most jobs are small, most of the use is that of large ones, and durations span minutes
// to hours: 70 % are single pods, the others have 2 to 32 pods; the median runs 12 minutes, and one in ten more than an hour. They arrive mostly in the daytime.
func day(seed int64, jobs int) []job {
	r := rand.New(rand.NewSource(seed))
	sizes := []int{2, 2, 2, 4, 4, 8, 8, 16, 32}
	all := make([]job, jobs)
	for i := range all {
		pods := 1
		if r.Float64() < 0.3 {
			pods = sizes[r.Intn(len(sizes))]
		}
		// Rejection sampling: noon is three times as busy as midnight.
		at := r.Float64() * 24
		for r.Float64() > 0.5-0.25*math.Cos(2*math.Pi*at/24)+0.25 {
			at = r.Float64() * 24
		}
		cpu, replicas := []int64{500, 1000, 2000}[r.Intn(3)], []int64{1, 1, 1, 2, 5}[r.Intn(5)]
		if pods > 8 {
			replicas = 1
		}
		all[i] = job{
			pods: pods, request: plantest.Request(cpu, 2*cpu, replicas),
			arrives: time.Duration(at * float64(time.Hour)).Truncate(time.Minute),
			runs:    min(8*time.Hour, time.Duration(12*math.Exp(1.3*r.NormFloat64())*float64(time.Minute))).Truncate(time.Minute) + time.Minute,
		}
	}
	return all
}
