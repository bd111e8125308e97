package manifests_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/manifests"
)

const heavy = `
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: heavy}
handler: nvidia
overhead: {podFixed: {cpu: "2", memory: 6Gi}}
scheduling: {nodeSelector: {family: g5}, tolerations: [{key: gpu, operator: Exists}]}
`

// one returns the only pod, and why it is refused if there is none.
func one(t *testing.T, texts ...string) (*corev1.Pod, string) {
	t.Helper()
	c, skipped, err := manifests.Read(t.Context(), files(texts...))
	if err != nil {
		t.Fatal(err)
	}
	if len(skipped.Refused) > 0 {
		return nil, skipped.Refused[0].Why
	}
	if len(c.Pods) != 1 {
		t.Fatalf("%d pods", len(c.Pods))
	}
	return &c.Pods[0], ""
}

func podWith(spec string) string {
	return fmt.Sprintf("\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {%s}\n", spec)
}

func TestRuntimeClassIsAppliedAsByItsAdmissionPlugin(t *testing.T) {
	t.Parallel()
	const gpu = "containers: [{name: main, image: main, resources: {limits: {nvidia.com/gpu.shared: 1}}}]"
	for name, c := range map[string]struct {
		spec                  string
		cpu, memory, selector string
		tolerations           int
		refused               string
	}{
		"its class":                {"runtimeClassName: heavy, " + gpu, "2", "6Gi", "g5", 1, ""},
		"another toleration":       {"runtimeClassName: heavy, tolerations: [{key: x, operator: Exists}], " + gpu, "2", "6Gi", "g5", 2, ""},
		"as it was admitted":       {"runtimeClassName: heavy, overhead: {cpu: 2000m, memory: 6Gi}, nodeSelector: {family: g5}, tolerations: [{key: gpu, operator: Exists}], " + gpu, "2", "6Gi", "g5", 1, ""},
		"another overhead":         {"runtimeClassName: heavy, overhead: {cpu: 1}, " + gpu, "", "", "", 0, "its overhead is not that of its RuntimeClass heavy"},
		"another selector":         {"runtimeClassName: heavy, nodeSelector: {family: g4dn}, " + gpu, "", "", "", 0, "its node selector family=g4dn conflicts with that of its RuntimeClass heavy, g5"},
		"an overhead of no class":  {"overhead: {cpu: 1}, " + gpu, "", "", "", 0, "it has an overhead without a RuntimeClass"},
		"a class that is unknown":  {"runtimeClassName: other, overhead: {cpu: 1}, " + gpu, "1", "0", "", 0, ""},
		"a pod that runs":          {"nodeName: here, runtimeClassName: heavy, " + gpu, "0", "0", "", 0, ""},
		"a pod without its class":  {gpu, "0", "0", "", 0, ""},
		"a class for all families": {"runtimeClassName: plain, " + gpu, "0", "0", "", 0, ""},
	} {
		pod, refused := one(t, heavy, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: plain}\nhandler: nvidia\n", podWith(c.spec))
		if refused != c.refused {
			t.Errorf("%s: refused %q, want %q", name, refused, c.refused)
		}
		if pod == nil {
			continue
		}
		if cpu, memory := pod.Spec.Overhead.Cpu().String(), pod.Spec.Overhead.Memory().String(); cpu != c.cpu || memory != c.memory || pod.Spec.NodeSelector["family"] != c.selector || len(pod.Spec.Tolerations) != c.tolerations {
			t.Errorf("%s: overhead %s %s, selector %v, tolerations %v", name, cpu, memory, pod.Spec.NodeSelector, pod.Spec.Tolerations)
		}
	}
}

func TestDaemonSetsHaveTheOverheadOfTheirRuntimeClass(t *testing.T) {
	t.Parallel()
	c := read(t, heavy, strings.Replace(made("apps/v1", "DaemonSet", "d", selector), "spec: {tolerations", "spec: {runtimeClassName: heavy, tolerations", 1))
	if cpu := c.DaemonSets[0].Spec.Template.Spec.Overhead.Cpu().String(); cpu != "2" {
		t.Errorf("overhead %s", cpu)
	}
}

