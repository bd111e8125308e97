// Command bench-burst measures what a burst of pods costs above one plan for all of them, and how long it takes, with the real control plane and Karpenter on a
// local AWS with simulated machines. It runs Karve in several situations, and Karpenter alone, which packs the same pods with NodeOverlays, in some of them. It
// prints a table and writes it as JSON, and fails if a run of Karve's misses its limits. It also prints where the price above one plan comes from, and how far the
// burst was every five seconds. `make bench-burst` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"karve.sh/karve/test/bench/results"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

func main() {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-burst:", err)
		os.Exit(1)
	}
}

// situation is what a burst happens in.
type situation struct {
	// Karpenter is true if Karpenter packs the pods, without Karve.
	Karpenter bool `json:"karpenter"`
	// QPS is how many requests per second the scheduler may send.
	QPS int `json:"schedulerQPS"`
	// Mixed is true if pods of all shapes come in turn, and false if they come shape by shape, as the pods of Deployments do.
	Mixed bool `json:"mixed"`
	// Busy is true if a program beside the cluster uses a core.
	Busy bool `json:"busy"`
	// Kills is how often the controller is killed and started again during the burst.
	Kills int `json:"kills"`
}

func (s situation) String() string {
	parts := []string{"karve"}
	if s.Karpenter {
		parts[0] = "karpenter"
	}
	order := "by deployment"
	if s.Mixed {
		order = "mixed"
	}
	parts = append(parts, fmt.Sprintf("%d requests/s", s.QPS), order)
	if s.Busy {
		parts = append(parts, "busy")
	}
	if s.Kills > 0 {
		parts = append(parts, fmt.Sprintf("%d kills", s.Kills))
	}
	return strings.Join(parts, ", ")
}

// situations returns all situations.
func situations() []situation {
	var all []situation
	for _, qps := range []int{50, 500} {
		for _, mixed := range []bool{false, true} {
			for _, busy := range []bool{false, true} {
				for _, kills := range []int{0, 3} {
					all = append(all, situation{QPS: qps, Mixed: mixed, Busy: busy, Kills: kills})
				}
				all = append(all, situation{Karpenter: true, QPS: qps, Mixed: mixed, Busy: busy})
			}
		}
	}
	return all
}

// figures are the measurements of a burst. Seconds count from the creation of the last pod.
type figures struct {
	situation
	Name string `json:"name"`
	Pods int    `json:"pods"`
	// Created is within how many seconds the pods were created.
	Created float64 `json:"createdWithinSeconds"`
	Claims  int     `json:"nodeClaims"`
	// Price and OnePlan are in dollars per hour. Over is how much more the NodeClaims cost than one plan for all pods, in percent.
	Price   float64 `json:"usdPerHour"`
	OnePlan float64 `json:"onePlanUSDPerHour"`
	Over    float64 `json:"overPercent"`
	// Most is when 97 % of the NodeClaims existed, and Last when all of them did. Running is when all pods ran.
	First   float64 `json:"firstClaimSeconds"`
	Most    float64 `json:"mostClaimsSeconds"`
	Last    float64 `json:"lastClaimSeconds"`
	Running float64 `json:"allRunningSeconds"`
	// Load is the load average of the computer before the run.
	Load string `json:"loadAverage"`
	// Excess is where Over comes from. CPU is the CPU time of the programs until all pods ran, in seconds.
	Excess excess             `json:"excess"`
	CPU    map[string]float64 `json:"cpuSeconds"`
}

// misses returns the limits that a run of Karve's exceeds.
func (f figures) misses() []string {
	if f.Karpenter {
		return nil
	}
	most := 2.0
	if f.Busy || f.Kills > 0 {
		most = 3
	}
	var all []string
	for _, x := range []struct {
		what     string
		is, most float64
	}{{"% above one plan", f.Over, most}, {"s to 97 % of the NodeClaims", f.Most, 15}, {"s to the last NodeClaim", f.Last, 60}, {"s to the last running pod", f.Running, 80}} {
		if x.is > x.most {
			all = append(all, fmt.Sprintf("%.1f %s, want at most %.0f", x.is, x.what, x.most))
		}
	}
	return all
}

func run(ctx context.Context) error {
	out := flag.String("o", filepath.Join("..", "_output", "bench-burst.json"), "where the figures go")
	pods := flag.Int("pods", 1500, "how many pods come")
	only := flag.String("run", "", "run only the situations that match this regular expression; -list prints them")
	machines := flag.Bool("machines", false, "print what became of the places of each machine")
	list := flag.Bool("list", false, "print the situations")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if *list {
		for _, s := range situations() {
			fmt.Println(s)
		}
		return nil
	}
	if err := cluster.Missing(); err != nil {
		return err
	}
	if _, err := karve.Build(ctx); err != nil {
		return err
	}
	load := newWorkload(*pods)
	one, err := load.onePlan(ctx, load.counts())
	if err != nil {
		return err
	}
	var all []figures
	var missed []error
	fmt.Println("| situation | NodeClaims | $/h | above one plan | 97 % | last claim | all run |\n|---|---|---|---|---|---|---|")
	for _, s := range situations() {
		if !wanted.MatchString(s.String()) {
			continue
		}
		f, err := measure(ctx, s, load, *machines)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", s, err)
		}
		f.OnePlan, f.Over = one, 100*(f.Price/one-1)
		fmt.Printf("| %s | %d | %.2f | %+.1f %% | %.0f s | %.0f s | %.0f s |\n", s, f.Claims, f.Price, f.Over, f.Most, f.Last, f.Running)
		for _, m := range f.misses() {
			missed = append(missed, fmt.Errorf("%s: %s", s, m))
		}
		all = append(all, f)
		if err := results.Save(*out, all); err != nil {
			return err
		}
	}
	return errors.Join(missed...)
}
