package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fieldselectors "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/overview/overviewtest"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// agentMetrics are what the agent of the node busy serves.
const agentMetrics = `# TYPE karve_gpu_memory_used_bytes gauge
karve_gpu_memory_used_bytes{gpu="GPU-busy",index="0",product="Tesla T4"} 7.65460480e+09
# TYPE karve_gpu_utilization_ratio gauge
karve_gpu_utilization_ratio{gpu="GPU-busy",index="0",product="Tesla T4"} 0.31
# TYPE karve_pod_gpu_memory_used_bytes gauge
karve_pod_gpu_memory_used_bytes{namespace="team",pod="infer-0",container="main",gpu="GPU-busy"} 2.147483648e+09
karve_pod_gpu_memory_used_bytes{namespace="lab",pod="notebook-0",container="main",gpu="GPU-busy"} 5.583457484e+09
# TYPE karve_pod_gpu_sm_ratio gauge
karve_pod_gpu_sm_ratio{namespace="team",pod="infer-0",container="main",gpu="GPU-busy"} 0.31
karve_pod_gpu_sm_ratio{namespace="lab",pod="notebook-0",container="main",gpu="GPU-busy"} 0
`

// silenced returns the cluster without any report of an agent, as with an old one.
func silenced() *facts.Cluster {
	c := overviewtest.Example()
	for i := range c.Nodes {
		delete(c.Nodes[i].Annotations, nodecontract.HoldersAnnotation)
	}
	return c
}

// discounted returns the cluster where one node costs less than by the list.
func discounted() *facts.Cluster {
	c := overviewtest.Example()
	for i := range c.NodeClaims {
		if c.NodeClaims[i].Name == "busy" {
			c.NodeClaims[i].Annotations[v1alpha1.ListPriceAnnotation] = "700000"
		}
	}
	return c
}

func measured(t *testing.T) *overview.Overview {
	t.Helper()
	m, err := overview.ParseMetrics(strings.NewReader(agentMetrics))
	if err != nil {
		t.Fatal(err)
	}
	all := overview.Build(overviewtest.Example())
	all.Measure(map[string]overview.Measured{"busy": m})
	return all
}

// reserved returns a cluster with a machine in a reservation, which others use too, a capacity block, and a reservation that nobody has counted.
func reserved() *facts.Cluster {
	c := snapshottest.Shared()
	snapshottest.Reserve(c, catalog.Reservation{ID: "cr-0a", InstanceType: "g4dn.xlarge", Free: 2, Total: 5, End: snapshottest.Now.Add(49 * time.Hour)})
	snapshottest.Reserve(c, catalog.Reservation{ID: "cr-0b", InstanceType: "g4dn.12xlarge", Free: 1, Total: 1, End: snapshottest.Now.Add(160 * time.Minute), Leaves: snapshottest.Now.Add(2 * time.Hour)})
	snapshottest.Reserve(c, catalog.Reservation{ID: "cr-0c", InstanceType: "g4dn.xlarge"})
	state := c.NodeClasses[snapshottest.NodeClassRef]
	state.Reservations[2].Read = time.Time{}
	kind := snapshottest.TypeNamed("g4dn.xlarge")
	for i, at := range []time.Time{snapshottest.Now.Add(-time.Hour), snapshottest.Now} { // The second one was launched after the free ones were counted.
		claim := snapshottest.Claim(fmt.Sprintf("slot-%d", i), &c.NodePools[0], kind, snapshottest.Reserved("cr-0a"), snapshottest.Initialized(at))
		c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, snapshottest.Node(&claim, kind, 10))
	}
	return c
}

