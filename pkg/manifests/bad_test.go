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

		"no strategy":                        {sharing("replicas: 10"), `spec.sharing.strategy is TimeSlicing, MPS, MIG, MemorySlots or None, not ""`},
		"an unknown strategy":                {sharing("strategy: DRA, replicas: 10"), `is TimeSlicing, MPS, MIG, MemorySlots or None, not "DRA"`},
		"MIG without layouts":                {sharing("strategy: MIG"), "strategy MIG needs mig.layouts"},
		"no layouts":                         {sharing("strategy: MIG, mig: {layouts: []}"), "spec.sharing.mig.layouts has 1 to 32 items"},
		"a range of MIG instances":           {sharing("strategy: MIG, replicas: 2, maxReplicas: 4, mig: {layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "remove maxReplicas"},
		"overrides of MIG":                   {sharing("strategy: MIG, overrides: [{gpuName: a100, replicas: 2}], mig: {layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "remove overrides"},
		"a name of mixed instances":          {sharing("strategy: MIG, resourceName: nvidia.com/gpu, mig: {layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "set mig.naming to Single"},
		"a shared name of single instances":  {sharing("strategy: MIG, resourceName: nvidia.com/gpu.shared, mig: {naming: Single, layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "or set replicas"},
		"layouts of another strategy":        {sharing("strategy: None, mig: {layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "mig is for strategy MIG"},
		"an unknown naming":                  {sharing("strategy: MIG, mig: {naming: Other, layouts: [{gpuName: a100, profile: 1g.5gb}]}"), `is Mixed or Single, not "Other"`},
		"a profile that no GPU has":          {sharing("strategy: MIG, mig: {layouts: [{gpuName: a100, profile: 1g.6gb}]}"), "no a100 has the profile 1g.6gb"},
		"MPS without replicas":               {sharing("strategy: MPS"), "strategy MPS needs replicas"},
		"too many replicas for MPS":          {sharing("strategy: MPS, replicas: 49"), "lower replicas to 48"},
		"too large a range for MPS":          {sharing("strategy: MPS, replicas: 10, maxReplicas: 49"), "lower maxReplicas to 48"},
		"too large an override for MPS":      {sharing("strategy: MPS, replicas: 10, overrides: [{gpuName: t4, replicas: 49}]"), "lower the replicas of overrides to 48"},
		"several replicas of a pod with MPS": {sharing("strategy: MPS, replicas: 10, requestsAboveOne: Allow"), "set it to Refuse"},
		"settings of another strategy":       {sharing("strategy: TimeSlicing, replicas: 10, mps: {}"), "mps is for strategy MPS"},
		"too little memory with MPS":         {sharing("strategy: MPS, replicas: 10, mps: {memoryOvercommitPercent: 50}"), "is 100 to 400"},
		"no threads with MPS":                {sharing("strategy: MPS, replicas: 10, mps: {activeThreadPercent: 0}"), "is 1 to 100"},
		"unknown users of MPS":               {sharing("strategy: MPS, replicas: 10, mps: {users: Some}"), `is Any or Single, not "Some"`},
		"busier than always":                 {sharing("strategy: TimeSlicing, replicas: 10, busyPercent: 101"), "busyPercent is 1 to 100"},
		"busy pods with whole GPUs":          {sharing("strategy: None, busyPercent: 50"), "remove busyPercent"},
		"busy pods with whole instances":     {sharing("strategy: MIG, busyPercent: 50, mig: {layouts: [{gpuName: a100, profile: 1g.5gb}]}"), "remove busyPercent, or set replicas"},
		"no slots":                           {sharing("strategy: MemorySlots"), "strategy MemorySlots needs memory.sizes"},
		"slots of another strategy":          {sharing("strategy: TimeSlicing, replicas: 10, memory: {sizes: [2Gi]}"), "memory is for strategy MemorySlots"},
		"slots and replicas":                 {sharing("strategy: MemorySlots, replicas: 10, memory: {sizes: [2Gi]}"), "remove replicas, maxReplicas and overrides"},
		"slots with a name":                  {sharing("strategy: MemorySlots, resourceName: nvidia.com/gpu, memory: {sizes: [2Gi]}"), "remove resourceName"},
		"several slots of a container":       {sharing("strategy: MemorySlots, requestsAboveOne: Allow, memory: {sizes: [2Gi]}"), "a container has one slot"},
		"sizes of slots that descend":        {sharing("strategy: MemorySlots, memory: {sizes: [4Gi, 2Gi]}"), "in ascending order"},
		"the same size twice":                {sharing("strategy: MemorySlots, memory: {sizes: [2Gi, 2048Mi]}"), "in ascending order"},
		"a size that is no amount":           {sharing("strategy: MemorySlots, memory: {sizes: [2G]}"), "spec.sharing.memory.sizes[0] is"},
		"a size that is too small":           {sharing("strategy: MemorySlots, memory: {sizes: [128Mi]}"), "sizes are 256Mi to 1024Gi"},
		"a reserve that is no amount":        {sharing("strategy: MemorySlots, memory: {sizes: [2Gi], reserve: some}"), "spec.sharing.memory.reserve is"},
		"a reserve that is too large":        {sharing("strategy: MemorySlots, memory: {sizes: [2Gi], reserve: 65Gi}"), "reserve is at most 64Gi"},
		"an unknown enforcement":             {sharing("strategy: MemorySlots, memory: {sizes: [2Gi], enforcement: Hard}"), `is None, Watch or MPS, not "Hard"`},
		"no replicas":                        {sharing("strategy: TimeSlicing"), "strategy TimeSlicing needs replicas"},
		"one replica":                        {sharing("strategy: TimeSlicing, replicas: 1"), "spec.sharing.replicas is 2 to 128"},
		"too many replicas":                  {sharing("strategy: TimeSlicing, replicas: 129"), "spec.sharing.replicas is 2 to 128"},
		"whole GPUs with replicas":           {sharing("strategy: None, replicas: 2"), "strategy None gives whole GPUs: remove replicas"},
		"whole GPUs with overrides":          {sharing("strategy: None, overrides: [{gpuName: t4, replicas: 2}]"), "remove overrides"},
		"whole GPUs renamed":                 {sharing("strategy: None, resourceName: nvidia.com/gpu.shared"), "remove resourceName"},
		"whole GPUs with requestsAboveOne":   {sharing("strategy: None, requestsAboveOne: Refuse"), "remove requestsAboveOne"},
		"an unsupported resource name":       {sharing("strategy: TimeSlicing, replicas: 2, resourceName: gpu"), `spec.sharing.resourceName is nvidia.com/gpu or nvidia.com/gpu.shared, not "gpu"`},
		"an invalid requestsAboveOne":        {sharing("strategy: TimeSlicing, replicas: 2, requestsAboveOne: Perhaps"), `spec.sharing.requestsAboveOne is Allow or Refuse, not "Perhaps"`},
		"an override without a name":         {sharing("strategy: TimeSlicing, replicas: 2, overrides: [{replicas: 2}]"), "each needs a gpuName"},
		"an override without replicas":       {sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4}]"), `the replicas of GPU "t4" are 1 to 128`},
		"a duplicate override":               {sharing("strategy: TimeSlicing, replicas: 2, overrides: [{gpuName: t4, replicas: 2}, {gpuName: t4, replicas: 3}]"), `names GPU "t4" twice`},
		"no cloud node class":                {strings.Replace(class, ", name: gpu}", "}", 1), "spec.nodeClassRef needs group, kind and name of the cloud's node class"},
		"a GPUNodeClass as cloud node class": {strings.Replace(class, "karpenter.k8s.aws", "karve.sh", 1), "must name the cloud provider's own node class"},
		"a cloud node class with version":    {strings.Replace(class, "karpenter.k8s.aws", "karpenter.k8s.aws/v1", 1), "group is the part of apiVersion before the slash"},
		"an invalid idleAfter":               {class + "  consolidation: {idleAfter: soon}\n", "reading idleAfter"},
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
