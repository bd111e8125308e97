package advice

import (
	"fmt"
	"slices"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// usualExpiry is Karpenter's default of expireAfter.
const usualExpiry = 720 * time.Hour

// expiries returns the changes that let machines live longer: as long as was measured, and at most as long as by default. A plan for a moment does not know how old
// machines become, so only a replay tells what they save.
func (sc *scenario) expiries(moved map[string]float64) (all []change) {
	to := min(usualExpiry, sc.end.Truncate(time.Hour))
	for j := range sc.cluster.NodePools {
		np := &sc.cluster.NodePools[j]
		now := np.Spec.Template.Spec.ExpireAfter.Duration
		if !facts.IsOurs(np) || now == nil || *now <= 0 || 2**now > to || !slices.ContainsFunc(sc.workloads, func(w Workload) bool { return w.Pool == np.Name }) {
			continue
		}
		c := change{Change: Change{
			Kind: Expiry, Object: "NodePool " + np.Name, Do: fmt.Sprintf("raise expireAfter from %s to %s", hoursOf(*now), hoursOf(to)),
			Evidence: []string{fmt.Sprintf("in the replay, the pods on each machine restart every %s", words.Age(*now))},
			Risks: []string{
				"machines keep their image, kernel and driver for longer, and what else expireAfter is for, such as a rule of your security team, is not measured",
			},
			Patches: []Patch{patchClass("nodepool", np.Name, object{"template": object{"spec": object{"expireAfter": hoursOf(to)}}})},
		}}
		if n, known := moved[np.Name]; known {
			c.Evidence = append(c.Evidence, fmt.Sprintf("%.0f pods moved because their machine was about to expire", n))
		}
		c.apply = func(sc *scenario) {
			pool := sc.cluster.NodePools[j].DeepCopy()
			pool.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration(hoursOf(to))
			sc.cluster.NodePools[j] = *pool
		}
		all = append(all, c)
	}
	return all
}

func hoursOf(d time.Duration) string { return fmt.Sprintf("%.0fh", d.Hours()) }