// TestWhatIsShown compares what the verbs print of a cluster with testdata/show.
func TestWhatIsShown(t *testing.T) {
	t.Parallel()
	example, none := overview.Build(overviewtest.Example()), overview.Build(snapshottest.Shared())
	inspect := func(o inspectOptions, all *overview.Overview, names ...string) func(*testing.T, streams) error {
		return func(_ *testing.T, s streams) error { return o.print(s, all, names) }
	}
	nodes, pods := (*topOptions).nodes, (*topOptions).pods
	for name, print := range map[string]func(*testing.T, streams) error{
		"inspect":              inspect(inspectOptions{}, example),
		"inspect-list-prices":  inspect(inspectOptions{}, overview.Build(discounted())),
		"inspect-wide":         inspect(inspectOptions{output: output{format: "wide"}}, example),
		"inspect-detail":       inspect(inspectOptions{detail: true}, example),
		"inspect-detail-wide":  inspect(inspectOptions{detail: true, output: output{format: "wide"}}, example, "quad"),
		"inspect-json":         inspect(inspectOptions{output: output{format: "json"}}, example, "busy"),
		"inspect-yaml":         inspect(inspectOptions{output: output{format: "yaml"}}, example, "stale"),
		"inspect-no-agents":    inspect(inspectOptions{detail: true}, overview.Build(silenced())),
		"inspect-reservations": inspect(inspectOptions{}, overview.Build(reserved())),
		"inspect-no-nodes":     inspect(inspectOptions{}, none),
		"inspect-other-node":   inspect(inspectOptions{}, example, "nowhere"),
		"top-list-prices": func(_ *testing.T, s streams) error {
			return (&topOptions{}).print(s, overview.Build(discounted()), nodes, nil)
		},
		"top-nodes": func(t *testing.T, s streams) error { return (&topOptions{}).print(s, measured(t), nodes, nil) },
		"top-nodes-by-idle": func(t *testing.T, s streams) error {
			return (&topOptions{sortBy: "idle", output: output{format: "wide"}}).print(s, measured(t), nodes, nil)
		},
		"top-pods": func(t *testing.T, s streams) error { return (&topOptions{}).print(s, measured(t), pods, nil) },
		"top-pods-by-memory": func(t *testing.T, s streams) error {
			return (&topOptions{sortBy: "mem", output: output{format: "wide"}}).print(s, measured(t), pods, nil)
		},
		"top-pods-without": func(_ *testing.T, s streams) error {
			notes := topNotes(nil, trouble{asked: 8, without: 3, failed: 5, first: errors.New("you may not get pods/proxy in the namespace karve-system")}, "pods")
			return (&topOptions{}).print(s, overview.Build(silenced()), pods, notes)
		},
		"top-pods-none": func(_ *testing.T, s streams) error { return (&topOptions{}).print(s, none, pods, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			if err := print(t, streams{nil, &out, &errOut}); err != nil {
				fmt.Fprintf(&errOut, "error: %v\n", err)
			}
			compare(t, name+".txt", out.String()+"-- stderr --\n"+errOut.String())
		})
	}
}

// compare compares text with a file in testdata/show.
func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "show", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-want +got; -update accepts it)\n%s", diff)
	}
}

// visible replaces the sequences of a frame by names, so that it can be read.
var visible = strings.NewReplacer("\x1b[H", "<home>", "\x1b[K\r\n", "\n", "\x1b[K", "", "\x1b[J", "<clear>", "\x1b[0m", "</>", "\x1b[", "<")

