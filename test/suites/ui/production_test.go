package ui

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// workloads are the Deployments of the cluster that the docs show. Their pods are drawn one after the other.
var workloads = []struct {
	namespace, name string
	replicas, gib   int
}{
	{"search", "query-embedder", 1, 1},
	{"search", "reranker", 1, 1},
	{"vision", "ocr", 1, 1},
	{"speech", "transcriber", 2, 3},
	{"search", "query-embedder", 1, 1},
	{"ranking", "ads-ctr", 1, 1},
	{"vision", "moderation", 1, 1},
	{"search", "reranker", 1, 1},
	{"fraud", "card-scores", 1, 1},
	{"vision", "ocr", 1, 1},
	{"notebooks", "jupyter", 2, 2},
	{"ranking", "feed", 1, 1},
	{"speech", "diarizer", 1, 1},
	{"search", "query-embedder", 1, 1},
	{"batch", "thumbnails", 1, 1},
	{"vision", "moderation", 1, 1},
	{"maps", "road-signs", 1, 1},
	{"ranking", "ads-ctr", 1, 1},
}

// production is a cluster as a team might run it: nodes with one and with four GPUs, most of them well filled, some that start, are idle, unhealthy or replaced, with
// reports of their agents, and pods that wait for different reasons. All times are relative to now, for the page tells how long ago they were.
type production struct {
	*facts.Cluster
	drawn int
}

func newProduction(now time.Time) *facts.Cluster {
	p := &production{Cluster: Shared()}
	p.Now = now
	p.GPUNodeClasses[0].Spec.Headroom = []v1alpha1.Headroom{{Replicas: 20}}
	p.NodePools = append(p.NodePools, Pool("gpu-batch", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared), func(np *karpv1.NodePool) {
		np.Spec.Limits = karpv1.Limits(Amounts(v1alpha1.ResourceGPU, "6"))
		np.Spec.Template.Labels = map[string]string{"team": "batch"}
	}))
	p.node(0, "g4dn.12xlarge", 38)
	for i := range 38 {
		p.node(0, "g4dn.xlarge", 10-i%9/8-i%13/12*3)
	}
	idle, sick, leaving := p.node(0, "g4dn.xlarge", 0), p.node(0, "g4dn.xlarge", 7), p.node(0, "g4dn.xlarge", 3)
	idle.Annotations[v1alpha1.IdleSinceAnnotation] = now.Add(-3 * time.Minute).Format(time.RFC3339)
	sick.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(now.Add(-4 * time.Minute))}
	claim := &p.NodeClaims[len(p.NodeClaims)-1]
	leaving.Annotations[v1alpha1.ReplacingSinceAnnotation] = now.Add(-time.Minute).Format(time.RFC3339)
	claim.Annotations[v1alpha1.ReplacingAnnotation] = "Underutilized"
	claim.Annotations[v1alpha1.ReplacingSinceAnnotation] = now.Add(-time.Minute).Format(time.RFC3339)
	for range 6 {
		p.node(1, "g4dn.xlarge", 10)
	}
	for i := range 2 {
		starting := Claim(fmt.Sprintf("gpu-shared-n%dw7x", i), &p.NodePools[0], TypeNamed("g4dn.xlarge"), Launched(now.Add(-20*time.Second)))
		starting.CreationTimestamp = metav1.NewTime(now.Add(-40 * time.Second))
		p.NodeClaims = append(p.NodeClaims, starting)
	}
	wait := func(namespace, prefix string, n int, edits ...func(*corev1.Pod)) {
		for _, pod := range Pods(prefix, n, edits...) {
			pod.Namespace, pod.CreationTimestamp = namespace, metav1.NewTime(now.Add(-35*time.Second))
			p.Pods = append(p.Pods, pod)
		}
	}
	wait("speech", "transcriber-6d8f9c7b5", 64)
	wait("batch", "embeddings", 4, Selecting("team", "batch"))
	wait("notebooks", "jupyter-ines", 1, Selecting("topology.kubernetes.io/zone", "us-east-1f"))
	return p.Cluster
}

