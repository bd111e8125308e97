package advice_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/advice"
	"karve.sh/karve/pkg/internal/docpage"
)

var jsonMerge = jsonpatch.MergePatch

func slicing(replicas string) string { return "{strategy: TimeSlicing, replicas: " + replicas + "}" }

const (
	shared = "nvidia.com/gpu.shared"
	whole  = "nvidia.com/gpu"
)

func clusters() map[string]generated {
	t4 := func(replicas string) []pool {
		return []pool{{name: "t4", families: "g4dn", sharing: slicing(replicas)}}
	}
	light := func(a app) app { a.gpu, a.pool = shared, "t4"; return a }
	with := func(apps []app, change func(*app)) (changed []app) {
		for _, a := range apps {
			change(&a)
			changed = append(changed, a)
		}
		return changed
	}
	frugal := func(a *app) { a.cpuWaste, a.memoryWaste = 1, 1 }
	all := map[string]generated{}

	cpu := []app{
		light(app{kind: "Deployment", name: "chat", pods: 24, cores: 0.25, gibs: 1, busy: 0.05, device: 0.9, cpuWaste: 8, memoryWaste: 2}),
		light(app{kind: "StatefulSet", name: "books", pods: 12, cores: 0.2, gibs: 1.2, busy: 0.04, device: 1, cpuWaste: 6, memoryWaste: 2, office: true}),
		light(app{kind: "Deployment", name: "embed", pods: 4, cores: 0.5, gibs: 2, busy: 0.06, device: 1.1, cpuWaste: 1, memoryWaste: 1}),
	}
	all["CPU requests fill the machines"] = generated{pools: t4("10"), leanPools: t4("10"), apps: cpu, lean: with(cpu, frugal), untouched: []string{"embed"}}

	few := []app{
		light(app{kind: "Deployment", name: "chat", pods: 20, cores: 0.2, gibs: 0.8, busy: 0.08, device: 1.2, cpuWaste: 1, memoryWaste: 1}),
		light(app{kind: "Deployment", name: "rank", pods: 16, cores: 0.15, gibs: 0.6, busy: 0.05, device: 0.8, cpuWaste: 1, memoryWaste: 1, office: true}),
	}
	all["GPUs have too few replicas"] = generated{pools: t4("2"), leanPools: t4("8"), apps: few, lean: few, untouched: []string{"chat", "rank"}}

	own := []app{
		{kind: "Deployment", name: "ocr", pool: "own", gpu: whole, pods: 9, cores: 0.3, gibs: 1, busy: 0.1, device: 2, cpuWaste: 1, memoryWaste: 1},
		{kind: "Deployment", name: "speech", pool: "own", gpu: whole, pods: 6, cores: 0.2, gibs: 1, busy: 0.12, device: 1.5, cpuWaste: 1, memoryWaste: 1, office: true},
	}
	all["pods have whole GPUs and use little"] = generated{
		pools: []pool{{name: "own", families: "g4dn", sharing: "{strategy: None}"}}, leanPools: []pool{{name: "own", families: "g4dn", sharing: "{strategy: TimeSlicing, replicas: 5, resourceName: nvidia.com/gpu}"}}, apps: own, lean: own,
	}

	both := []app{
		light(app{kind: "Deployment", name: "chat", pods: 30, cores: 0.2, gibs: 0.5, busy: 0.03, device: 1, states: "6Gi", cpuWaste: 5, memoryWaste: 6}),
		light(app{kind: "CronJob", name: "eval", pods: 6, cores: 0.3, gibs: 0.5, busy: 0.1, device: 1, cpuWaste: 4, memoryWaste: 2, office: true, number: 2}),
	}
	lean := with(both, frugal)
	lean[0].states, lean[1].number = "1184Mi", 1
	all["requests, stated memory and replicas save only together"] = generated{pools: t4("3"), leanPools: t4("10"), apps: both, lean: lean}

	mixed := []app{
		light(app{kind: "Deployment", name: "api", pods: 18, cores: 0.3, gibs: 1, busy: 0.04, device: 1, cpuWaste: 6, memoryWaste: 1}),
		{kind: "Deployment", name: "llm", pool: "a10g", gpu: shared, pods: 4, cores: 1, gibs: 8, busy: 0.9, device: 13.5, cpuWaste: 1, memoryWaste: 1, reserves: true},
		{kind: "Deployment", name: "trainer", pool: "busy", gpu: shared, pods: 6, cores: 1, gibs: 4, busy: 0.3, device: 3, cpuWaste: 1, memoryWaste: 1, contended: true},
		{kind: "Job", name: "batch", pool: "jobs", gpu: shared, pods: 8, cores: 0.5, gibs: 2, busy: 0.24, device: 3, cpuWaste: 1, memoryWaste: 1},
	}
	pools := func(jobs string) []pool {
		return []pool{{name: "t4", families: "g4dn", sharing: slicing("10")}, {name: "a10g", families: "g5", sharing: slicing("2")}, {name: "busy", families: "g4dn", sharing: slicing("2")}, {name: "jobs", families: "g4dn", sharing: slicing(jobs)}}
	}
	all["some GPUs are busy, and others are not"] = generated{pools: pools("2"), leanPools: pools("4"), apps: mixed, lean: with(mixed, frugal), untouched: []string{"llm", "trainer", "GPUNodeClass a10g", "GPUNodeClass busy"}}

	large := []app{
		light(app{kind: "Deployment", name: "chat", pods: 3, cores: 0.3, gibs: 1, busy: 0.2, device: 4, cpuWaste: 1, memoryWaste: 1}),
		light(app{kind: "StatefulSet", name: "books", pods: 5, cores: 0.3, gibs: 1, busy: 0.2, device: 4, cpuWaste: 1, memoryWaste: 1, office: true}),
	}
	sizes := "g4dn]}\n      - {key: karpenter.k8s.aws/instance-size, operator: In, values: [12xlarge, 16xlarge"
	all["only large machines are allowed"] = generated{pools: []pool{{name: "t4", families: sizes, sharing: slicing("3")}}, leanPools: t4("3"), apps: large, lean: large}

	// Of two workloads with whole GPUs, one uses little and could share those of another.
	apart := []app{
		light(app{kind: "Deployment", name: "chat", pods: 12, cores: 0.2, gibs: 0.8, busy: 0.05, device: 0.9, cpuWaste: 1, memoryWaste: 1}),
		{kind: "Deployment", name: "ocr", pool: "own", gpu: whole, pods: 5, cores: 0.2, gibs: 0.8, busy: 0.06, device: 1, cpuWaste: 1, memoryWaste: 1},
		{kind: "Deployment", name: "llm", pool: "own", gpu: whole, pods: 3, cores: 1, gibs: 6, busy: 0.9, device: 14, cpuWaste: 1, memoryWaste: 1, reserves: true},
	}
	together := slices.Clone(apart)
	together[1].pool, together[1].gpu = "t4", shared
	all["one workload with whole GPUs uses little"] = generated{
		pools: append(t4("10"), pool{name: "own", families: "g4dn", sharing: "{strategy: None}"}), leanPools: append(t4("10"), pool{name: "own", families: "g4dn", sharing: "{strategy: None}"}),
		apps: apart, lean: together, untouched: []string{"llm", "GPUNodeClass own"},
	}

	// Forty replicas are kept free, and never more than ten pods begin together.
	spare := []app{
		light(app{kind: "Deployment", name: "chat", pods: 10, cores: 0.2, gibs: 0.8, busy: 0.06, device: 1.1, cpuWaste: 1, memoryWaste: 1}),
		light(app{kind: "StatefulSet", name: "books", pods: 10, cores: 0.2, gibs: 0.8, busy: 0.06, device: 1.1, cpuWaste: 1, memoryWaste: 1, office: true}),
	}
	all["more replicas are kept free than a burst needs"] = generated{
		pools:     []pool{{name: "t4", families: "g4dn", sharing: slicing("8") + "\n  headroom: [{replicas: 60}, {replicas: 80, schedule: \"0 7 * * mon-fri\", duration: 10h}]"}},
		leanPools: []pool{{name: "t4", families: "g4dn", sharing: slicing("8") + "\n  headroom: [{replicas: 10}]"}}, apps: spare, lean: spare,
	}

	// Machines that cost little per pod expire every few hours.
	short := []app{light(app{kind: "Deployment", name: "chat", pods: 60, cores: 0.2, gibs: 0.8, busy: 0.06, device: 0.5, cpuWaste: 1, memoryWaste: 1})}
	all["machines expire all the time"] = generated{
		pools: []pool{{name: "t4", families: "g4dn", sharing: slicing("10"), expireAfter: "12h"}}, leanPools: t4("10"), apps: short, lean: short,
	}

	// A pool for each team, of which each fills half of a machine.
	teams := []app{}
	var own4 []pool
	for _, team := range []string{"a", "b", "c", "d"} {
		own4 = append(own4, pool{name: team, families: "g4dn", sharing: slicing("8")})
		teams = append(teams, app{kind: "Deployment", name: "serve-" + team, pool: team, gpu: shared, pods: 2, cores: 0.3, gibs: 1, busy: 0.05, device: 1, cpuWaste: 1, memoryWaste: 1})
	}
	all["pools could be one"] = generated{pools: own4, leanPools: own4[:1], apps: teams, lean: with(teams, func(a *app) { a.pool = "a" })}
	return all
}