// TestTheLiveViewDraws compares frames of the live view with testdata/show.
func TestTheLiveViewDraws(t *testing.T) {
	t.Parallel()
	now := overviewtest.Now
	start := view{all: measured(t), now: now.Add(2 * time.Second), updated: now, width: 120, height: 11}
	for name, c := range map[string]struct {
		edit func(*view)
		keys []string
	}{
		"first":                         {func(*view) {}, nil},
		"scrolled":                      {func(*view) {}, []string{"down", "down", "up"}},
		"at-the-end":                    {func(*view) {}, []string{"pgdown", "pgdown", "pgdown"}},
		"by-price-on-a-narrow-terminal": {func(v *view) { v.width = 50 }, []string{"s", "s"}},
		"by-state-in-colors":            {func(v *view) { v.colors = newPalette() }, []string{"s", "s", "s", "s"}},
		"pods":                          {func(v *view) { v.height = 24 }, []string{"end", "p"}},
		"out-of-date":                   {func(v *view) { v.err, v.now = errors.New("the server\nis away"), now.Add(70*time.Second) }, nil},
		"at-width-80":                   {func(v *view) { v.width = 80; cloudNames(v) }, nil},
		"pods-at-width-80":              {func(v *view) { v.width, v.height = 80, 18; cloudNames(v) }, []string{"p"}},
		"pods-wide":                     {func(v *view) { v.width, v.height, v.wide = 160, 18, true }, []string{"p"}},
		"without-nodes":                 {func(v *view) { v.all = overview.Build(snapshottest.Shared()) }, []string{"end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := start
			c.edit(&v)
			for _, k := range c.keys {
				v.press(k)
			}
			frame := v.frame()
			if lines := strings.Count(frame, "\n") + 1; lines != v.height {
				t.Errorf("the frame has %d lines on a terminal of %d", lines, v.height)
			}
			compare(t, "view-"+name+".txt", visible.Replace(frame)+"\n")
		})
	}
	pods := view{all: start.all, pods: true}
	compare(t, "pods.txt", pods.text())
	once := view{all: start.all}
	compare(t, "nodes.txt", once.text())
}

func TestPodsThatWaitComeFirstByState(t *testing.T) {
	t.Parallel()
	v := view{pods: true, order: len(orders) - 1, all: &overview.Overview{
		Pods:    []overview.Pod{{Name: "uses"}, {Name: "wastes", UnusedSeconds: new(int64(60))}, {Name: "wastes-most", UnusedSeconds: new(int64(3600))}},
		Waiting: []overview.Waiting{{Name: "x-gated", Reason: "SchedulingGated"}, {Name: "y-new"}},
	}}
	var got []string
	for _, row := range v.podTable(full).Rows {
		got = append(got, row[0]+" "+row[1])
	}
	if diff := cmp.Diff([]string{"/x-gated SchedulingGated", "/y-new Waiting", "/wastes-most Starting", "/wastes Starting", "/uses Starting"}, got); diff != "" {
		t.Error(diff)
	}
}

// cloudNames gives the nodes names as long as those of EC2, and the pods those of a Deployment.
func cloudNames(v *view) {
	all := *v.all
	all.Nodes, all.Pods = slices.Clone(all.Nodes), slices.Clone(all.Pods)
	named := map[string]string{}
	for i := range all.Nodes {
		n := &all.Nodes[i]
		named[n.Name] = fmt.Sprintf("ip-10-0-%d-137.us-west-2.compute.internal", 41+i)
		n.Name = named[n.Name]
	}
	for i := range all.Pods {
		p := &all.Pods[i]
		p.Node, p.Name = named[p.Node], p.Name+"-6c9f8d6b5d-x2x4z"
	}
	v.all = &all
}

// TestNarrowTerminalsShowWhatMatters looks for the columns without which a row says nothing, on a terminal of 80 columns and with names as long as those of EC2.
func TestNarrowTerminalsShowWhatMatters(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 100, 120} {
		for _, pods := range []bool{false, true} {
			v := view{all: measured(t), now: overviewtest.Now, updated: overviewtest.Now, width: width, height: 30, pods: pods}
			cloudNames(&v)
			want := []string{"NODE", "REPLICAS", "$/H", "STATE", "ip-10-0-44-137", "idle 3m, deleted in 2m", "0.526"}
			if pods {
				want = []string{"POD", "STATE", "REPLICAS", "$/H", "lab/notebook-0-6c9f8d6b5d-x2x4z", "Running", "Unschedulable", "0.105"}
			}
			frame := v.frame()
			for _, text := range want {
				if !strings.Contains(frame, text) {
					t.Errorf("%d columns, pods: %t: %q is missing in\n%s", width, pods, text, frame)
				}
			}
		}
	}
}

