package repair

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// Diagnosis is the health of all machines.
type Diagnosis struct {
	// Cases has the unhealthy machines, by the names of their NodeClaims.
	Cases map[string]Case
	// Pools has the pools with started machines, by name.
	Pools map[string]PoolHealth
}

// Case is an unhealthy machine.
type Case struct {
	Fault
	// Wait is how long Karve still tolerates it. It is 0 once that time is over.
	Wait time.Duration
	// Kept is why the machine is not replaced although it should be, and what to do. It is "" if it is replaced.
	Kept string
}

// passes reports whether the machine is being deleted for another reason while its condition is still tolerated. A Node that is being deleted becomes not
// ready in its last seconds, which is no warning.
func (c Case) passes(m *records.Machine) bool {
	return c.Wait > 0 && m.Deleting() && m.Replacing() != Unhealthy
}

// PoolHealth counts the unhealthy machines of a pool.
type PoolHealth struct {
	// Machines is the number of machines that have started. Unhealthy is how many of them are unhealthy, or are being replaced because they were, except
	// those that are being deleted for another reason. Allowed is how many may be unhealthy at the same time.
	Machines, Unhealthy, Allowed int
	// Closed is the reason why no machine is replaced, and Message explains it and what to do. Both are "" if machines are replaced.
	Closed, Message string
}

// Values of PoolHealth.Closed.
const (
	TooManyUnhealthy = "TooManyUnhealthy"
	ZoneUnhealthy    = "ZoneUnhealthy"
)

// DoNotRepair is Karpenter's annotation, since 1.15, of a Node or NodeClaim that is not replaced when it is unhealthy.
const DoNotRepair = "karpenter.sh/do-not-repair"

// Diagnose returns the health of all machines of a cluster. The controllers share it, so that the conditions of a pool agree with what is done.
func Diagnose(c *facts.Cluster, machines []records.Machine, t Tolerations) Diagnosis {
	d := Diagnosis{Cases: map[string]Case{}, Pools: map[string]PoolHealth{}}
	now, unhealthy, passing := clock(c), map[string][]string{}, map[string]bool{}
	for i := range machines {
		m := &machines[i]
		if m.Node == nil || !m.Started() {
			if s := t.Fault(m, now); s != nil {
				d.Cases[m.Claim.Name] = Case{Fault: *s, Wait: max(0, s.Until.Sub(now))}
			}
			continue
		}
		health := d.Pools[m.Pool()]
		health.Machines++
		if s := t.Fault(m, now); s != nil {
			c := Case{Fault: *s, Wait: max(0, s.Until.Sub(now))}
			d.Cases[m.Claim.Name] = c
			if c.passes(m) {
				passing[m.Node.Name] = true
			} else {
				health.Unhealthy++
				unhealthy[m.Pool()] = append(unhealthy[m.Pool()], fmt.Sprintf("%s (%s)", m.Claim.Name, s.Reason))
			}
		} else if m.Replacing() == Unhealthy {
			health.Unhealthy++
		}
		d.Pools[m.Pool()] = health
	}
	zones := unheard(c.Indexed().AllNodes(), passing)
	for pool, health := range d.Pools {
		health.Allowed = allowed(health.Machines)
		if health.Unhealthy > health.Allowed {
			health.Closed = TooManyUnhealthy
			health.Message = fmt.Sprintf("%d of %d nodes are unhealthy, and none is replaced while more than %d are: %s. Look for what they share, as a zone, an image, a driver, a "+
				"device plugin or a DRA driver, and delete the NodeClaims of those that will not come back", health.Unhealthy, health.Machines, health.Allowed, words.Named(slices.Sorted(slices.Values(unhealthy[pool])), shown))
		}
		d.Pools[pool] = health
	}
	for i := range machines {
		m := &machines[i]
		if found, ok := d.Cases[m.Claim.Name]; ok {
			health, zone := d.Pools[m.Pool()], ""
			if found.Forceful {
				zone = zones.of(m.Node)
			}
			found.Kept = whyKept(m, health, zone, c.Now)
			d.Cases[m.Claim.Name] = found
			if zone != "" && health.Closed == "" {
				health.Closed, health.Message = ZoneUnhealthy, zone
				d.Pools[m.Pool()] = health
			}
		}
	}
	return d
}

