package ui

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
	"karve.sh/karve/pkg/ui"
)

const token = "the-token-of-the-test"

var teams = []string{"search", "vision", "speech", "ranking", "notebooks", "batch", "fraud", "maps", "ads", "quality"}

// fleet returns a cluster with nodes of ten replicas in two pools. On most of them run six to ten pods, of ten namespaces. Every tenth node is empty, and some pods wait.
func fleet(nodes int) *facts.Cluster {
	c := Shared()
	second := Pool("gpu-batch", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared))
	c.NodePools = append(c.NodePools, second)
	asks := Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")
	for i := range nodes {
		pool := &c.NodePools[i%3/2]
		machine := TypeNamed("g4dn.xlarge")
		claim := Claim(fmt.Sprintf("%s-%04d", pool.Name, i), pool, machine, Initialized(Now))
		node := Node(&claim, machine, 10)
		node.Name = fmt.Sprintf("ip-10-0-%d-%d.ec2.internal", i/250, i%250)
		claim.Status.NodeName = node.Name
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, node)
		if i%10 == 9 {
			continue
		}
		for j := range 10 - i%5 {
			pod := Pod(fmt.Sprintf("model-%04d-%d", i, j), Running(node.Name), asks)
			pod.Namespace = teams[(i+j*j/3)%10]
			c.Pods = append(c.Pods, pod)
		}
	}
	c.Pods = append(c.Pods, Pods("waits", 3, Asking("cpu", "300m", v1alpha1.ResourceGPUShared, "99"))...)
	return c
}

// source is the cluster that the page of a test shows.
type source struct {
	is atomic.Pointer[facts.Cluster]
	// fails is why the cluster cannot be read.
	fails atomic.Pointer[error]
	// works says whether a controller works.
	works atomic.Pointer[leader.Leader]
	// cluster is the name of the cluster, if it is not production.
	cluster string
	// note is where prices come from.
	note string
	// costs are nil without a Prometheus.
	costs ui.Costs
}

func (c *source) read(context.Context) (*facts.Cluster, error) {
	if err := c.fails.Load(); err != nil {
		return nil, *err
	}
	return c.is.Load(), nil
}

func (c *source) controller(context.Context) leader.Leader {
	if works := c.works.Load(); works != nil {
		return *works
	}
	return leader.Leader{State: leader.Working}
}

// show replaces the cluster.
func (c *source) show(shown *facts.Cluster) {
	shown.Generation = 1
	if before := c.is.Load(); before != nil {
		shown.Generation = before.Generation + 1
	}
	c.is.Store(shown)
}

// serve serves the page of a cluster, and returns the address of the server.
func serve(t *testing.T, shown *facts.Cluster) (string, *source) {
	t.Helper()
	c := &source{}
	c.show(shown)
	return c.serve(t), c
}

// serve serves the page, and returns the address of the server.
func (c *source) serve(t *testing.T) string {
	t.Helper()
	clk := clock.RealClock{}
	server := ui.New(ui.Config{
		Cluster: cmp.Or(c.cluster, "production"), Clock: clk, Admit: ui.RequireToken(token), Note: func() string { return c.note }, Read: c.read, Controller: c.controller, Costs: c.costs,
		Links: []ui.Link{{Title: "Grafana", URL: "https://grafana.example.com/d/karve-gpus?var-namespace={namespace}&var-pod={pod}"}, {Title: "Logs", URL: "https://logs.example.com/{node}/{namespace}/{pod}"}},
		Explain: func(c *facts.Cluster) *explain.Explainer {
			return explain.New(c, explain.NewSettings(published.DefaultSettings()))
		},
	})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}

// TestThousandNodesAreFast measures the page with a thousand nodes and eight thousand pods.
func TestThousandNodesAreFast(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, fleet(1000))
	open(t, browser, url+"/#token="+token).untilText("nodes", "1,000") // The server has read the cluster then.

	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "1,000")
	p.until("document.documentElement.dataset.painted")
	painted := value[int](p, "Number(document.documentElement.dataset.painted)")
	contentful := value[float64](p, "performance.getEntriesByName('first-contentful-paint')[0].startTime")
	elements := value[int](p, "document.getElementsByTagName('*').length")
	p.run(chromedp.Evaluate("document.getElementById('map').scrollTop = 4000", nil))
	p.until("document.querySelectorAll('.tile').length > 0 && document.querySelector('.tile').getBoundingClientRect().bottom > -1000")
	heap := value[float64](p, "performance.memory.usedJSHeapSize / 2 ** 20")
	t.Logf("1,000 nodes, 7,400 pods: first contentful paint after %.0f ms, the map after %d ms, %.1f MiB of JavaScript heap, %d elements", contentful, painted, heap, elements)
	// Without other work on the computer, the map is there in less than a second.
	if painted > 5000 || heap > 50 || elements > 6000 {
		t.Error("that is too much")
	}
	picture(p, "thousand")
	if p.text("used") != "7,400" || p.text("of") != "of 10,000" || p.text("price") != "$526.00" {
		t.Errorf("the tiles say %s %s, %s", p.text("used"), p.text("of"), p.text("price"))
	}
	p.clean(url, token)
}