func TestReplicasInARowAreARange(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]int{"all": nil, "3": {3}, "3,4": {3, 4}, "0-2,5,7-9": {0, 1, 2, 5, 7, 8, 9}} {
		if got := numbers(all); got != want {
			t.Errorf("%v is %s, want %s", all, got, want)
		}
	}
}

// serve starts an API server that serves the objects of a cluster, and the metrics of agents. It refuses the paths that contain one of the words in forbidden.
func serve(t testing.TB, c *facts.Cluster, forbidden ...string) string {
	t.Helper()
	return serveWith(t, c, time.Now(), forbidden...)
}

// serveWith is like serve with a controller that last worked at a time, or with none if the time is zero.
func serveWith(t testing.TB, c *facts.Cluster, worked time.Time, forbidden ...string) string {
	t.Helper()
	c.Pods = append(c.Pods, agentPod("busy"), agentPod("quad"))
	for i := range c.Nodes { // The commands read the clock, and fresh reports are to stay fresh.
		if r, ok, err := nodecontract.ParseHolders(c.Nodes[i].Annotations[nodecontract.HoldersAnnotation]); ok && err == nil && r.FreshAt(c.Now) {
			r.AsOf = time.Now()
			c.Nodes[i].Annotations[nodecontract.HoldersAnnotation] = r.String()
		}
	}
	mux := http.NewServeMux()
	serve := func(path string, v any) {
		var answers sync.Map // by the query
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for _, word := range forbidden {
				if strings.Contains(r.URL.Path, word) {
					w.WriteHeader(http.StatusForbidden)
					v := metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "forbidden"}
					_ = json.NewEncoder(w).Encode(v)
					return
				}
			}
			switch v := v.(type) {
			case string:
				fmt.Fprint(w, v)
			case *corev1.NodeList, *corev1.PodList:
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				body, ok := answers.Load(r.URL.RawQuery)
				if !ok {
					body = answerTo(r, v)
					answers.Store(r.URL.RawQuery, body)
				}
				_, _ = w.Write(body.([]byte))
			default:
				_ = json.NewEncoder(w).Encode(v)
			}
		})
	}
	resources := func(group string, kinds ...string) metav1.APIResourceList {
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group}
		for _, kind := range kinds {
			name := strings.ToLower(kind) + "s"
			if kind == "GPUNodeClass" {
				name = "gpunodeclasses"
			}
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name, Kind: kind, Namespaced: kind == "Pod", Verbs: metav1.Verbs{"list"}})
		}
		return list
	}
	list := func(group, kind string) metav1.TypeMeta {
		return metav1.TypeMeta{Kind: kind + "List", APIVersion: group}
	}
	version := func(group, v string) metav1.APIGroup {
		gv := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + v, Version: v}
		return metav1.APIGroup{Name: group, Versions: []metav1.GroupVersionForDiscovery{gv}, PreferredVersion: gv}
	}
	serve("/api", metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
	serve("/apis", metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{version("karpenter.sh", "v1"), version("karve.sh", "v1alpha1"), version("coordination.k8s.io", "v1")}})
	leases := resources("coordination.k8s.io/v1", "Lease")
	leases.APIResources[0].Namespaced = true
	serve("/apis/coordination.k8s.io/v1", leases)
	serve("/apis/coordination.k8s.io/v1/leases", coordinationv1.LeaseList{TypeMeta: list("coordination.k8s.io/v1", "Lease")})
	if !worked.IsZero() {
		holder, seconds := "karve-0", int32(15)
		serve("/apis/coordination.k8s.io/v1/namespaces/karve-system/leases/karve", coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "karve-system", Name: "karve"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: worked}},
		})
	}
	serve("/api/v1", resources("v1", "Node", "Pod"))
	serve("/apis/karpenter.sh/v1", resources("karpenter.sh/v1", "NodePool", "NodeClaim"))
	serve("/apis/karve.sh/v1alpha1", resources("karve.sh/v1alpha1", "GPUNodeClass"))
	serve("/api/v1/nodes", &corev1.NodeList{TypeMeta: list("v1", "Node"), Items: c.Nodes})
	serve("/api/v1/pods", &corev1.PodList{TypeMeta: list("v1", "Pod"), Items: c.Pods})
	serve("/apis/karpenter.sh/v1/nodepools", karpv1.NodePoolList{TypeMeta: list("karpenter.sh/v1", "NodePool"), Items: c.NodePools})
	serve("/apis/karpenter.sh/v1/nodeclaims", karpv1.NodeClaimList{TypeMeta: list("karpenter.sh/v1", "NodeClaim"), Items: c.NodeClaims})
	serve("/apis/karve.sh/v1alpha1/gpunodeclasses", v1alpha1.GPUNodeClassList{TypeMeta: list("karve.sh/v1alpha1", "GPUNodeClass"), Items: c.GPUNodeClasses})
	serve("/api/v1/namespaces/karve-system/pods/karve-node-busy:9999/proxy/metrics", agentMetrics)
	serve("/api/v1/namespaces/karve-system/pods/karve-node-quad:9999/proxy/metrics", "no metrics {")
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL)
}

