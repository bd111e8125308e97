package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

type topOptions struct {
	namespace string
	nodesOf   nodeSelection
	podsOf    podSelection
	sortBy    string
	output    output
	kube      *genericclioptions.ConfigFlags
}

const topLong = `Show how much of the GPUs is used: SM time and device memory, with the replicas, the requested memory and the prices. The numbers come from
the metrics of the node agents, which the command reads through the API server. This needs permission to get pods/proxy in the agents' namespace.`

func topCommand(ctx context.Context, s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "top", Short: "Show the GPU use of nodes or pods", Long: topLong, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("name what to show: kubectl karve top nodes, or kubectl karve top pods")
		},
	}
	cmd.AddCommand(topOf(ctx, s, "nodes", []string{"node", "no"}, (*topOptions).nodes), topOf(ctx, s, "pods", []string{"pod", "po"}, (*topOptions).pods))
	return cmd
}

func topOf(ctx context.Context, s streams, what string, aliases []string, tableOf func(*topOptions, *overview.Overview) table.Table) *cobra.Command {
	o := topOptions{kube: clusterFlags()}
	cmd := &cobra.Command{
		Use: what, Aliases: aliases, Short: "Show the GPU use of " + what, Long: topLong, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			c, err := connect(o.kube, "")
			if err != nil {
				return err
			}
			seen, err := c.overview(ctx, o.namespace)
			if err != nil {
				return err
			}
			if what == "pods" {
				seen.Overview, err = o.podsOf.apply(seen)
			} else {
				seen.Overview, err = o.nodesOf.apply(seen)
			}
			if err != nil {
				return err
			}
			s.notes(seen.note)
			measured, trouble := c.measure(ctx, seen, what == "nodes")
			seen.Measure(measured)
			return o.print(s, seen.Overview, tableOf, topNotes(measured, trouble, what))
		},
	}
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", "sort in descending order by mem (used device memory), sm (SM time), idle (paid for but not used) or price; default: by name")
	o.output.addFlag(cmd.Flags(), "pool, node, age and NodeClaim")
	if what == "pods" {
		o.podsOf.addFlags(cmd.Flags())
	} else {
		o.nodesOf.addFlags(cmd.Flags(), false)
	}
	addNamespaceFlag(cmd.Flags(), &o.namespace)
	o.kube.AddFlags(cmd.Flags())
	return cmd
}

func (o *topOptions) validate() error {
	switch o.sortBy {
	case "", "mem", "sm", "idle", "price":
		return o.output.validate()
	}
	return fmt.Errorf("--sort-by must be mem, sm, idle or price, not %q", o.sortBy)
}

func (o *topOptions) print(s streams, all *overview.Overview, tableOf func(*topOptions, *overview.Overview) table.Table, notes []string) error {
	s.warn(all.Controller)
	s.notes(notes...)
	o.sort(all)
	return o.output.print(s.out, all, func() string {
		t := tableOf(o, all)
		if len(t.Rows) == 0 {
			return o.podsOf.none("holds a shared GPU.") + "\n"
		}
		return t.String()
	})
}

// sort sorts nodes and pods. Unknown values come last.
func (o *topOptions) sort(all *overview.Overview) {
	node, pod := map[string]func(*overview.Node) float64{
		"mem": func(n *overview.Node) float64 { return number(n.Use().UsedMiB) }, "sm": func(n *overview.Node) float64 { return number(n.Use().SMPercent) },
		"idle": func(n *overview.Node) float64 { return number(n.IdleMicroUSDPerHour) }, "price": func(n *overview.Node) float64 { return number(n.MicroUSDPerHour) },
	}[o.sortBy], map[string]func(*overview.Pod) float64{
		"mem": func(p *overview.Pod) float64 { return number(p.UsedMiB) }, "sm": func(p *overview.Pod) float64 { return number(p.SMPercent) },
		"idle": func(p *overview.Pod) float64 { return number(p.UnusedSeconds) }, "price": func(p *overview.Pod) float64 { return number(p.MicroUSDPerHour) },
	}[o.sortBy]
	if node == nil {
		return
	}
	slices.SortStableFunc(all.Nodes, func(a, b overview.Node) int { return cmp.Compare(node(&b), node(&a)) })
	slices.SortStableFunc(all.Pods, func(a, b overview.Pod) int { return cmp.Compare(pod(&b), pod(&a)) })
}