// node adds a node that has started, with pods that hold so many of its replicas, and the report of its agent.
func (p *production) node(pool int, instanceType string, held int) *corev1.Node {
	i := len(p.NodeClaims)
	np, machine := &p.NodePools[pool], TypeNamed(instanceType)
	age := time.Duration(2+i*i%53) * time.Hour
	claim := Claim(fmt.Sprintf("%s-%04x", np.Name, 0x1f3b*(i+3)%0xffff), np, machine, Initialized(p.Now.Add(-age+time.Minute)))
	claim.CreationTimestamp = metav1.NewTime(p.Now.Add(-age))
	node := Node(&claim, machine, 10*machine.GPU.Count)
	node.Name = fmt.Sprintf("ip-10-0-%d-%d.ec2.internal", 16+i*7%3, 4+i*37%250)
	claim.Status.NodeName = node.Name
	node.CreationTimestamp = claim.CreationTimestamp
	node.Labels[nodecontract.GPUMemoryLabel] = "15360"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	report := nodecontract.HoldersReport{AsOf: p.Now.Add(-time.Minute)}
	for gpu := range int(machine.GPU.Count) {
		report.GPUs = append(report.GPUs, nodecontract.HeldGPU{
			UUID: fmt.Sprintf("GPU-%s-%d", claim.Name, gpu), Index: gpu, Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUInService,
		})
	}
	unused := nodecontract.UnusedReport{AsOf: report.AsOf, Since: map[string]time.Time{}}
	for held > 0 {
		w := workloads[p.drawn*5%len(workloads)]
		n := min(w.replicas, held)
		name := fmt.Sprintf("%s-%s-%05x", w.name, fmt.Sprintf("%09x", 0x5bd1e995*(len(w.name)+7))[:9], 0xb11d*(p.drawn+11)%0xfffff)
		gpu := least(report.GPUs, n)
		if gpu == nil {
			break
		}
		pod := Pod(name, Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, strconv.Itoa(n)), Running(node.Name), GPUMemory(fmt.Sprintf("%dGi", w.gib)),
			OwnedBy("apps/v1", "ReplicaSet", w.name))
		pod.Namespace, pod.UID = w.namespace, pod.UID+"-"+claim.UID
		started := metav1.NewTime(claim.CreationTimestamp.Add(time.Duration(p.drawn%50+2) * time.Minute))
		pod.CreationTimestamp, pod.Status.StartTime = started, &started
		p.Pods = append(p.Pods, pod)
		holder := nodecontract.GPUHolder{Pod: w.namespace + "/" + name, Container: "main"}
		for range n {
			holder.IDs = append(holder.IDs, gpu.Held)
			gpu.Held++
		}
		gpu.Holders = append(gpu.Holders, holder)
		if w.namespace == "notebooks" && p.drawn%3 == 0 {
			unused.Since[holder.Pod] = p.Now.Add(-3*time.Hour - 11*time.Minute)
		}
		held -= n
		p.drawn++
	}
	node.Annotations[nodecontract.HoldersAnnotation], node.Annotations[nodecontract.UnusedSinceAnnotation] = report.String(), unused.String()
	p.NodeClaims, p.Nodes = append(p.NodeClaims, claim), append(p.Nodes, node)
	return &p.Nodes[len(p.Nodes)-1]
}

// least returns the GPU that holds the fewest replicas, and nil if none has n free.
func least(gpus []nodecontract.HeldGPU, n int) *nodecontract.HeldGPU {
	var found *nodecontract.HeldGPU
	for i := range gpus {
		if gpus[i].Held+n <= gpus[i].Replicas && (found == nil || gpus[i].Held < found.Held) {
			found = &gpus[i]
		}
	}
	return found
}

// TestDocsScreenshot shows the cluster of the docs with a node open, and takes its picture: CONTRIBUTING.md says how to renew the one in docs/images.
func TestDocsScreenshot(t *testing.T) {
	browser := browse(t)
	url, _ := serve(t, newProduction(time.Now()))
	p := open(t, browser, url+"/#token="+token)
	p.untilText("nodes", "50")
	p.until("document.querySelectorAll('#bars .known, #bars .least, #bars .partial, #bars .at').length >= 13 && document.getElementById('bound').textContent.includes('$')")
	p.run(chromedp.EmulateViewport(1440, 900), chromedp.Click(".tile[aria-label*=gpu-shared]", chromedp.ByQuery))
	p.until("document.querySelectorAll('.causes b').length > 0")
	if states := p.text("states"); states != "2 Launched45 Started1 Idle1 Unhealthy1 Replacing" {
		t.Errorf("the nodes are %s", states)
	}
	// Which pods go to nodes that exist is up to the plan.
	var hasRoom, planned int
	if n, err := fmt.Sscanf(p.text("reasons"), "%d HasRoom%d Planned4 LimitReached1 NoMatchingPool", &hasRoom, &planned); n != 2 || err != nil || hasRoom+planned != 64 {
		t.Errorf("pods wait for %s", p.text("reasons"))
	}
	if summary := value[string](p, "document.querySelector('#details .lead').textContent"); summary == "" {
		t.Error("the node is not explained")
	}
	picture(p, "ui")
	p.clean(url, token)
}