// answerTo returns the part of a list that a request asks for, in the format that clients of Kubernetes' own kinds ask for.
func answerTo(r *http.Request, list any) []byte {
	if all, ok := list.(*corev1.PodList); ok {
		selector, err := fieldselectors.ParseSelector(r.URL.Query().Get("fieldSelector"))
		if err != nil {
			panic(err)
		}
		some := &corev1.PodList{TypeMeta: all.TypeMeta}
		for _, pod := range all.Items {
			if selector.Matches(fieldselectors.Set{"spec.nodeName": pod.Spec.NodeName}) {
				some.Items = append(some.Items, pod)
			}
		}
		list = some
	}
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list.(runtime.Object), &out); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// TestAnOverviewOfFewNodesIsThatOfAllPods compares what inspect reads in a cluster where few nodes have shared GPUs with an overview of the whole cluster.
func TestAnOverviewOfFewNodesIsThatOfAllPods(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int{"few of the nodes have shared GPUs": 100, "many of them have": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := overviewtest.Example()
			for i := range others {
				node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("other-%d", i)}}
				c.Nodes = append(c.Nodes, node)
				c.Pods = append(c.Pods, snapshottest.Pod("web-"+node.Name, snapshottest.Asking("cpu", "1"), snapshottest.Running(node.Name)))
			}
			kubeconfig := serve(t, c)
			want := overview.Build(c)
			if n := len(want.Nodes) * nodesPerShown; others == 100 && n > len(c.Nodes) || others == 2 && n <= len(c.Nodes) {
				t.Fatalf("%d of %d nodes are shown", len(want.Nodes), len(c.Nodes))
			}
			var out, errOut bytes.Buffer
			if status := run(t.Context(), []string{"nodes", "-o", "json", "--kubeconfig", kubeconfig}, streams{strings.NewReader(""), &out, &errOut}); status != 0 {
				t.Fatalf("status %d: %s", status, &errOut)
			}
			got := &overview.Overview{}
			if err := json.Unmarshal(out.Bytes(), got); err != nil {
				t.Fatal(err)
			}
			if len(got.Pods) == 0 || len(got.Waiting) == 0 {
				t.Errorf("%d pods, and %d that wait", len(got.Pods), len(got.Waiting))
			}
			for i := range want.Pods {
				want.Pods[i].UnusedSeconds = nil // It grows.
			}
			for i := range got.Pods {
				got.Pods[i].UnusedSeconds = nil
			}
			if diff := cmp.Diff(want.Pods, got.Pods, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("pods (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Waiting, got.Waiting, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("waiting pods (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want.Totals, got.Totals); diff != "" {
				t.Errorf("totals (-want +got):\n%s", diff)
			}
		})
	}
}