func TestLimitRangesSetDefaultsAndRefuse(t *testing.T) {
	t.Parallel()
	pod := func(resources string) string {
		return podWith("containers: [{name: main, image: main, resources: {" + resources + "}}]")
	}
	for name, c := range map[string]struct {
		limits, resources string
		cpu, limit        string
		refused           string
	}{
		"a default request":           {"type: Container, defaultRequest: {cpu: 2}", "limits: {nvidia.com/gpu: 1}", "2", "0", ""},
		"a default limit":             {"type: Container, default: {cpu: 3}", "limits: {nvidia.com/gpu: 1}", "3", "3", ""},
		"both":                        {"type: Container, default: {cpu: 3}, defaultRequest: {cpu: 1}", "limits: {nvidia.com/gpu: 1}", "1", "3", ""},
		"a request of its own":        {"type: Container, default: {cpu: 3}, defaultRequest: {cpu: 1}", "requests: {cpu: 2}, limits: {nvidia.com/gpu: 1}", "2", "3", ""},
		"a limit of its own":          {"type: Container, defaultRequest: {cpu: 1}", "limits: {cpu: 2, nvidia.com/gpu: 1}", "2", "2", ""},
		"a maximum as the default":    {"type: Container, max: {cpu: 4}", "limits: {nvidia.com/gpu: 1}", "4", "4", ""},
		"a minimum as the default":    {"type: Container, min: {cpu: 500m}", "limits: {nvidia.com/gpu: 1}", "500m", "0", ""},
		"more than the maximum":       {"type: Container, max: {cpu: 1}", "limits: {cpu: 2, nvidia.com/gpu: 1}", "", "", "LimitRange l: container main: it needs a limit of cpu of at most 1"},
		"less than the minimum":       {"type: Container, min: {cpu: 1}", "limits: {cpu: 500m, nvidia.com/gpu: 1}", "", "", "LimitRange l: container main: it needs a request for cpu of at least 1"},
		"too many GPUs":               {"type: Container, max: {nvidia.com/gpu: 1}", "limits: {nvidia.com/gpu: 2}", "", "", "LimitRange l: container main: it needs a limit of nvidia.com/gpu of at most 1"},
		"too much for a pod":          {"type: Pod, max: {memory: 1Gi}", "limits: {memory: 2Gi, nvidia.com/gpu: 1}", "", "", "LimitRange l: the pod: it needs a limit of memory of at most 1Gi"},
		"a pod without a limit":       {"type: Pod, max: {memory: 1Gi}", "limits: {nvidia.com/gpu: 1}", "", "", "LimitRange l: the pod: it needs a limit of memory of at most 1Gi"},
		"a limit far above a request": {"type: Container, maxLimitRequestRatio: {cpu: 2}", "requests: {cpu: 1}, limits: {cpu: 3, nvidia.com/gpu: 1}", "", "", "LimitRange l: container main: its limit of cpu may be at most 2 times its request"},
	} {
		got, refused := one(t, "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l}\nspec: {limits: [{"+c.limits+"}]}", pod(c.resources))
		if refused != c.refused {
			t.Errorf("%s: refused %q, want %q", name, refused, c.refused)
		}
		if got == nil {
			continue
		}
		r := got.Spec.Containers[0].Resources
		if r.Requests.Cpu().String() != c.cpu || r.Limits.Cpu().String() != c.limit {
			t.Errorf("%s: requests %s and limits %s CPU, want %s and %s", name, r.Requests.Cpu(), r.Limits.Cpu(), c.cpu, c.limit)
		}
	}
	if _, refused := one(t, "apiVersion: v1\nkind: LimitRange\nmetadata: {name: l, namespace: other}\nspec: {limits: [{type: Pod, max: {cpu: 1}}]}", pod("limits: {nvidia.com/gpu: 1}")); refused != "" {
		t.Errorf("the LimitRange of another namespace: %s", refused)
	}
}

func TestPriorityClassesAreResolved(t *testing.T) {
	t.Parallel()
	class := func(name, more string) string {
		return fmt.Sprintf("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\n%s", name, more)
	}
	for name, c := range map[string]struct {
		spec string
		want int32
	}{
		"a class":           {"priorityClassName: high, ", 100},
		"a class of system": {"priorityClassName: system-node-critical, ", 2_000_001_000},
		"the default class": {"", 5},
		"its own priority":  {"priority: 7, priorityClassName: high, ", 7},
	} {
		pod, _ := one(t, class("high", "value: 100"), class("low", "value: 5\nglobalDefault: true"), class("mid", "value: 50\nglobalDefault: true"), podWith(c.spec+podSpec))
		if pod.Spec.Priority == nil || *pod.Spec.Priority != c.want {
			t.Errorf("%s: %v, want %d", name, pod.Spec.Priority, c.want)
		}
	}
}

