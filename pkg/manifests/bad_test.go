package manifests_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/manifests"
)

// sharing returns a GPUNodeClass with these sharing settings.
func sharing(s string) string {
	return strings.Replace(class, "{strategy: TimeSlicing, replicas: 10}", "{"+s+"}", 1)
}

func TestErrorsNameFileAndDocument(t *testing.T) {
	t.Parallel()
	pod := func(spec string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {" + spec + "}\n"
	}
	container := func(resources string) string {
		return pod("containers: [{name: main, resources: {" + resources + "}}]")
	}
	for name, c := range map[string]struct{ text, want string }{
		"no apiVersion":                  {"kind: Pod\nmetadata: {name: p}", "a.yaml, document 1, Pod p: it needs apiVersion and kind"},
		"no kind":                        {"apiVersion: v1\nmetadata: {name: p}", "it needs apiVersion and kind"},
		"an invalid apiVersion":          {"apiVersion: a/b/c\nkind: Pod", "apiVersion: unexpected GroupVersion string: a/b/c"},
		"the second document":            {class + "---\nkind: Pod", "a.yaml, document 2, Pod: it needs"},
		"an invalid name":                {"apiVersion: v1\nkind: Pod\nmetadata: {name: a/b}", "Pod a/b: metadata.name: a lowercase RFC 1123 subdomain"},
		"a number for a name":            {"apiVersion: v1\nkind: Pod\nmetadata: {name: 1}", "metadata.name is a number, not a string: put it in quotes"},
		"a list for a string":            {"apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {nodeName: []}", "spec.nodeName is a list, not a string"},
		"a string for a number":          {deployment("d", "replicas: many"), "Deployment d: spec.replicas is a string, not a whole number"},
		"a misplaced field":              {pod("containers: [{name: a, replicas: 1}]"), `unknown field "spec.containers[0].replicas"`},
		"a field in the wrong case":      {pod("Containers: [{name: a}]"), `unknown field "spec.Containers"`},
		"no containers":                  {pod("nodeName: node"), "Pod p: it has no containers"},
		"a template without containers":  {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {" + selector + ", template: {metadata: {labels: {app: x}}}}", "Deployment d: the template of its pods: it has no containers"},
		"an invalid quantity":            {container("limits: {cpu: [1]}"), "spec.containers[0].resources.limits: cpu is [1], which is no quantity"},
		"a negative amount":              {container("requests: {cpu: -1}"), "container main: requests: -1 of cpu is negative"},
		"an implausible amount":          {container("requests: {memory: 9E}"), "9E of memory is implausibly large"},
		"an amount that takes hours":     {container("requests: {memory: 1e2000000000}"), `spec.containers[0].resources.requests.memory: "1e2000000000" has an exponent beyond 30`},
		"one that takes hours to decode": {container("requests: {memory: \"1e-2000000000\"}"), `"1e-2000000000" has an exponent beyond 30`},
		"the same in a volume":           {pod("containers: [{name: a}], volumes: [{name: v, emptyDir: {sizeLimit: \"1e-2000000000\"}}]"), `spec.volumes[0].emptyDir.sizeLimit: "1e-2000000000" has`},
		"half a GPU":                     {container("limits: {nvidia.com/gpu: 500m}"), "500m of nvidia.com/gpu is not a whole number"},
		"a GPU without a limit":          {container("requests: {nvidia.com/gpu: 1}"), "nvidia.com/gpu has a request but no limit: write it as a limit"},
		"a GPU request unlike its limit": {container("requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}"), "the request for nvidia.com/gpu is 1 and its limit 2: they must be the same"},
		"a request above the limit":      {container("requests: {cpu: 2}, limits: {cpu: 1}"), "the request for cpu, 2, is above its limit, 1"},
		"a container without a name":     {pod("containers: [{resources: {requests: {cpu: -1}}}]"), "container 1: requests"},
		"overhead":                       {pod("overhead: {cpu: -1}, containers: [{name: a}]"), "overhead: -1 of cpu is negative"},
		"the pod's resources":            {pod("resources: {requests: {cpu: -1}}, containers: [{name: a}]"), "the pod's resources: requests: -1 of cpu"},
		"negative replicas":              {deployment("d", "replicas: -1"), "Deployment d: it asks for -1 pods"},
		"more pods than a plan allows":   {deployment("d", "replicas: 2000000000"), "Deployment d: it asks for 2000000000 pods, and a plan is made for at most 200000"},
		"no selector":                    {made("apps/v1", "Deployment", "d", "replicas: 1"), "spec.selector is missing"},
		"an empty selector":              {made("apps/v1", "Deployment", "d", "selector: {}"), "spec.selector does not match"},
		"an invalid selector":            {made("apps/v1", "Deployment", "d", "selector: {matchExpressions: [{key: a, operator: Is}]}"), `spec.selector: "Is" is not a valid label selector operator`},
		"an invalid DaemonSet selector":  {made("apps/v1", "DaemonSet", "d", "selector: {matchLabels: {app: other}}"), "DaemonSet d: spec.selector does not match"},
		"a negative allocatable":         {"apiVersion: v1\nkind: Node\nmetadata: {name: it}\nstatus: {allocatable: {cpu: -1}}", "Node it: status.allocatable: -1 of cpu is negative"},
		"no nodeClassRef":                {"apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: it}\nspec: {template: {spec: {requirements: []}}}", "NodePool it: spec.template.spec.nodeClassRef: Required value"},
		"a missing class":                {pool, `a.yaml, document 1, NodePool shared: spec.template.spec.nodeClassRef names GPUNodeClass "shared", which is not in the files`},
		"an invalid requirement":         {class + "---" + strings.Replace(pool, "operator: In", "operator: Is", 1), "NodePool shared: "},
		"an invalid overlay":             {"apiVersion: karpenter.sh/v1alpha1\nkind: NodeOverlay\nmetadata: {name: o}\nspec: {requirements: [{key: a, operator: Is}]}", "NodeOverlay o: "},
		"an unsupported apiVersion":      {"apiVersion: apps/v1beta1\nkind: Deployment\nmetadata: {name: d}", "apiVersion apps/v1beta1 is not read: write it as apps/v1"},
		"an invalid item of a list":      {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Pod}]", "a.yaml, document 1, item 1, Pod: metadata.name is missing"},
		"a list item that is no object":  {"apiVersion: v1\nkind: PodList\nitems: [1]", "a.yaml, document 1, item 1: it is a number, not an object"},
		"a duplicate":                    {pod("containers: [{name: a}]") + "---\n" + strings.Replace(pod("containers: [{name: a}]"), "name: p", "name: p, namespace: default", 1), "document 2, Pod p: it is in a.yaml, document 1, Pod p already"},
		"invalid UTF-8":                  {"a: \xff", "a.yaml, document 1: "},

		"an unknown strategy":         {sharing("strategy: DRA, replicas: 10"), `GPUNodeClass shared: spec.sharing.strategy: Unsupported value: "DRA"`},
		"a rule of a strategy":        {sharing("strategy: MIG"), "strategy MIG needs mig.layouts"},
		"a rule of a backend":         {sharing("strategy: MPS, replicas: 10, backend: DRA"), "backend DRA shares GPUs by time-slicing or as MIG instances"},
		"a profile that no GPU has":   {sharing("strategy: MIG, mig: {layouts: [{gpuName: a100, profile: 1g.6gb}]}"), "no a100 has the profile 1g.6gb"},
		"sizes of slots that descend": {sharing("strategy: MemorySlots, memory: {sizes: [4Gi, 2Gi]}"), "in ascending order"},
		"one replica":                 {sharing("strategy: TimeSlicing, replicas: 1"), "spec.sharing.replicas in body should be greater than or equal to 2"},
		"a duplicate override":        {sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4, replicas: 2}, {gpuName: t4, replicas: 3}]"), `spec.sharing.overrides[1]: Duplicate value: {"gpuName":"t4"}`},
		"no cloud node class":         {strings.Replace(class, ", name: gpu}", "}", 1), "spec.nodeClassRef.name: Required value"},
		"an invalid idleAfter":        {class + "  consolidation: {idleAfter: soon}\n", "idleAfter is a time such as 30s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, _, err := manifests.Read(t.Context(), files(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "a.yaml, document ") {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if cluster != nil {
				t.Error("there is a cluster beside the error")
			}
		})
	}
}

func TestReadReportsAllErrorsAtOnce(t *testing.T) {
	t.Parallel()
	_, _, err := manifests.Read(t.Context(), files("kind: Pod\n---\nkind: Node", "[", "{", pool))
	for _, want := range []string{"a.yaml, document 1", "a.yaml, document 2", "b.yaml, document 1", "c.yaml, document 1", "d.yaml, document 1, NodePool shared"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not told: %v", want, err)
		}
	}
}

func TestInvalidClassIsNotAlsoReportedMissing(t *testing.T) {
	t.Parallel()
	_, _, err := manifests.Read(t.Context(), files(sharing("strategy: TimeSlicing, replica: 10"), pool))
	if err == nil || strings.Contains(err.Error(), "not in the files") {
		t.Errorf("got %v, want the field that is not known and nothing else", err)
	}
}