// BenchmarkInspect reads 5,000 nodes, of which 1,250 are Karve's, and 55,000 pods from a server that has the answers ready, and prints the nodes.
func BenchmarkInspect(b *testing.B) {
	kubeconfig := serve(b, snapshottest.Large(5000))
	inspect := func() {
		var out, errOut bytes.Buffer
		if status := run(b.Context(), []string{"inspect", "--kubeconfig", kubeconfig}, streams{strings.NewReader(""), &out, &errOut}); status != 0 || !strings.Contains(out.String(), "10000/12500 replicas") {
			b.Fatalf("status %d, %s%.1000s", status, &errOut, &out)
		}
	}
	inspect()
	for b.Loop() {
		inspect()
	}
}

func agentPod(node string) corev1.Pod {
	pod := snapshottest.Pod("karve-node-"+node, snapshottest.Asking("cpu", "10m"), snapshottest.Running(node), snapshottest.WithLabels("app.kubernetes.io/name", "karve-node"))
	pod.Namespace = "karve-system"
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9999}}
	return pod
}

// TestInspectPrintsTheBoundOnThePrice repeats the command, because a busy computer may not find the bound in the time that the search has.
func TestInspectPrintsTheBoundOnThePrice(t *testing.T) {
	t.Parallel()
	regional := overviewtest.Example()
	for i := range regional.Nodes {
		regional.Nodes[i].Labels[corev1.LabelTopologyRegion] = builtin.Region
	}
	kubeconfig := serve(t, regional)
	for range 100 {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), []string{"inspect", "--kubeconfig", kubeconfig}, streams{strings.NewReader(""), &out, &errOut}); status != 0 {
			t.Fatalf("status %d: %s", status, &errOut)
		}
		if !strings.Contains(out.String(), "$8.120/h") {
			t.Fatalf("the price is not there:\n%s", &out)
		}
		if strings.Contains(out.String(), "  bound $1.") {
			return
		}
	}
	t.Error("the bound is never there")
}