func TestKeyboardReachesEverything(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, fleet(40))
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "40")
	active := "document.getElementById(document.getElementById('map').getAttribute('aria-activedescendant'))?.dataset.node"
	p.press(tabKey, kb.Enter) // The first stop is a link to the map.
	p.press(tabKey)
	for i := 0; p.focused() != "map" && i < 40; i++ {
		p.press(tabKey)
	}
	p.until(active)
	first := value[string](p, active)
	p.press(kb.ArrowRight)
	second := value[string](p, active)
	p.press(kb.ArrowDown, kb.ArrowUp, kb.ArrowLeft)
	if first == second || value[string](p, active) != first {
		t.Errorf("the arrow keys went from %s to %s, and back to %s", first, second, value[string](p, active))
	}
	p.press(kb.End)
	if last := value[string](p, active); last == first {
		t.Errorf("the key End stays on %s", last)
	}
	if label := value[string](p, "document.querySelector('.tile.active').getAttribute('aria-label')"); label == "" {
		t.Error("the node has no name for a screen reader")
	}
	if outline := value[string](p, "getComputedStyle(document.querySelector('.tile.active')).outlineStyle"); outline != "solid" {
		t.Errorf("the focus does not show: %s", outline)
	}
	p.press(kb.Home, kb.Enter)
	p.untilText("panel-title", first)
	if p.focused() != "panel-title" {
		t.Errorf("the focus is on %q, not in the panel", p.focused())
	}
	p.until("[...document.querySelectorAll('.causes b')].length > 0")
	// From the node to one of its pods, and back with the browser's history.
	p.run(chromedp.Focus("#details .pods button", chromedp.ByQuery))
	p.press(kb.Enter)
	p.until("document.getElementById('panel-kind').textContent === 'Pod' && document.querySelector('.badge').textContent === 'Running'")
	p.run(chromedp.NavigateBack())
	p.untilText("panel-title", first)
	p.press(kb.Escape)
	p.until("document.getElementById('panel').hidden")
	if p.focused() != "map" {
		t.Errorf("after the panel was closed, the focus is on %q", p.focused())
	}
	p.press("/")
	if p.focused() != "q" {
		t.Errorf("the key / leads to %q", p.focused())
	}
	p.clean(url, token)
}

func TestFiltersSurviveReload(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, fleet(40))
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "40")
	if value[string](p, "location.hash") != "" {
		t.Error("the token stays in the address")
	}
	choose := func(id, option string) {
		p.Helper()
		p.run(chromedp.SetValue("#"+id, option, chromedp.ByQuery), chromedp.Evaluate(fmt.Sprintf("document.getElementById(%q).dispatchEvent(new Event('change'))", id), nil))
	}
	choose("pool", "gpu-batch")
	p.untilText("shown", "13 of 40 nodes")
	choose("namespace", "ranking")
	p.until("document.getElementById('shown').textContent !== '13 of 40 nodes'")
	p.run(chromedp.SendKeys("#q", "10-0-0-2", chromedp.ByQuery))
	p.until("location.search.includes('q=10-0-0-2')")
	address, shown := value[string](p, "location.search"), p.text("shown")
	if address != "?q=10-0-0-2&pool=gpu-batch&namespace=ranking" {
		t.Errorf("the address says %s", address)
	}
	p.load(chromedp.Reload())
	p.untilText("shown", shown)
	if got := value[string](p, "document.getElementById('pool').value"); got != "gpu-batch" {
		t.Errorf("after a reload, the pool is %q", got)
	}
	choose("pool", "")
	choose("namespace", "")
	p.run(chromedp.SetValue("#q", "model-0007-3", chromedp.ByQuery), chromedp.Evaluate("document.getElementById('q').dispatchEvent(new Event('input'))", nil))
	p.untilText("shown", "1 of 40 nodes")
	// A pod that is clicked on explains itself.
	p.run(chromedp.Click(".tile [data-pod$='model-0007-3']", chromedp.ByQuery))
	p.untilText("panel-title", "search/model-0007-3")
	p.until("location.search.includes('pod=')")
	p.run(chromedp.Evaluate("document.getElementById('waiting').click()", nil))
	p.untilText("panel-title", "3 waiting pods")
	p.clean(url, token)
}

