package repair

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot"
)

// Diagnosis is what is known of the health of all machines.
type Diagnosis struct {
	// Cases are the machines that are sick, by the names of their claims.
	Cases map[string]Case
	// Wards are the pools that have machines, by name.
	Wards map[string]Ward
}

// Case is a machine that is sick.
type Case struct {
	Sickness
	// Wait is how long it is borne yet; 0 when it was borne long enough.
	Wait time.Duration
	// Kept says why the machine is not replaced although it should be, and what to do; "" when it is.
	Kept string
}

// passes says that the machine goes for another cause before anything is done about it: a Node that is given back is not ready in its last seconds, and warns of nothing.
func (c Case) passes(m *snapshot.Machine) bool {
	return c.Wait > 0 && m.Deleting() && m.Replacing() != Unhealthy
}

// Ward is a pool as one that has sick machines.
type Ward struct {
	// Machines is how many of its machines have started, Sick how many of those are sick and do not just go for another cause, or are replaced because they were, and
	// Allowed how many may be so at once.
	Machines, Sick, Allowed int
	// Closed is a word for why none is replaced, and Message says more and what to do; "" when they are.
	Closed, Message string
}

// Words for why none of a pool's machines is replaced.
const (
	TooManyUnhealthy = "TooManyUnhealthy"
	ZoneUnhealthy    = "ZoneUnhealthy"
)

// DoNotRepair is Karpenter's annotation (since 1.15) of a Node or NodeClaim that is not to be replaced because it is sick.
const DoNotRepair = "karpenter.sh/do-not-repair"

// Diagnose looks at all machines of a cluster. It is the same for whoever asks, so that what is said of a pool is what is done.
func Diagnose(c *snapshot.Cluster, machines []snapshot.Machine, t Tolerations) Diagnosis {
	d := Diagnosis{Cases: map[string]Case{}, Wards: map[string]Ward{}}
	now, sick, passing := clock(c), map[string][]string{}, map[string]bool{}
	for i := range machines {
		m := &machines[i]
		if m.Node == nil || !m.Started() {
			if s := t.Sickness(m, now); s != nil {
				d.Cases[m.Claim.Name] = Case{Sickness: *s, Wait: max(0, s.Until.Sub(now))}
			}
			continue
		}
		ward := d.Wards[m.Pool()]
		ward.Machines++
		if s := t.Sickness(m, now); s != nil {
			c := Case{Sickness: *s, Wait: max(0, s.Until.Sub(now))}
			d.Cases[m.Claim.Name] = c
			if c.passes(m) {
				passing[m.Node.Name] = true
			} else {
				ward.Sick++
				sick[m.Pool()] = append(sick[m.Pool()], fmt.Sprintf("%s (%s)", m.Claim.Name, s.Reason))
			}
		} else if m.Replacing() == Unhealthy {
			ward.Sick++
		}
		d.Wards[m.Pool()] = ward
	}
	zones := unheard(c.Nodes, passing)
	for pool, ward := range d.Wards {
		ward.Allowed = allowed(ward.Machines)
		if ward.Sick > ward.Allowed {
			ward.Closed = TooManyUnhealthy
			ward.Message = fmt.Sprintf("%d of %d nodes are unhealthy, and none is replaced while more than %d are: %s. Look for what they share, as a zone, an image, a driver or a "+
				"device plugin, and delete the NodeClaims of those that will not come back", ward.Sick, ward.Machines, ward.Allowed, some(sick[pool]))
		}
		d.Wards[pool] = ward
	}
	for i := range machines {
		m := &machines[i]
		if sick, ok := d.Cases[m.Claim.Name]; ok {
			ward, zone := d.Wards[m.Pool()], ""
			if sick.Forceful {
				zone = zones.of(m.Node)
			}
			sick.Kept = kept(m, ward, zone, c.Now)
			d.Cases[m.Claim.Name] = sick
			if zone != "" && ward.Closed == "" {
				ward.Closed, ward.Message = ZoneUnhealthy, zone
				d.Wards[m.Pool()] = ward
			}
		}
	}
	return d
}

// kept says why a sick machine is not replaced, in a zone of which the message says that it is sick as a whole; "" when it is once its time has come.
func kept(m *snapshot.Machine, ward Ward, zone string, now time.Time) string {
	switch {
	case m.Node.Annotations[DoNotRepair] == "true":
		return "the node carries " + DoNotRepair
	case m.Claim.Annotations[DoNotRepair] == "true":
		return "its NodeClaim carries " + DoNotRepair
	case ward.Closed == TooManyUnhealthy:
		return ward.Message
	case zone != "":
		return zone
	}
	return resting(m, now)
}

// allowed is how many of so many machines may be sick for one to be replaced: a fifth, rounded up, as in Karpenter.
func allowed(machines int) int { return (machines + 4) / 5 }

// shown is how many machines a message names.
const shown = 5

func some(names []string) string {
	slices.Sort(names)
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// silence is how long it may be that the API server has not heard of any kubelet: they report at least every five minutes.
const silence = 15 * time.Minute

// clock is the time by which it is judged how long machines have been sick. It is ours, unless no Node has been heard of for long by it: then our clock is
// wrong, or no kubelet reaches the API server, and neither is the fault of a machine. So time stands still until one is heard of.
func clock(c *snapshot.Cluster) time.Time {
	var last time.Time
	for i := range c.Nodes {
		for _, condition := range c.Nodes[i].Status.Conditions {
			if at := condition.LastHeartbeatTime.Time; at.After(last) {
				last = at
			}
		}
	}
	if limit := last.Add(silence); !last.IsZero() && limit.Before(c.Now) {
		return limit
	}
	return c.Now
}

// zoneMessages say of the zones, "" standing for the whole cluster, that most of their nodes are not ready.
type zoneMessages map[string]string

// When more than outage nodes of a zone, and more than outagePercent of them, are not ready it is the zone that is sick. The numbers are those by which Kubernetes' own node
// lifecycle controller stops to evict pods.
const (
	outage        = 2
	outagePercent = 55
)

// unheard are the zones of which most nodes are not ready, but for those that are passing.
func unheard(nodes []corev1.Node, passing map[string]bool) zoneMessages {
	all, silent := map[string]int{}, map[string]int{}
	for i := range nodes {
		if passing[nodes[i].Name] {
			continue
		}
		zones := map[string]bool{"": true, nodes[i].Labels[corev1.LabelTopologyZone]: true}
		ready := conditionOf(&nodes[i], corev1.NodeReady)
		for zone := range zones {
			all[zone]++
			if ready != nil && ready.Status != corev1.ConditionTrue {
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

// Outage says of the zone of a Node that is not ready, or of the whole cluster, that most of its nodes are not; "" where the Node is ready or they are.
func Outage(nodes []corev1.Node, node *corev1.Node) string {
	if ready := conditionOf(node, corev1.NodeReady); ready == nil || ready.Status == corev1.ConditionTrue {
		return ""
	}
	return unheard(nodes, nil).of(node)
}

// of is the message of a Node's zone, or of the cluster; "" when neither is sick.
func (z zoneMessages) of(node *corev1.Node) string {
	if message := z[""]; message != "" {
		return message
	}
	return z[node.Labels[corev1.LabelTopologyZone]]
}
