package ui

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// stuck returns a small fleet with pods that cannot run, each for another reason.
func stuck() *facts.Cluster {
	c := fleet(12)
	c.Pods = c.Pods[:len(c.Pods)-3]
	for name, edit := range map[string]func(*corev1.Pod){
		"too-large": Asking("cpu", "300m", v1alpha1.ResourceGPUShared, "99"), "wrong-label": Selecting("team", "nobody"), "no-volume": Claiming("missing"),
		"apart": func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": "apart"}
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "example.com/rack", WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
			}}
		},
	} {
		c.Pods = append(c.Pods, Pod(name, edit))
	}
	return c
}

// TestPodsThatCannotRunAreExplained opens pods that wait by their reasons, with the keyboard alone.
func TestPodsThatCannotRunAreExplained(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, stuck())
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "12")
	p.until("document.getElementById('reasons').textContent.includes('1 TooLarge')")
	p.run(chromedp.Focus("#reasons [data-reason=TooLarge]", chromedp.ByQuery))
	p.press(kb.Enter)
	p.untilText("panel-title", "1 waiting pod")
	p.untilText("panel-kind", "TooLarge")
	if got := value[string](p, "new URLSearchParams(location.search).get('reason')"); got != "TooLarge" {
		t.Errorf("the address has the reason %q", got)
	}
	p.run(chromedp.Focus("#details .pods button", chromedp.ByQuery))
	p.press(kb.Enter)
	p.untilText("panel-title", "default/too-large")
	p.until("document.querySelectorAll('#details section table tbody tr').length === 2") // Each NodePool has an answer.
	text := value[string](p, "document.getElementById('details').innerText")
	for _, want := range []string{"nvidia.com/gpu.shared: 40 on pod", "TooLarge", "too few replicas left"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "asks for 99"); n != 1 {
		t.Errorf("the refusal is printed %d times:\n%s", n, text)
	}
	picture(p, "too-large")
	links := value[[]string](p, "[...document.querySelectorAll('#details a')].map((a) => [a.textContent, a.href, a.target, a.rel].join(' '))")
	wanted := []string{
		"Grafana https://grafana.example.com/d/karve-gpus?var-namespace=default&var-pod=too-large _blank noopener noreferrer",
		"Logs https://logs.example.com//default/too-large _blank noopener noreferrer", // It has no node.
	}
	if !slices.Equal(links, wanted) {
		t.Errorf("the pod links to %q, want %q", links, wanted)
	}
	// A reason unfolds with the keyboard, and stays so when the panel is drawn again.
	p.run(chromedp.Focus("#details summary", chromedp.ByQuery))
	p.press(kb.Enter)
	p.until("document.querySelector('#details details').open && document.querySelector('#details details p').innerText.includes('asks for 99')")
	p.run(chromedp.Evaluate("document.querySelector('#details details').dataset.before = 'yes'", nil))
	p.run(chromedp.Evaluate("document.querySelector('#theme').click()", nil))
	p.run(chromedp.Evaluate("(() => { const s = document.getElementById('namespace'); s.value = 'search'; s.dispatchEvent(new Event('change')); })()", nil))
	p.until("!document.querySelector('#details details').dataset.before && document.querySelector('#details details').open && document.activeElement.tagName === 'SUMMARY'")
	for pod, want := range map[string]string{"wrong-label": "remove nodeSelector team on pod", "no-volume": "PersistentVolumeClaim", "apart": "whenUnsatisfiable: ScheduleAnyway"} {
		p.run(chromedp.Evaluate(fmt.Sprintf("history.pushState(null, '', '?pod=default/%s'); dispatchEvent(new PopStateEvent('popstate'))", pod), nil))
		p.until(fmt.Sprintf("document.getElementById('panel-title').textContent === 'default/%s' && document.getElementById('details').innerText.includes(%q)", pod, want))
	}
	p.clean(url, token)
}