// TestAdviceFindsTheWasteOfGeneratedClusters compares with a replay of the same pods without the waste. It applies the patches in order as kubectl would, and replays the result: the
// replay confirms every step.
func TestAdviceFindsTheWasteOfGeneratedClusters(t *testing.T) {
	t.Parallel()
	for name, g := range clusters() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, best := measured(t, g.pools, g.apps), measured(t, g.leanPools, g.lean)
			got, err := advice.Of(m, "")
			if err != nil {
				t.Fatal(err)
			}
			waste := got.Replayed - priceOf(t, &best)
			found := got.Replayed - got.After
			t.Logf("$%.2f of $%.2f wasted, %.0f %% found", float64(waste)/1e6, float64(got.Replayed)/1e6, 100*float64(found)/float64(waste))
			if waste <= got.Replayed/20 || float64(found) < 0.8*float64(waste) {
				t.Errorf("found $%.2f of $%.2f", float64(found)/1e6, float64(waste)/1e6)
			}
			price := priceOf(t, &m)
			if price != got.Replayed {
				t.Errorf("the replay costs %d, want %d", got.Replayed, price)
			}
			for _, step := range got.Steps {
				for _, c := range step.Changes {
					t.Logf("%.2f: %s: %s\n%q\n%q\n%+v", float64(step.Saves)/1e6, c.Object, c.Do, c.Evidence, c.Risks, c.Patches)
					for _, p := range c.Patches {
						apply(t, &m, p)
					}
					for _, object := range g.untouched {
						if strings.HasSuffix(c.Object, object) {
							t.Errorf("%s: %s", c.Object, c.Do)
						}
					}
				}
				after := priceOf(t, &m)
				if price-after != step.Saves || step.Saves <= 0 {
					t.Errorf("the replay of the patches saves %d, and the step %d", price-after, step.Saves)
				}
				price = after
			}
			for _, n := range got.Notes {
				t.Log(n)
			}
			if price != got.After {
				t.Errorf("with all patches it costs %d, want %d", price, got.After)
			}
		})
	}
}

