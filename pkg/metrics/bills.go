package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"karve.sh/karve/pkg/bill"
)

// bills exports what nodes cost and which pods pay for them. It has one series for each pod that holds replicas, so it computes them for each scrape
// instead of each change of a pod. Only the leader exports any.
type bills struct {
	node, idle, pod, podDiscount                *prometheus.Desc
	share, owner, label, unknown                *prometheus.Desc
	shareDiscount, ownerDiscount, labelDiscount *prometheus.Desc
	latest                                      atomic.Pointer[billed]
}

// billed are machines that are billed, and the keys of the labels of their pods.
type billed struct {
	labels []string
	nodes  func() []bill.Node
}

func newBills(r prometheus.Registerer) *bills {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, name, "usd_per_hour"), help, labels, nil)
	}
	b := &bills{
		node: desc("node", "Price of the launched offering when the node was planned.",
			"node", nodePool, "instance_type", "capacity_type", "zone"),
		idle: desc("node_idle", "Price of the node's replicas that no pod holds.", "node", nodePool),
		pod: desc("pod", "Price of the replicas that the pod holds.",
			"namespace", "pod", "node", nodePool, "owner_kind", "owner"),
		podDiscount: desc("pod_discount", "List price minus karve_pod_usd_per_hour, if they differ.",
			"namespace", "pod", "node", nodePool, "owner_kind", "owner"),
		share: desc("cost", "Price of all machines from launch to end: used (replicas that pods hold), idle (free replicas of nodes that take pods), "+
			"and overhead (free replicas of machines that start or leave, and those of DaemonSets).", nodePool, "gpunodeclass", "share"),
		owner:         desc("cost_owner", "Price of the replicas that a workload's pods hold.", "namespace", "owner_kind", "owner", nodePool),
		label:         desc("cost_label", "Price of the replicas that pods with a label of costLabels hold.", "label", "value", nodePool),
		shareDiscount: desc("cost_discount", "List price minus karve_cost_usd_per_hour, if they differ.", nodePool, "gpunodeclass", "share"),
		ownerDiscount: desc("cost_owner_discount", "List price minus karve_cost_owner_usd_per_hour, if they differ.",
			"namespace", "owner_kind", "owner", nodePool),
		labelDiscount: desc("cost_label_discount", "List price minus karve_cost_label_usd_per_hour, if they differ.",
			"label", "value", nodePool),
		unknown: prometheus.NewDesc(prometheus.BuildFQName(namespace, "cost", "unpriced_machines"),
			"Machines without a known price, which count as $0.", nil, nil),
	}
	r.MustRegister(b)
	return b
}

// Describe implements prometheus.Collector.
func (b *bills) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{b.node, b.idle, b.pod, b.podDiscount, b.share, b.owner, b.label, b.shareDiscount, b.ownerDiscount, b.labelDiscount, b.unknown} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (b *bills) Collect(to chan<- prometheus.Metric) {
	latest := b.latest.Load()
	if latest == nil {
		return
	}
	nodes := latest.nodes()
	b.each(nodes, to)
	sums := bill.Sum(nodes, latest.labels)
	export(to, &sums, b.share, b.owner, b.label)
	discounts := sums.Discounts(nodes, latest.labels)
	export(to, &discounts, b.shareDiscount, b.ownerDiscount, b.labelDiscount)
	to <- prometheus.MustNewConstMetric(b.unknown, prometheus.GaugeValue, float64(sums.Unpriced))
}

func export(to chan<- prometheus.Metric, l *bill.Ledger, share, owner, label *prometheus.Desc) {
	for s, micro := range l.Shares {
		gauge(to, share, micro, s.NodePool, s.GPUNodeClass, string(s.For))
	}
	for o, micro := range l.Owners {
		gauge(to, owner, micro, o.Namespace, o.Owner.Kind, o.Owner.Name, o.NodePool)
	}
	for v, micro := range l.Labels {
		gauge(to, label, micro, v.Key, v.Value, v.NodePool)
	}
}

func (b *bills) each(nodes []bill.Node, to chan<- prometheus.Metric) {
	seen := map[string]bool{"": true} // Machines without a Node, and canaries.
	for i := range nodes {
		n := &nodes[i]
		if seen[n.Name] {
			continue // Two equal series would fail the whole scrape.
		}
		seen[n.Name] = true
		gauge(to, b.node, n.MicroUSDPerHour, n.Name, n.NodePool, n.InstanceType, n.CapacityType, n.Zone)
		shares, idle := n.Split()
		gauge(to, b.idle, idle, n.Name, n.NodePool)
		for j, h := range n.Holders {
			gauge(to, b.pod, shares[j], h.Namespace, h.Name, n.Name, n.NodePool, h.Owner.Kind, h.Owner.Name)
		}
		at := n.Listed()
		if at.MicroUSDPerHour == n.MicroUSDPerHour {
			continue
		}
		listed, _ := at.Split()
		for j, h := range n.Holders {
			if listed[j] != shares[j] {
				gauge(to, b.podDiscount, listed[j]-shares[j], h.Namespace, h.Name, n.Name, n.NodePool, h.Owner.Kind, h.Owner.Name)
			}
		}
	}
}

func gauge(to chan<- prometheus.Metric, d *prometheus.Desc, micro int64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, USD(micro), labels...)
}

// Bill sets the machines whose prices are exported, and the keys of the labels of their pods. The function is called for each scrape, from any goroutine.
func (m *Metrics) Bill(labels []string, nodes func() []bill.Node) {
	m.bills.latest.Store(&billed{labels, nodes})
}