// TestDeadControllerComesFirst stops and starts the controller while the page is open.
func TestDeadControllerComesFirst(t *testing.T) {
	browser := browse(t)
	url, shown := serve(t, fleet(12))
	seen := time.Now().Add(-time.Hour).UTC()
	shown.works.Store(&leader.Leader{State: leader.Stopped, LastSeen: &seen, Message: "no controller has worked since 14:02 UTC: nothing is launched"})
	p := open(t, browser, url+"/#token="+token)
	p.untilText("stopped", "No controller has worked since 14:02 UTC: nothing is launched.")
	picture(p, "dead")
	if first := value[bool](p, "document.getElementById('stopped').getBoundingClientRect().bottom <= document.querySelector('.tiles').getBoundingClientRect().top"); !first {
		t.Error("the warning is not above the numbers")
	}
	shown.works.Store(nil)
	p.until("document.getElementById('stopped').hidden")
	p.clean(url, token)
}

// TestPhoneShowsEverything opens the page on a phone.
func TestPhoneShowsEverything(t *testing.T) {
	browser := browse(t)
	c := &source{cluster: "arn:aws:eks:eu-central-1:123456789012:cluster/a-rather-long-name-of-a-cluster"}
	c.show(stuck())
	url := c.serve(t)
	p := open(t, browser, "about:blank")
	p.load(emulation.SetDeviceMetricsOverride(360, 740, 2, true), chromedp.Navigate(url+"/#token="+token))
	p.untilText("nodes", "12")
	p.until("document.getElementById('bars-top').textContent.startsWith('$')") // The chart has an axis.
	if axis := value[string](p, "document.querySelector('.axis').innerText"); !strings.Contains(axis, "48") {
		t.Errorf("the axis says %q", axis)
	}
	beyond := func() string {
		return value[string](p, `[...document.querySelectorAll("header > *, .tiles article, .filters > *, #panel")].filter((e) => { const box = e.getBoundingClientRect(); return box.width && (box.left < 0 || box.right > innerWidth + 0.5 || e.parentElement.tagName === "HEADER" && (box.top < 0 || box.bottom > 44)); }).map((e) => e.id || e.tagName).join(" ")`)
	}
	if got := beyond(); got != "" {
		t.Errorf("clipped: %s", got)
	}
	if wide := value[int](p, "document.documentElement.scrollWidth"); wide > 360 {
		t.Errorf("the page is %d pixels wide", wide)
	}
	picture(p, "phone")
	p.run(chromedp.Evaluate("document.querySelector('.tile').click()", nil))
	p.until("!document.getElementById('panel').hidden")
	if got := beyond(); got != "" {
		t.Errorf("with a node open, clipped: %s", got)
	}
	p.run(chromedp.Evaluate("document.getElementById('close').click()", nil))
	p.until("document.getElementById('panel').hidden")
	for query, title := range map[string]string{"?pod=*&reason=TooLarge": "1 waiting pod", "?pod=default/too-large": "default/too-large", "?pod=default/apart": "default/apart"} {
		p.load(chromedp.Navigate(url + "/" + query + "#token=" + token))
		p.untilText("panel-title", title)
		p.until("document.querySelector('#details .badge, #details .pods')")
		wide := value[[]int](p, `[document.documentElement.scrollWidth, ...[...document.querySelectorAll("#details, #details > *, #details a, #details summary")].filter((e) => !e.closest(".scrolls")).map((e) => Math.ceil(e.getBoundingClientRect().right))]`)
		if got := beyond(); got != "" || slices.Max(wide) > 360 {
			t.Errorf("with %s, clipped: %s, to %d pixels", query, got, slices.Max(wide))
		}
		picture(p, "phone-"+strings.NewReplacer("?", "", "/", "-", "*", "all", "&", "-").Replace(query))
	}
}