func TestThemeFollowsSystemAndButton(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, fleet(40))
	p := open(t, browser, url+"/#token="+token)
	back := func() string { return value[string](p, "getComputedStyle(document.body).backgroundColor") }
	light := back()
	p.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	p.until("document.documentElement.dataset.theme === 'dark'")
	dark := back()
	p.untilText("nodes", "40")
	p.run(chromedp.Click("[data-node='ip-10-0-0-11.ec2.internal'] .name", chromedp.ByQuery))
	p.until("document.querySelectorAll('.causes b').length > 0 && document.getElementById('sweep-note').textContent.includes('machines')")
	picture(p, "dark")
	p.run(chromedp.Click("#theme", chromedp.ByQuery))
	picture(p, "light")
	if light == dark || back() != light {
		t.Errorf("the page is %s, in the dark %s, and after a click on the button %s", light, dark, back())
	}
	p.load(chromedp.Reload())
	if back() != light {
		t.Error("the choice is forgotten")
	}
	p.clean(url, token)
}

func TestSliderPlansForAllPods(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, fleet(40))
	p := open(t, browser, url+"/#token="+token)
	for _, tc := range []struct{ replicas, price, machines string }{
		{"1", "$155.70", "296 machines\n3 without a place"}, {"12", "$13.150", "25 machines\n3 without a place"}, {"48", "$12.488", "4 machines, the least"},
	} {
		p.run(chromedp.SetValue("#replicas", tc.replicas, chromedp.ByQuery), chromedp.Evaluate("document.getElementById('replicas').dispatchEvent(new Event('input'))", nil))
		p.untilText("sweep-note", tc.machines)
		p.untilText("sweep-price", tc.price)
		if got := value[string](p, "new URLSearchParams(location.search).get('replicas')"); got != tc.replicas {
			t.Errorf("the address says %s replicas", got)
		}
	}
	p.clean(url, token)
}

// TestPageFollowsCluster changes the cluster while the page is open.
func TestPageFollowsCluster(t *testing.T) {
	browser := browse(t)
	url, shown := serve(t, fleet(40))
	p := open(t, browser, url+"/?node=ip-10-0-0-39.ec2.internal#token="+token)
	p.untilText("nodes", "40")
	less := fleet(40)
	less.Nodes, less.NodeClaims = less.Nodes[:39], less.NodeClaims[:39]
	shown.show(less)
	p.untilText("nodes", "39")
	p.until("document.getElementById('details').textContent.includes('This node is gone.')")
	time.Sleep(2500 * time.Millisecond) // The page asks every other second why a node stays. It must not ask for this one: the answer is 404.
	shown.show(Shared())
	p.untilText("nodes", "0")
	p.until("document.getElementById('empty').textContent.startsWith('There is no node with shared GPUs yet.')")
	// Without the token of this server, there is nothing to see.
	stranger := open(t, browser, url+"/#token=another")
	stranger.until("!document.getElementById('login').hidden && document.getElementById('app').hidden")
	stranger.run(chromedp.SendKeys("#token", token+kb.Enter, chromedp.ByQuery))
	stranger.until("!document.getElementById('app').hidden")
	stranger.untilText("nodes", "0")
	p.clean(url, token)
}

// TestUnreadClusterHasNoNumbers opens the page of a cluster that cannot be read yet, then can, and later cannot any more.
func TestUnreadClusterHasNoNumbers(t *testing.T) {
	browser := browse(t)
	c := &source{note: "you may not get ConfigMap karve-system/karve-catalog, so zones and prices are those of us-east-1"}
	c.show(fleet(40))
	c.fails.Store(new(errors.New("listing Nodes: nodes is forbidden")))
	url := c.serve(t)
	p := open(t, browser, url+"/#token="+token)
	p.untilText("banner", "The cluster cannot be read: listing Nodes: nodes is forbidden")
	for _, id := range []string{"price", "used", "waiting", "unused", "nodes", "sweep-price"} {
		if got := p.text(id); got != "–" {
			t.Errorf("%s of a cluster that was never read is %q", id, got)
		}
	}
	if shown := value[string](p, "document.getElementById('app').innerText"); strings.Contains(shown, "There is no node") || strings.Contains(shown, "0") && !strings.Contains(shown, "10 replicas") {
		t.Errorf("the page shows %s", shown)
	}
	picture(p, "unread")
	c.fails.Store(nil)
	p.untilText("nodes", "40")
	p.until("document.getElementById('banner').hidden")
	p.untilText("note", "Note: "+c.note+".")
	c.fails.Store(new(errors.New("the API server does not answer: connection refused")))
	p.untilText("banner", "The cluster cannot be read, and this is as it was: the API server does not answer: connection refused")
	p.untilText("live", "Not current")
	if nodes := p.text("nodes"); nodes != "40" {
		t.Errorf("when the cluster cannot be read any more, there are %s nodes", nodes)
	}
	picture(p, "away")
	p.run(chromedp.EmulateViewport(700, 900))
	picture(p, "narrow")
	p.clean(url, token)
}