// TestNoAdviceWithoutMoney has requests that nobody needs on machines that something else fills.
func TestNoAdviceWithoutMoney(t *testing.T) {
	t.Parallel()
	one := func(a app) []app { a.kind, a.name, a.pool, a.gpu = "Deployment", "chat", "t4", shared; return []app{a} }
	for name, c := range map[string]struct {
		replicas string
		apps     []app
		change   func(*advice.Workload)
	}{
		"the replicas fill the machines":    {"2", one(app{pods: 10, cores: 0.1, gibs: 0.5, busy: 0.34, device: 6, cpuWaste: 10, memoryWaste: 4}), nil},
		"the requests are those of the use": {"10", one(app{pods: 10, cores: 1, gibs: 1, busy: 0.01, device: 0.1, cpuWaste: 1, memoryWaste: 1}), nil},
		"a single pod needs a machine":      {"4", one(app{pods: 1, cores: 0.1, gibs: 0.5, busy: 0.01, device: 0.1, cpuWaste: 20, memoryWaste: 4}), nil},
		"too few samples": {"10", one(app{pods: 10, cores: 0.2, gibs: 0.5, busy: 0.01, device: 0.1, cpuWaste: 10, memoryWaste: 1}), func(w *advice.Workload) {
			main := w.Containers["main"]
			main.CPU.Samples = 99
			w.Containers["main"] = main
		}},
		"too short": {"10", one(app{pods: 10, cores: 0.2, gibs: 0.5, busy: 0.01, device: 0.1, cpuWaste: 10, memoryWaste: 1}), func(w *advice.Workload) {
			for i := range w.Runs {
				w.Runs[i] = advice.Run{From: 0, To: 23 * time.Hour}
			}
		}},
	} {
		m := measured(t, []pool{{name: "t4", families: "g4dn", sharing: slicing(c.replicas)}}, c.apps)
		if c.change != nil {
			c.change(&m.Workloads[0])
		}
		got, err := advice.Of(m, "")
		if err != nil || len(got.Steps) != 0 || got.After != got.Replayed {
			t.Errorf("%s: %+v, %v", name, got.Steps, err)
		}
		if text := got.Text(); !strings.Contains(text, "No change is worth it") {
			t.Errorf("%s: %s", name, text)
		}
	}
}