func (o *topOptions) nodes(all *overview.Overview) table.Table {
	columns := slices.Concat([]nodeColumn{
		nodeName, nodeType, nodeReplicas,
		{title: "SM%", right: true, cell: func(n *overview.Node) string { return percent(n.Use().SMPercent) }},
		{title: "MEM USED", right: true, cell: func(n *overview.Node) string {
			if used := n.Use().UsedMiB; used != nil {
				return ofMemory(*used, n.MemoryMiB)
			}
			return unknown
		}},
		{title: "MEM STATED", right: true, cell: func(n *overview.Node) string { return gib(n.StatedMiB) + "Gi" }},
	}, nodePrices(all), []nodeColumn{
		{title: "IDLE $/H", right: true, cell: func(n *overview.Node) string { return price3(n.IdleMicroUSDPerHour) }},
		nodePool.forWide(), nodeAge(all.AsOf).forWide(),
		{title: "STATE", wide: true, cell: func(n *overview.Node) string { return n.Message }},
		nodeClaim.forWide(),
	})
	return tableOf(all.Nodes, o.output.wide(), columns...)
}

func (o *topOptions) pods(all *overview.Overview) table.Table {
	return tableOf(all.Pods, o.output.wide(), podName, podReplicas,
		podColumn{title: "GPU", cell: func(p *overview.Pod) string { return p.Node + "/" + indexList(p.GPUs) }},
		podColumn{title: "SM%", right: true, cell: func(p *overview.Pod) string { return percent(p.SMPercent) }},
		podColumn{title: "MEM USED/STATED", right: true, cell: usedOfStated}, podPrice, podUnused,
		podColumn{title: "POOL", wide: true, cell: func(p *overview.Pod) string { return cmp.Or(p.Pool, unknown) }}, podAge(all.AsOf).forWide())
}

func indexList(gpus []int) string {
	if len(gpus) == 0 {
		return unknown
	}
	texts := make([]string, len(gpus))
	for i, n := range gpus {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

func percent(value *float64) string {
	if value == nil {
		return unknown
	}
	return strconv.FormatFloat(*value, 'f', 0, 64)
}

// usedOfStated formats used and requested memory. Each of them may be unknown.
func usedOfStated(p *overview.Pod) string {
	used := unknown
	if p.UsedMiB != nil {
		used = gib(*p.UsedMiB)
	}
	return used + "/" + memoryText(p.StatedMiB)
}

type trouble struct {
	// asked is the number of nodes whose agents were needed.
	asked int
	// without counts nodes without a running agent. failed counts those whose agents did not answer.
	without, failed int
	first           error
}

// measure scrapes the agents of the nodes that have the pods, or of all nodes that have started.
func (c connection) measure(ctx context.Context, seen seen, all bool) (map[string]overview.Measured, trouble) {
	var t trouble
	var mu sync.Mutex
	var group sync.WaitGroup
	measured, turns := map[string]overview.Measured{}, make(chan struct{}, scrapes)
	on := podsOn(seen.Overview)
	for i := range seen.Nodes {
		n := &seen.Nodes[i]
		if !n.Running() || !all && len(on[n.Name]) == 0 {
			continue
		}
		t.asked++
		from, runs := seen.agents[n.Name]
		if !runs {
			t.without++
			continue
		}
		turns <- struct{}{}
		group.Go(func() {
			defer func() { <-turns }()
			m, err := scrape(ctx, c.core, from)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				measured[n.Name] = m
				return
			}
			t.failed++
			if t.first == nil {
				t.first = err
			}
		})
	}
	group.Wait()
	return measured, t
}

// scrape reads the metrics of an agent through the API server.
func scrape(ctx context.Context, api rest.Interface, from agent) (overview.Measured, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	text, err := api.Get().Namespace(from.namespace).Resource("pods").Name(fmt.Sprintf("%s:%d", from.name, from.port)).SubResource("proxy").Suffix("metrics").Stream(ctx)
	if apierrors.IsForbidden(err) {
		return overview.Measured{}, fmt.Errorf("you may not get pods/proxy in the namespace %s", from.namespace)
	}
	if err != nil {
		return overview.Measured{}, fmt.Errorf("asking pod %s/%s: %w", from.namespace, from.name, err)
	}
	defer func() { _ = text.Close() }() // It was only read.
	return overview.ParseMetrics(io.LimitReader(text, maxMetrics))
}

// maxMetrics is larger than the metrics of any agent, in bytes.
const maxMetrics = 16 << 20

func topNotes(measured map[string]overview.Measured, t trouble, what string) []string {
	var notes []string
	if t.first != nil {
		notes = append(notes, fmt.Sprintf("GPU use is unknown on %s: %v", words.Count(t.failed, "node"), t.first))
	}
	if t.without > 0 {
		notes = append(notes, fmt.Sprintf("GPU use is unknown on %s: no agent runs there, install karve-node", words.Count(t.without, "node")))
	}
	if what != "pods" || len(measured) == 0 {
		return notes
	}
	for _, m := range measured {
		if m.Pods != nil {
			return notes
		}
	}
	return append(notes, "no agent measures pods: no pod has a process on a GPU, or node.metrics.pods is not set in the chart")
}
