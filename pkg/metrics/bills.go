package metrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"karve.sh/karve/pkg/bill"
)

// bills exports what nodes cost and which pods pay for them. It has one series for each pod that holds replicas, so it computes them for each scrape
// instead of each change of a pod. Only the leader exports any.
type bills struct {
	node, idle, pod *prometheus.Desc
	latest          atomic.Pointer[func() []bill.Node]
}

func newBills(r prometheus.Registerer) *bills {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, name, "usd_per_hour"), help, labels, nil)
	}
	b := &bills{
		node: desc("node", "Price of the launched offering when the node was planned, in US dollars per hour.",
			"node", nodePool, "instance_type", "capacity_type", "zone"),
		idle: desc("node_idle", "Price of the node's replicas that no pod holds, in US dollars per hour.", "node", nodePool),
		pod: desc("pod", "Price of the replicas that the pod holds, in US dollars per hour. The pods of a node and its idle part add up to its price.",
			"namespace", "pod", "node", nodePool),
	}
	r.MustRegister(b)
	return b
}

// Describe implements prometheus.Collector.
func (b *bills) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{b.node, b.idle, b.pod} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (b *bills) Collect(to chan<- prometheus.Metric) {
	nodes := b.latest.Load()
	if nodes == nil {
		return
	}
	gauge := func(d *prometheus.Desc, micro int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, USD(micro), labels...)
	}
	seen := map[string]bool{}
	for _, n := range (*nodes)() {
		if seen[n.Name] {
			continue // Two equal series would fail the whole scrape.
		}
		seen[n.Name] = true
		gauge(b.node, n.MicroUSDPerHour, n.Name, n.NodePool, n.InstanceType, n.CapacityType, n.Zone)
		shares, idle := n.Split()
		gauge(b.idle, idle, n.Name, n.NodePool)
		for i, h := range n.Holders {
			gauge(b.pod, shares[i], h.Namespace, h.Name, n.Name, n.NodePool)
		}
	}
}

// Bill sets the nodes whose prices are exported. The function is called for each scrape, from any goroutine.
func (m *Metrics) Bill(nodes func() []bill.Node) { m.bills.latest.Store(&nodes) }