func TestAdviceForANamespaceIsAboutItsWorkloads(t *testing.T) {
	t.Parallel()
	g := clusters()["requests, stated memory and replicas save only together"]
	m := measured(t, g.pools, g.apps)
	m.Workloads[1].Namespace = "other"
	got, err := advice.Of(m, "ml")
	if err != nil || len(got.Steps) == 0 {
		t.Fatal(got.Steps, err)
	}
	for _, step := range got.Steps {
		for _, c := range step.Changes {
			if c.Namespace != "ml" || !strings.HasPrefix(c.Object, "Deployment ml/chat") {
				t.Errorf("%s: %s", c.Object, c.Do)
			}
		}
	}
}

func TestAdviceDoesNotDependOnTheOrderOfWorkloads(t *testing.T) {
	t.Parallel()
	g := clusters()["some GPUs are busy, and others are not"]
	m := measured(t, g.pools, g.apps)
	once, err := advice.Of(m, "")
	if err != nil {
		t.Fatal(err)
	}
	again, err := advice.Of(m, "")
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(m.Workloads)
	reversed, err := advice.Of(m, "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(once, again); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(once.Steps, reversed.Steps); diff != "" {
		t.Error(diff)
	}
}

// TestManyWorkloadsChangeTogether has more workloads than are changed one by one, of which each wastes little.
func TestManyWorkloadsChangeTogether(t *testing.T) {
	t.Parallel()
	var apps []app
	for i := range 60 {
		apps = append(apps, app{
			kind: "Deployment", name: fmt.Sprint("small-", i), pool: "t4", gpu: shared, pods: 1, cores: 0.1, gibs: 0.5, busy: 0.01, device: 0.1, cpuWaste: 8 + float64(i%3), memoryWaste: 1,
		})
	}
	m := measured(t, []pool{{name: "t4", families: "g4dn", sharing: slicing("16")}}, apps)
	got, err := advice.Of(m, "")
	if err != nil || got.After > got.Replayed*6/10 {
		t.Errorf("%+v, %v", got, err)
	}
	t.Logf("%d of %d", got.After, got.Replayed)
	if !slices.ContainsFunc(got.Steps, func(s advice.Step) bool { return s.Changes[0].Object == "50 smaller workloads" }) {
		t.Errorf("%+v", got.Steps)
	}
}