func TestQuotasRefusePods(t *testing.T) {
	t.Parallel()
	running := "\napiVersion: v1\nkind: Pod\nmetadata: {name: r}\nspec: {nodeName: here, " + podSpec + "}\nstatus: {phase: Running}\n"
	ended := strings.Replace(strings.Replace(running, "Running", "Succeeded", 1), "name: r", "name: e", 1)
	for name, c := range map[string]struct {
		quota string
		more  string
		// pods is how many pods of five are created.
		pods int
		why  string
	}{
		"replicas":                    {"hard: {requests.nvidia.com/gpu.shared: 3}", "", 3, "ResourceQuota q: it allows no more requests.nvidia.com/gpu.shared"},
		"pods":                        {"hard: {pods: 2}", "", 2, "ResourceQuota q: it allows no more pods"},
		"counted pods":                {"hard: {count/pods: 2}", "", 2, "ResourceQuota q: it allows no more count/pods"},
		"CPU":                         {"hard: {cpu: 4500m}", "", 4, "ResourceQuota q: it allows no more cpu"},
		"limits":                      {"hard: {limits.cpu: 1}", "", 1, "ResourceQuota q: it allows no more limits.cpu"},
		"enough":                      {"hard: {pods: 5, requests.nvidia.com/gpu.shared: 5, cpu: 5}", "", 5, ""},
		"memory that no pod states":   {"hard: {requests.memory: 1Ti}", "", 0, "ResourceQuota q: container main must state requests.memory"},
		"a running pod":               {"hard: {requests.nvidia.com/gpu.shared: 3}", running, 2, "ResourceQuota q: it allows no more requests.nvidia.com/gpu.shared"},
		"a pod that ended":            {"hard: {requests.nvidia.com/gpu.shared: 3}", ended, 3, "ResourceQuota q: it allows no more requests.nvidia.com/gpu.shared"},
		"what others use":             {"hard: {pods: 9}}\nstatus: {used: {pods: 7}", "", 2, "ResourceQuota q: it allows no more pods"},
		"what others use up":          {"hard: {pods: 7}}\nstatus: {used: {pods: 7}", "", 0, "ResourceQuota q: it allows no more pods"},
		"pods of another priority":    {"hard: {pods: 2}, scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}", "", 5, ""},
		"pods with requests":          {"hard: {pods: 2}, scopes: [NotBestEffort]", "", 2, "ResourceQuota q: it allows no more pods"},
		"pods without requests":       {"hard: {pods: 2}, scopes: [BestEffort]", "", 5, ""},
		"pods with a deadline":        {"hard: {pods: 2}, scopes: [Terminating]", "", 5, ""},
		"objects that are no pods":    {"hard: {count/configmaps: 0, services: 0}", "", 5, ""},
		"more than any machine has":   {"hard: {requests.cpu: 8E}", "", -1, "8E of requests.cpu is implausibly large"},
		"an amount that takes hours":  {"hard: {requests.cpu: \"1e-2000000000\"}", "", -1, "has an exponent beyond 30"},
		"use that takes hours to add": {"hard: {pods: 9}}\nstatus: {used: {pods: \"1e-2000000000\"}", "", -1, "has an exponent beyond 30"},
	} {
		c1, skipped, err := manifests.Read(t.Context(), files("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: q}\nspec: {"+c.quota+"}", deployment("d", "replicas: 5")+"---"+c.more))
		if c.pods < 0 {
			if err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%s: %v, want %s", name, err, c.why)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []manifests.Refused
		if c.pods < 5 {
			want = []manifests.Refused{{Object: "Deployment default/d", Why: c.why}}
			for i := c.pods; i < 5; i++ {
				want[0].Pods = append(want[0].Pods, fmt.Sprintf("default/d-%d", i))
			}
		}
		if got := len(waiting(c1)); got != c.pods {
			t.Errorf("%s: %d pods, want %d", name, got, c.pods)
		}
		if diff := cmp.Diff(want, skipped.Refused); diff != "" {
			t.Errorf("%s: refused (-want +got)\n%s", name, diff)
		}
	}
}

func TestWhatPodsNameAndNoFileHasIsNamed(t *testing.T) {
	t.Parallel()
	spec := "serviceAccountName: train, priorityClassName: urgent, runtimeClassName: nvidia, " + podSpec
	_, skipped, err := manifests.Read(t.Context(), files(podWith(spec)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"PriorityClass urgent", "RuntimeClass nvidia", "ServiceAccount default/train"}, skipped.Missing); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	_, skipped, err = manifests.Read(t.Context(), files(podWith(spec), "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: train}",
		"apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: nvidia}\nhandler: nvidia", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nvalue: 1"))
	if err != nil || len(skipped.Missing) > 0 {
		t.Errorf("%v, %v", skipped.Missing, err)
	}
}

func TestFilesWithoutObjectsAreErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files []manifests.File
		want  string
	}{
		"an empty file":                {files(""), "a.yaml: it has no objects"},
		"a file of comments":           {files("# nothing\n---\n"), "a.yaml: it has no objects"},
		"an empty file among others":   {files(class, "---\n"), "b.yaml: it has no objects"},
		"an empty list":                {files("apiVersion: v1\nkind: List\nitems: []"), "there are no objects in the files"},
		"a folder without objects":     {[]manifests.File{{Name: "a.yaml", Content: []byte("a: b"), Found: true}}, "there are no objects in the files"},
		"an empty file in a folder":    {[]manifests.File{{Name: "a.yaml", Found: true}, {Name: "b.yaml", Content: []byte(class), Found: true}}, ""},
		"objects that nothing needs":   {files("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}"), ""},
		"an object of unknown kind":    {files("apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: x}"), ""},
		"a file with nothing but JSON": {[]manifests.File{{Name: "a.json", Content: []byte("{}")}}, "it needs apiVersion and kind"},
	} {
		_, _, err := manifests.Read(t.Context(), c.files)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, _, err := manifests.Read(t.Context(), files("kind: A\nkind: B\n")); err == nil || strings.Contains(err.Error(), "no objects") {
		t.Errorf("a file with an error also has no objects: %v", err)
	}
}