// TestColorsStay reloads the page when other namespaces have the most replicas.
func TestColorsStay(t *testing.T) {
	browser := browse(t)
	url, shown := serve(t, fleet(40))
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "40")
	const legend = `JSON.stringify([...document.querySelectorAll("#legend [data-namespace]")].map((e) => e.dataset.namespace + "=" + e.firstElementChild.className).sort())`
	p.until(legend + " !== '[]'")
	before := value[string](p, legend)
	less := fleet(40)
	for i := range less.Pods { // The order of the namespaces turns around.
		if j := i % 10; less.Pods[i].Namespace == teams[j] && j < 5 {
			less.Pods[i].Namespace = teams[9-j]
		}
	}
	shown.show(less)
	p.load(chromedp.Reload())
	p.untilText("nodes", "40")
	p.until(legend + " !== '[]'")
	if after := value[string](p, legend); after != before {
		t.Errorf("the colors were %s, and after a reload they are %s", before, after)
	}
	p.load(chromedp.Evaluate("localStorage.setItem('karve-colors production', '[[1,\"x\"],[\"search\",\"c9\"]')", nil), chromedp.Reload())
	p.untilText("nodes", "40")
	p.until("document.querySelectorAll('#legend [data-namespace]').length === 7")
	p.clean(url, token)
}

// TestTextOfOthersIsInert shows objects whose texts are markup and control characters.
func TestTextOfOthersIsInert(t *testing.T) {
	const markup = "<img src=x onerror=hit()><script>hit()</script>"
	const poison = markup + "\"'`${hit()}\u202e\x1b[31m\u200b"
	browser := browse(t)
	c := stuck()
	c.NodePools[0].Status.Conditions = []status.Condition{{Type: v1alpha1.ConditionReplicasHealthy, Status: metav1.ConditionFalse, Reason: "Because", Message: poison}}
	c.Nodes[0].Labels[corev1.LabelTopologyZone], c.Nodes[0].Labels[corev1.LabelInstanceTypeStable] = poison, poison
	c.NodeClaims[0].Labels[corev1.LabelTopologyZone], c.NodeClaims[0].Labels[corev1.LabelInstanceTypeStable] = poison, poison
	for i := range c.Nodes {
		c.Nodes[i].Annotations = map[string]string{"karve.sh/gpu-holders": poison, "karve.sh/idle-since": poison}
	}
	c.Pods = append(c.Pods, Pod("poisoned", Selecting(poison, poison), GPUMemory("lots"), func(p *corev1.Pod) {
		p.Spec.SchedulerName, p.Status.NominatedNodeName = poison, poison
		p.Annotations[poison] = poison
	}), Pod("untried", func(p *corev1.Pod) { p.Spec.SchedulerName, p.Status.Conditions = poison, nil }))
	shown := &source{note: poison, cluster: poison}
	shown.works.Store(&leader.Leader{State: leader.Stopped, Message: poison})
	shown.show(c)
	url := shown.serve(t)
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "12")
	for _, pod := range []string{"poisoned", "untried", "too-large"} {
		p.run(chromedp.Evaluate(fmt.Sprintf("history.pushState(null, '', '?pod=default/%s'); dispatchEvent(new PopStateEvent('popstate'))", pod), nil))
		p.until(fmt.Sprintf("document.getElementById('panel-title').textContent === 'default/%s' && document.querySelector('#details .badge').textContent === 'Waiting' || document.querySelector('#details .badge')?.textContent === 'HasRoom'", pod))
	}
	p.run(chromedp.Evaluate("document.querySelector('.tile').click()", nil))
	p.until("document.querySelectorAll('.causes b').length > 0")
	for _, id := range []string{"stopped", "note", "cluster"} {
		if got := p.text(id); !strings.Contains(got, markup) || strings.ContainsAny(got, "\u202e\x1b\u200b") {
			t.Errorf("%s says %q", id, got)
		}
	}
	if n := value[int](p, "document.querySelectorAll('img, script:not([src=\"theme.js\"]):not([src=\"main.js\"])').length"); n != 0 {
		t.Errorf("%d elements came from texts", n)
	}
	picture(p, "poisoned")
	p.clean(url, token)
}