// whyKept returns why an unhealthy machine is not replaced, or "" if it is replaced once its time is over. zone is the message about an outage of its
// zone, or "" if there is none.
func whyKept(m *records.Machine, health PoolHealth, zone string, now time.Time) string {
	switch {
	case m.Node.Annotations[DoNotRepair] == "true":
		return "the node carries " + DoNotRepair
	case m.Claim.Annotations[DoNotRepair] == "true":
		return "its NodeClaim carries " + DoNotRepair
	case health.Closed == TooManyUnhealthy:
		return health.Message
	case zone != "":
		return zone
	}
	return resting(m, now)
}

// allowed returns how many of this number of machines may be unhealthy if one is to be replaced: a fifth, rounded up, as in Karpenter.
func allowed(machines int) int { return (machines + 4) / 5 }

// shown is the largest number of machines that a message names.
const shown = 5

// silence is how long the API server may hear from no kubelet. Kubelets report at least every five minutes.
const silence = 15 * time.Minute

// clock returns the time by which Karve measures how long machines have been unhealthy. It is the current time, but at most silence after the latest heartbeat
// of any Node. If no Node has reported for that long, either Karve's clock is wrong or no kubelet reaches the API server, and no machine is at fault.
func clock(c *facts.Cluster) time.Time {
	last := c.Indexed().LastHeartbeat()
	if limit := last.Add(silence); !last.IsZero() && limit.Before(c.Now) {
		return limit
	}
	return c.Now
}

// zoneMessages has a message for each zone of which most nodes are not ready. The key "" is the whole cluster.
type zoneMessages map[string]string

// A zone has an outage if more than outage of its nodes, and at least outagePercent of them, are not ready. Kubernetes' node lifecycle controller stops
// evictions at these numbers.
const (
	outage        = 2
	outagePercent = 55
)

// unheard returns messages for the zones of which most nodes are not ready. It does not count the nodes in passing.
func unheard(nodes iter.Seq[*corev1.Node], passing map[string]bool) zoneMessages {
	all, silent := map[string]int{}, map[string]int{}
	for node := range nodes {
		if passing[node.Name] {
			continue
		}
		ready := conditionOf(node, corev1.NodeReady)
		unready := ready != nil && ready.Status != corev1.ConditionTrue
		zones := []string{"", node.Labels[corev1.LabelTopologyZone]}
		for _, zone := range slices.Compact(zones) {
			all[zone]++
			if unready {
				silent[zone]++
			}
		}
	}
	messages := zoneMessages{}
	for _, zone := range slices.Sorted(maps.Keys(silent)) {
		if n := silent[zone]; n > outage && 100*n >= outagePercent*all[zone] {
			where := "the cluster"
			if zone != "" {
				where = "zone " + zone
			}
			messages[zone] = fmt.Sprintf("%d of the %d nodes of %s are not ready, so that none is deleted for it: see to the zone, or to the nodes' way to the API server", n, all[zone], where)
		}
	}
	return messages
}

// Outage returns a message if the Node is not ready and most nodes of its zone, or of the whole cluster, are not ready either. Otherwise it returns "".
func Outage(nodes []corev1.Node, node *corev1.Node) string {
	if ready := conditionOf(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
		return ""
	}
	return unheard(func(yield func(*corev1.Node) bool) {
		for i := range nodes {
			if !yield(&nodes[i]) {
				return
			}
		}
	}, nil).of(node)
}

// of returns the message of the cluster or of a Node's zone, or "" if neither has an outage.
func (z zoneMessages) of(node *corev1.Node) string {
	if message := z[""]; message != "" {
		return message
	}
	return z[node.Labels[corev1.LabelTopologyZone]]
}