func TestTheVerbsReadACluster(t *testing.T) {
	t.Parallel()
	kubeconfig := serve(t, overviewtest.Example())
	noProxy, noPods := serve(t, overviewtest.Example(), "/proxy/"), serve(t, overviewtest.Example(), "/v1/pods", "/v1/nodes")
	labels := overviewtest.Example()
	for i := range labels.Pods {
		if pod := &labels.Pods[i]; pod.Name == "train-0" || pod.Spec.NodeName == "" {
			pod.Labels = map[string]string{"app": "batch"}
		}
	}
	labeled := serve(t, labels)
	dead, never := serveWith(t, overviewtest.Example(), time.Date(2026, 1, 2, 14, 2, 0, 0, time.UTC)), serveWith(t, overviewtest.Example(), time.Time{})
	hidden := serve(t, overviewtest.Example(), "/leases")
	stopped := "warning: no controller has worked since 2026-01-02 14:02 UTC: nothing is launched and no node is deleted until one does\n"
	for name, c := range map[string]struct {
		args        string
		kubeconfig  string
		status      int
		out, errOut []string
	}{
		"inspect":               {"inspect", kubeconfig, 0, []string{"busy ", " 4/10 ", "8/15Gi", "10 nodes  24/104 replicas (23 %)"}, []string{"note: no agent reports"}},
		"inspect of a node":     {"inspect busy -d", kubeconfig, 0, []string{"team/infer-0", "0,4", "1 node  4/10 replicas (40 %)"}, nil},
		"inspect as JSON":       {"inspect quad -o json", kubeconfig, 0, []string{`"healthy": false`, `"replicasHeld": 3`}, nil},
		"top pods":              {"top pods", kubeconfig, 0, []string{"team/infer-0", " 31 ", "2/4Gi"}, []string{"GPU use is unknown on 1 node: reading the metrics of an agent: ", "no agent runs there"}},
		"top nodes":             {"top nodes --sort-by sm", kubeconfig, 0, []string{"busy ", "7.1/15Gi"}, []string{"no agent runs there"}},
		"top without the right": {"top pods", noProxy, 0, []string{"team/infer-0", "-/4Gi"}, []string{"GPU use is unknown on 2 nodes: you may not get pods/proxy in the namespace karve-system"}},
		"nodes":                 {"nodes", kubeconfig, 0, []string{"busy ", "██", "2 pods waiting, the longest for"}, nil},
		"nodes with zones":      {"nodes -o wide", kubeconfig, 0, []string{"ZONE         NODECLAIM", "us-east-1a"}, nil},
		"nodes for programs":    {"nodes -o json", kubeconfig, 0, []string{`"name": "busy"`, `"replicasHeld": 4`}, nil},
		"nodes in YAML":         {"nodes -o yaml", kubeconfig, 0, []string{"name: busy", "replicasHeld: 4"}, nil},
		"nodes of a pool":       {"nodes -l karpenter.sh/nodepool=none", kubeconfig, 0, []string{"0 nodes  0/0 replicas"}, nil},
		"inspect of a zone":     {"inspect -l topology.kubernetes.io/zone=us-east-1a,karpenter.sh/nodepool --sort-by replicas", kubeconfig, 0, []string{"STATE\ncrowded "}, nil},
		"top of a pool":         {"top nodes -l karpenter.sh/nodepool=none", kubeconfig, 0, []string{"No pod holds a shared GPU."}, nil},
		"top of labels":         {"top pods -l app=none", kubeconfig, 0, []string{"No pod with labels app=none holds a shared GPU."}, nil},
		"pods":                  {"pods", kubeconfig, 0, []string{"8 pods with 24 replicas", "team/infer-0     Running", "Unschedulable"}, nil},
		"pods of a namespace":   {"pods -n lab", kubeconfig, 0, []string{"1 pod with 1 replica  $0.053/h\nno pods waiting\n\nPOD", "\nlab/notebook-0   Running   busy   0            1            -   0.053"}, nil},
		"pods with labels":      {"pods -l app=batch", labeled, 0, []string{"1 pod with 5 replicas  $0.263/h\n2 pods waiting", "\nteam/train-0    Running", "\ndefault/first   Unschedulable"}, nil},
		"pods with both":        {"pods -n team -l app=batch", labeled, 0, []string{"1 pod with 5 replicas  $0.263/h\nno pods waiting"}, nil},
		"pods of nobody":        {"pods -n nobody -o wide", kubeconfig, 0, []string{"No such pod holds a shared GPU or waits for one."}, nil},
		"pods by price":         {"pods --sort-by price", kubeconfig, 0, []string{"UNUSED\nteam/many-0 "}, nil},
		"pods as data":          {"pods -n lab -o json", kubeconfig, 0, []string{`"pods": [`, `"name": "notebook-0"`, `"waiting": []`, `"state": "Working"`}, nil},
		"pods, dead":            {"pods", dead, 0, []string{stopped, "team/infer-0"}, nil},
		"nodes of a namespace":  {"nodes -n lab", kubeconfig, 0, []string{"1 node  4/10 replicas", "no pods waiting"}, nil},
		"GPUs of a namespace":   {"inspect -n lab -d", kubeconfig, 0, []string{"busy     0   7         lab/notebook-0   main                 -\n\n1 node  4/10 replicas"}, nil},
		"GPUs of all of them":   {"inspect -n lab -A", kubeconfig, 0, []string{"10 nodes  24/104 replicas"}, nil},
		"another order of pods": {"pods --sort-by zone", kubeconfig, 1, nil, []string{"error: --sort-by must be name, replicas, price, age or state, not \"zone\""}},
		"a selector of pods":    {"pods -l ==", kubeconfig, 1, nil, []string{"error: --selector: "}},
		"top of a namespace":    {"top pods -n team -o wide", kubeconfig, 0, []string{"team/infer-0"}, nil},
		"top of an empty one":   {"top pods -n nobody", kubeconfig, 0, []string{"No pod of the namespace nobody holds a shared GPU."}, nil},
		"top of all namespaces": {"top pods -n nobody -A", kubeconfig, 0, []string{"team/infer-0"}, nil},
		"a wrong selector":      {"inspect -l ==", kubeconfig, 1, nil, []string{"error: --selector: "}},
		"a wrong order":         {"nodes --sort-by zone", kubeconfig, 1, nil, []string{"error: --sort-by must be name, replicas, price, age or state, not \"zone\""}},
		"why pods wait":         {"inspect -o json", kubeconfig, 0, []string{`"reason": "Unschedulable"`}, nil},
		"nodes in XML":          {"nodes -o xml", kubeconfig, 1, nil, []string{"error: --output must be wide, json or yaml, not \"xml\""}},
		"inspect, dead":         {"inspect", dead, 0, []string{"busy "}, []string{stopped}},
		"inspect as JSON, dead": {"inspect -o json", dead, 0, []string{`"state": "Stopped"`, `"lastSeen": "2026-01-02T14:02:00Z"`}, []string{stopped}},
		"top, dead":             {"top pods", dead, 0, []string{"team/infer-0"}, []string{stopped}},
		"nodes, dead":           {"nodes", dead, 0, []string{stopped, "busy "}, nil},
		"no controller ever":    {"inspect", never, 0, []string{"busy "}, []string{"warning: no controller has ever worked here, since no namespace has a Lease karve: nothing is launched"}},
		"a Lease out of reach":  {"inspect -o json", hidden, 0, []string{`"state": "Unknown"`, "you may not get leases.coordination.k8s.io in the namespace karve-system"}, []string{"note: no agent"}},
		"no rights at all":      {"inspect", noPods, 1, nil, []string{"error: listing Nodes: forbidden\nerror: listing Pods: forbidden\n"}},
		"top of nothing":        {"top", "", 1, nil, []string{"error: name what to show"}},
		"another order":         {"top pods --sort-by age", kubeconfig, 1, nil, []string{`error: --sort-by must be mem, sm, idle or price, not "age"`}},
		"another format":        {"inspect -o csv", kubeconfig, 1, nil, []string{`error: --output must be wide, json or yaml, not "csv"`}},
		"no cluster":            {"nodes", filepath.Join(t.TempDir(), "none"), 1, nil, []string{"error: no cluster is selected: "}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errOut bytes.Buffer
			args := strings.Fields(c.args)
			if c.kubeconfig != "" {
				args = append(args, "--kubeconfig", c.kubeconfig)
			}
			if status := run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut}); status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			for _, want := range c.out {
				if !strings.Contains(out.String(), want) {
					t.Errorf("stdout lacks %q", want)
				}
			}
			for _, want := range c.errOut {
				if !strings.Contains(errOut.String(), want) {
					t.Errorf("stderr lacks %q", want)
				}
			}
			if c.out == nil && out.Len() > 0 || strings.Contains(out.String(), "\x1b") {
				t.Error("something is printed after an error, or in colors although this is no terminal")
			}
			if c.kubeconfig != dead && c.kubeconfig != never && strings.Contains(errOut.String()+out.String(), "no controller") {
				t.Error("it warns of a controller that works, or of one that nothing is known of")
			}
			if t.Failed() {
				t.Logf("stdout:\n%s\nstderr:\n%s", &out, &errOut)
			}
		})
	}
}