func TestWorkloadsAreMadeOfTheirPods(t *testing.T) {
	t.Parallel()
	pod := func(name, kind, owner, pool string, from, to time.Duration) advice.Pod {
		return advice.Pod{Namespace: "ml", Name: name, Kind: kind, Owner: owner, Pool: pool, Runs: []advice.Run{{From: from, To: to}}, Containers: map[string]advice.Container{"main": {CPU: advice.Use{Samples: 10, P95: 1}}}}
	}
	live := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "chat-2", OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "chat", Controller: new(true)}}}}
	live.Spec.Containers = []corev1.Container{{Name: "main", Image: "live"}}
	old, ended := pod("chat-1", "StatefulSet", "chat", "a", 0, time.Hour), pod("train-x", "Job", "train", "a", 0, 2*time.Hour)
	old.Requests = map[string]corev1.ResourceList{"main": {corev1.ResourceCPU: resource.MustParse("1")}}
	ended.Requests = map[string]corev1.ResourceList{"main": {corev1.ResourceCPU: resource.MustParse("2"), shared: resource.MustParse("1")}}
	all, lost := advice.Workloads([]advice.Pod{old, pod("chat-2", "StatefulSet", "chat", "b", 30*time.Minute, 9*time.Hour), ended, pod("lost", "Pod", "lost", "a", 0, 1)}, []corev1.Pod{live})
	if len(all) != 2 || len(lost) != 1 || !strings.HasPrefix(lost[0], "Pod ml/lost is left out: ") {
		t.Fatal(all, lost)
	}
	train, chat := all[0], all[1]
	if chat.Name != "chat" {
		train, chat = chat, train
	}
	if chat.Pool != "b" || chat.Pods != 2 || chat.Most != 2 || chat.Template.Spec.Containers[0].Image != "live" || chat.Containers["main"].CPU.Samples != 20 {
		t.Errorf("%+v", chat)
	}
	c := train.Template.Spec.Containers[0].Resources
	if train.Template.Spec.NodeSelector["karpenter.sh/nodepool"] != "a" || c.Requests.Cpu().Value() != 2 || c.Limits.Name(shared, resource.DecimalSI).Value() != 1 || len(c.Limits) != 1 {
		t.Errorf("%+v", train.Template.Spec)
	}
}

var update = flag.Bool("update", false, "write the output of the example to docs/advise.md")

// TestDocumentShowsActualAdvice compares the example in docs/advise.md with the first step of the advice for a made-up fleet.
func TestDocumentShowsActualAdvice(t *testing.T) {
	t.Parallel()
	m := measured(t, []pool{{name: "gpu-shared", families: "g4dn", sharing: slicing("4")}}, []app{
		{kind: "Deployment", name: "chat", pool: "gpu-shared", gpu: shared, pods: 30, cores: 0.2, gibs: 0.8, busy: 0.05, device: 0.9, cpuWaste: 10, memoryWaste: 1},
		{kind: "StatefulSet", name: "notebooks", pool: "gpu-shared", gpu: shared, pods: 12, cores: 0.3, gibs: 1, busy: 0.08, device: 1.1, cpuWaste: 1, memoryWaste: 1, office: true},
	})
	m.Billed, m.GPUBusy = 1_361_740_000, 0.09
	a, err := advice.Of(m, "")
	if err != nil {
		t.Fatal(err)
	}
	got := a.Text()
	for line := range strings.Lines(got) {
		if len([]rune(line)) > 81 {
			t.Errorf("more than 80 columns: %s", line)
		}
	}
	first, _, more := strings.Cut(got, "\n2. ")
	if !more {
		t.Errorf("there is no second step:\n%s", got)
	}
	docpage.Check(t, "../../docs/advise.md", "```\n$ kubectl karve advise\n", "```\n", first+"\n…\n", *update)
}
