package pool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/words"
)

// refusedOffering is an offering of a pool that Karve avoids, and the refusal that causes it.
type refusedOffering struct {
	instanceType, zone, capacity string
	by                           v1alpha1.RefusedOffering
}

// refusedOf returns the offerings of a pool that Karve avoids now, each once.
func refusedOf(cluster *facts.Cluster, pool *snapshot.Pool) []refusedOffering {
	var refused []refusedOffering
	for i := range pool.Offerings {
		o := &pool.Offerings[i]
		if r := snapshot.RefusalOf(cluster, pool, o); r != nil {
			refused = append(refused, refusedOffering{o.Type.Name, o.Zone, o.Capacity(), *r})
		}
	}
	// Offerings that differ only in labels that the pool sets count once.
	return slices.CompactFunc(refused, func(a, b refusedOffering) bool {
		return a.instanceType == b.instanceType && a.zone == b.zone && a.capacity == b.capacity
	})
}

// launching returns the condition LaunchHealthy of a pool. Offerings that were refused together share a message.
func launching(refused []refusedOffering) status.Condition {
	if len(refused) == 0 {
		return condition(v1alpha1.ConditionLaunchHealthy, metav1.ConditionTrue, "LaunchHealthy", "")
	}
	type group struct {
		instanceTypes, zones, capacityTypes []string
		by                                  v1alpha1.RefusedOffering
	}
	groups := map[string]*group{}
	for _, r := range refused {
		key := strings.Join([]string{r.by.Reason, r.by.NotBefore.UTC().Format(time.RFC3339), r.by.Message}, "\x00")
		if groups[key] == nil {
			groups[key] = &group{by: r.by}
		}
		g := groups[key]
		instanceType := r.instanceType
		if r.by.InstanceType == v1alpha1.Any {
			instanceType = "every instance type"
		}
		g.instanceTypes, g.zones, g.capacityTypes = append(g.instanceTypes, instanceType), append(g.zones, r.zone), append(g.capacityTypes, r.capacity)
	}
	var left []string
	for _, g := range groups {
		what := "all launches"
		if !g.by.PausesLaunches() {
			what = fmt.Sprintf("%s in zone %s (%s)", words.Distinct(g.instanceTypes), words.Distinct(g.zones), words.Distinct(g.capacityTypes))
		}
		left = append(left, fmt.Sprintf("%s until %s (%s): %s", what, g.by.NotBefore.UTC().Format(time.RFC3339), cmp.Or(g.by.Reason, "refused"), g.by.Message))
	}
	slices.Sort(left)
	reason := "LaunchRefused"
	if !slices.ContainsFunc(refused, func(r refusedOffering) bool { return r.by.InstanceType != v1alpha1.Any || r.by.Zone != v1alpha1.Any }) {
		reason = cmp.Or(refused[0].by.Reason, reason) // Nothing can be launched until the cause is fixed.
	}
	return condition(v1alpha1.ConditionLaunchHealthy, metav1.ConditionFalse, reason, "held back after launches failed: "+strings.Join(left, "; "))
}
