package doctor

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/prices"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// well returns the facts of an installation without problems: one node with an agent.
func well() *Facts {
	c := Shared()
	c.GPUNodeClasses[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	kind := TypeNamed("g4dn.xlarge")
	claim := Claim("a", &c.NodePools[0], kind, Initialized(Now.Add(-time.Hour)))
	c.NodeClaims, c.Nodes = append(c.NodeClaims, claim), append(c.Nodes, Node(&claim, kind, 10))
	return &Facts{
		CLI: "v0.1.0", Kubernetes: "v1.33.1", Cluster: c, AgentsOn: map[string]bool{"a": true}, Monitors: Monitors{Served: true, Controller: true, Agent: true},
		Controllers: []Program{{Kind: "Deployment", Namespace: "karve-system", Name: "karve", Version: "0.1.0", Ready: 2, Flags: map[string]string{
			"vm-memory-overhead-percent": "0.0750", "reserved-enis": "0", "isolated-vpc": "false",
		}}},
		Agents:     []Program{{Kind: "DaemonSet", Namespace: "karve-node", Name: "karve-node", Version: "0.1.0", Ready: 1}},
		Karpenters: []Program{{Kind: "Deployment", Namespace: "kube-system", Name: "karpenter", Version: "1.14.1", Ready: 2, Env: map[string]string{"FEATURE_GATES": "NodeRepair=false"}}},
		CRDs: map[string]CRD{
			"gpunodeclasses.karve.sh": {Served: []string{"v1alpha1"}}, "gpuimagerollouts.karve.sh": {Served: []string{"v1alpha1"}},
			"nodepools.karpenter.sh": {Served: []string{"v1"}}, "nodeclaims.karpenter.sh": {Served: []string{"v1"}},
		},
	}
}

func classIs(kind, reason string) func(*Facts) {
	return func(f *Facts) {
		f.Cluster.GPUNodeClasses[0].Status.Conditions = append([]metav1.Condition{{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: "it is so."}}, f.Cluster.GPUNodeClasses[0].Status.Conditions...)
	}
}

func poolIs(kind string) func(*Facts) {
	return func(f *Facts) {
		f.Cluster.NodePools[0].Status.Conditions = []status.Condition{{Type: kind, Status: metav1.ConditionFalse, Reason: "Because", Message: "it is so"}}
	}
}

func nodeIs(kind, reason string) func(*Facts) {
	return func(f *Facts) {
		f.Cluster.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeConditionType(kind), Status: corev1.ConditionFalse, Reason: reason, Message: "it is so"}}
	}
}

// reserve makes the node class select a reservation.
func reserve(f *Facts) {
	Reserve(f.Cluster, catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge", Free: 1, Total: 1})
	state := f.Cluster.NodeClasses[NodeClassRef]
	state.SelectsReservations = true
	f.Cluster.NodeClasses[NodeClassRef] = state
}

func TestNothingIsFoundWhereNothingIsWrong(t *testing.T) {
	t.Parallel()
	if got := Check(well()); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	if got := Check(&Facts{}); len(got) > 0 {
		t.Errorf("of nothing that is known: %+v", got)
	}
	reserved := well()
	reserve(reserved)
	if got := Check(reserved); len(got) > 0 {
		t.Errorf("of a pool that uses its reservation: %+v", got)
	}
	alone := well()
	repairs := well() // Karpenter 1.15 repairs only its own nodes.
	repairs.Karpenters[0].Version, repairs.Karpenters[0].Env["FEATURE_GATES"] = "1.15.0", "NodeRepair=true"
	if got := Check(repairs); len(got) > 0 {
		t.Errorf("%v", got)
	}
	alone.Controllers[0].Flags["leader-elect"], alone.Leader = "false", &leader.Leader{State: leader.Missing, Message: "there is no Lease"}
	if got := Check(alone); len(got) > 0 {
		t.Errorf("of a controller without leader election: %+v", got)
	}
}

func TestPodThatNamesGPUsIsNoFindingWhereRuntimeIgnoresThat(t *testing.T) {
	t.Parallel()
	f := well()
	f.Cluster.Nodes[0].Status.Conditions = append(f.Cluster.Nodes[0].Status.Conditions, corev1.NodeCondition{Type: nodecontract.AccessCondition, Status: corev1.ConditionTrue})
	f.Visible = []Visible{{Pod: "team/b", Container: "c", Node: "a", Value: "all"}}
	if got := Check(f); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestContainersThatNameGPUs(t *testing.T) {
	t.Parallel()
	with := func(name, value string) corev1.Container {
		return corev1.Container{Name: name, Env: []corev1.EnvVar{{Name: "OTHER", Value: "all"}, {Name: VisibleDevices, Value: value}}}
	}
	privileged := with("privileged", "all")
	privileged.SecurityContext = &corev1.SecurityContext{Privileged: new(true)}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}, Spec: corev1.PodSpec{
		NodeName: "n", InitContainers: []corev1.Container{with("init", "0,1")},
		Containers: []corev1.Container{with("main", "all"), with("none", "none"), with("void", "void"), with("empty", ""), {Name: "unset"}, privileged},
	}}
	want := []Visible{{"team/a", "init", "n", "0,1"}, {"team/a", "main", "n", "all"}}
	if got := VisibleOf(pod); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestEachCheckFindsItsProblem makes one change to an installation without problems, which has one finding then.
func TestEachCheckFindsItsProblem(t *testing.T) {
	t.Parallel()
	controller := func(edit func(*Program)) func(*Facts) { return func(f *Facts) { edit(&f.Controllers[0]) } }
	karpenter := func(edit func(*Program)) func(*Facts) { return func(f *Facts) { edit(&f.Karpenters[0]) } }
	for name, c := range map[string]struct {
		change   func(*Facts)
		severity Severity
		object   string
		message  string
		fix      string
	}{
		"something is not readable": {func(f *Facts) { f.Unread = []Unread{{"Nodes", "forbidden", "list nodes"}} }, Unknown, "Nodes", "could not be checked: forbidden", "list nodes"},
		"kubectl-karve has a bug":   {func(f *Facts) { f.Unread = []Unread{{"Nodes", "garbled", ""}} }, Unknown, "Nodes", "could not be checked: garbled", "report it as a bug"},
		"no controller":             {func(f *Facts) { f.Controllers = []Program{} }, Error, "controller", "no Deployment of Karve's controller", "helm -n karve-system upgrade"},
		"two controllers": {
			func(f *Facts) { f.Controllers = append(f.Controllers, f.Controllers[0]) }, Error, "controller", "there are 2 installations", "helm uninstall",
		},
		"a controller that has stopped": {
			func(f *Facts) {
				f.Leader = &leader.Leader{State: leader.Stopped, Namespace: "karve-system", Message: "no controller has worked since 14:02 UTC"}
			}, Error, "Lease karve-system/karve", "no controller has worked since 14:02 UTC", "kubectl -n karve-system logs deployment/karve",
		},
		"a controller that has stopped, unread": {
			func(f *Facts) {
				f.Controllers, f.Leader = nil, &leader.Leader{State: leader.Missing, Namespace: "gpus", Message: "no controller has ever worked here"}
			}, Error, "Lease gpus/karve", "no controller has ever worked here", "kubectl -n gpus get lease karve",
		},
		"a controller that is not ready": {controller(func(p *Program) { p.Ready = 0 }), Error, "Deployment karve-system/karve", "none of its pods is ready, so nothing is launched", "kubectl -n karve-system"},
		"an old Kubernetes":              {func(f *Facts) { f.Kubernetes = "v1.29.4" }, Error, "Kubernetes", "v1.29.4 is older than v1.30", "upgrade"},
		"an untested Kubernetes":         {func(f *Facts) { f.Kubernetes = "v1.38.0" }, Warning, "Kubernetes", "v1.38.0 was not tested", "v1.33 to v1.37"},
		"a Kubernetes before those":      {func(f *Facts) { f.Kubernetes = "v1.31.4-eks-1a2b3c" }, Warning, "Kubernetes", "was not tested", "docs/versions.md"},
		"no Karpenter":                   {func(f *Facts) { f.Karpenters = []Program{} }, Warning, "Karpenter", "was found", "install Karpenter"},
		"a Karpenter that is not ready":  {karpenter(func(p *Program) { p.Ready = 0 }), Error, "Deployment kube-system/karpenter", "none of its pods is ready", "describe"},
		"an untested Karpenter":          {karpenter(func(p *Program) { p.Version = "1.9.0" }), Warning, "Deployment kube-system/karpenter", "version 1.9.0 of Karpenter was not tested", "1.14 to 1.15"},
		"another version of the CLI":     {func(f *Facts) { f.CLI = "v0.2.0" }, Warning, "kubectl-karve", "its version is v0.2.0, and that of Deployment karve-system/karve is 0.1.0", "install kubectl-karve 0.1.0"},
		"another version of the agent":   {func(f *Facts) { f.Agents[0].Version = "0.0.9" }, Warning, "DaemonSet karve-node/karve-node", "its version is 0.0.9", "helm -n karve-system upgrade"},
		"a CRD that is missing":          {func(f *Facts) { delete(f.CRDs, "gpunodeclasses.karve.sh") }, Error, "CustomResourceDefinition gpunodeclasses.karve.sh", "not installed", "karve-crd"},
		"a CRD without the version":      {func(f *Facts) { f.CRDs["nodepools.karpenter.sh"] = CRD{Served: []string{"v1beta1"}} }, Error, "CustomResourceDefinition nodepools.karpenter.sh", "does not serve version v1", "karpenter-crd"},
		"a CRD of another version":       {func(f *Facts) { f.CRDs["gpunodeclasses.karve.sh"] = CRD{Served: []string{"v1alpha1"}, Differs: true} }, Warning, "CustomResourceDefinition gpunodeclasses.karve.sh", "its fields differ from those", "karve-crd"},
		"rights that are missing":        {func(f *Facts) { f.Denied = []Right{{Group: "karpenter.sh", Resource: "nodeclaims", Verb: "create"}} }, Error, "the controller's service account", "may not create nodeclaims.karpenter.sh", "roles"},
		"a rule for prices of machines that are not there": {func(f *Facts) {
			f.Prices = []prices.Rule{{Name: "fee", PriceAdjustment: "+0.1"}, {Name: "plan", PriceAdjustment: "-28%", Requirements: []karpv1alpha1.NodeSelectorRequirement{{Key: "karpenter.k8s.aws/instance-family", Operator: "In", Values: []string{"p9"}}}}}
		}, Warning, `the rule for prices "plan"`, "it changes the price of no machine", "docs/prices.md"},
		"another overhead": {karpenter(func(p *Program) { p.Env["VM_MEMORY_OVERHEAD_PERCENT"] = "0.1" }), Error, "Deployment karve-system/karve", "vm-memory-overhead-percent", "settings.vmMemoryOverheadPercent=null"},
		"Karpenter without reservations": {func(f *Facts) {
			reserve(f)
			f.Karpenters[0].Env["FEATURE_GATES"] = "NodeOverlay=true, ReservedCapacity=false"
		}, Warning, "Deployment kube-system/karpenter", "ReservedCapacity is off, so nothing is launched into the reservations that EC2NodeClass gpu selects", "reservedCapacity=true"},
		"reservations that do not exist": {func(f *Facts) {
			reserve(f)
			state := f.Cluster.NodeClasses[NodeClassRef]
			state.Reservations = nil
			f.Cluster.NodeClasses[NodeClassRef] = state
		}, Warning, "EC2NodeClass gpu", "its spec.capacityReservationSelectorTerms select no capacity reservation that is active", "kubectl describe ec2nodeclass gpu"},
		"reservations that no pool uses": {func(f *Facts) {
			reserve(f)
			Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "on-demand")(&f.Cluster.NodePools[0])
		}, Warning, "NodePool gpu-shared", "its requirements allow none of the 1 capacity reservations that EC2NodeClass gpu selects", "add reserved to the values of karpenter.sh/capacity-type"},
		"Karpenter's legacy repair": {karpenter(func(p *Program) {
			p.Version, p.Env["FEATURE_GATES"], p.Env["LEGACY_NODE_REPAIR"] = "1.15.0", "NodeRepair=true", "true"
		}), Warning, "Deployment kube-system/karpenter", "NodeRepair", "nodeRepair=false"},
		"Karpenter's repair": {karpenter(func(p *Program) { p.Env["FEATURE_GATES"] = "NodeOverlay=true, NodeRepair=true" }), Warning, "Deployment kube-system/karpenter", "NodeRepair", "nodeRepair=false"},
		"a running pod that states no amount": {
			func(f *Facts) { f.Cluster.Pods = []corev1.Pod{Pod("x", Running("a"), GPUMemory("lots"))} }, Warning, "Pod default/x", `"lots" is no amount`, "annotate pod x",
		},
		"a running pod that states bytes": {
			func(f *Facts) { f.Cluster.Pods = []corev1.Pod{Pod("x", Running("a"), GPUMemory("8000"))} }, Warning, "Pod default/x", "did you mean 8000Mi", "annotate pod x",
		},
		"a running pod that states too much": {
			func(f *Facts) { f.Cluster.Pods = []corev1.Pod{Pod("x", Running("a"), GPUMemory("200Gi"))} }, Warning, "Pod default/x", "200Gi is more than the 15079Mi of a GPU of its node", "annotate pod x",
		},
		"a class that is not accepted": {classIs(v1alpha1.ConditionAccepted, "Invalid"), Error, "GPUNodeClass gpu-shared", "Invalid: it is so", "kubectl edit"},
		"a class that is not ready":    {classIs(v1alpha1.ConditionReady, "NodeClassNotReady"), Error, "GPUNodeClass gpu-shared", "NodeClassNotReady: it is so", "kubectl describe"},
		"a class that nobody has seen": {func(f *Facts) { f.Cluster.GPUNodeClasses[0].Status.Conditions = nil }, Error, "GPUNodeClass gpu-shared", "has no conditions", "kubectl get deployments"},
		"a stale catalog":              {classIs(v1alpha1.ConditionCatalogFresh, "PricesStale"), Warning, "GPUNodeClass gpu-shared", "out of date since", "describe"},
		"missing credentials":          {classIs(v1alpha1.ConditionCatalogFresh, "AccessDenied"), Error, "GPUNodeClass gpu-shared", "AccessDenied", "IAM role"},
		"claims that Karpenter plans for": {func(f *Facts) {
			f.Karpenters[0].Env["IGNORE_DRA_REQUESTS"], f.Cluster.GPUNodeClasses[0].Spec.Sharing.Backend = "false", v1alpha1.BackendDRA
		}, Warning, "Deployment kube-system/karpenter", "IGNORE_DRA_REQUESTS is false", "node selector"},
		"a quota": {
			func(f *Facts) {
				f.Cluster.GPUNodeClasses[0].Status.RefusedOfferings = []v1alpha1.RefusedOffering{{InstanceType: "g4dn.xlarge", Zone: "*", CapacityType: "spot", Reason: v1alpha1.RefusalSpotQuota, Failures: 2}}
			}, Warning, "GPUNodeClass gpu-shared", "SpotQuotaExceeded, refused 2 times", "L-3819A6DF",
		},
		"a quota that is nearly used up": {
			func(f *Facts) {
				f.Quotas = []catalog.Quota{{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA", VCPUs: 7}}
			}, Warning, "quota L-DB2E81BA",
			"the nodes of this cluster use 4 of the 7 vCPUs of G and VT instances (on-demand) that the account may run, and the smallest machine of NodePool gpu-shared has 4",
			"--quota-code L-DB2E81BA --desired-value 14",
		},
		"a quota of which 90 % are used": {
			func(f *Facts) {
				f.Quotas = []catalog.Quota{{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA", VCPUs: 100}}
				f.Cluster.Nodes = append(f.Cluster.Nodes, nodeOf("g5.24xlarge", 96))
			}, Warning, "quota L-DB2E81BA", "the nodes of this cluster use 100 of the 100 vCPUs", "--desired-value 200",
		},
		"a quota that is too small for any machine": {
			func(f *Facts) {
				f.Quotas = []catalog.Quota{{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA"}, {Group: "P", CapacityType: "on-demand", Code: "L-417A185B"}}
			}, Error, "quota L-DB2E81BA", "the account may run 0 vCPUs of G and VT instances (on-demand), and the smallest machine of NodePool gpu-shared has 4", "--desired-value 8",
		},
		"a ResourceQuota that is nearly used up": {
			func(f *Facts) {
				amounts := func(n string) corev1.ResourceList { return Amounts("requests."+v1alpha1.ResourceGPUShared, n) }
				f.ResourceQuotas = []corev1.ResourceQuota{
					{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "gpus"}, Status: corev1.ResourceQuotaStatus{Hard: amounts("20"), Used: amounts("18")}},
					{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "none"}, Status: corev1.ResourceQuotaStatus{Hard: amounts("0"), Used: amounts("0")}},
					{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "roomy"}, Status: corev1.ResourceQuotaStatus{Hard: amounts("20"), Used: amounts("17")}},
					{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "cpus"}, Status: corev1.ResourceQuotaStatus{Hard: Amounts("requests.cpu", "1"), Used: Amounts("requests.cpu", "1")}},
				}
			}, Warning, "ResourceQuota team/gpus", "uses 18 of 20 requests.nvidia.com/gpu.shared, and no pods beyond that are created", "kubectl -n team patch resourcequota gpus",
		},
		"a pool without its class":     {func(f *Facts) { f.Cluster.NodePools[0].Spec.Template.Spec.NodeClassRef.Name = "gone" }, Error, "NodePool gpu-shared", "names GPUNodeClass gone, which does not exist", "create"},
		"a pool that is not valid":     {poolIs(karpv1.ConditionTypeValidationSucceeded), Error, "NodePool gpu-shared", "Because: it is so", "kubectl edit nodepool gpu-shared"},
		"a pool that is not ready":     {poolIs(karpv1.ConditionTypeNodeClassReady), Error, "NodePool gpu-shared", "Because: it is so", "kubectl describe"},
		"a pool that launches nothing": {poolIs(v1alpha1.ConditionReplicasHealthy), Error, "NodePool gpu-shared", "launches nothing", "troubleshooting"},
		"a pool of unhealthy nodes":    {poolIs(v1alpha1.ConditionNodesHealthy), Error, "NodePool gpu-shared", "no unhealthy node is replaced", "kubectl delete"},
		"a limit that is near": {
			func(f *Facts) {
				f.Cluster.NodePools[0].Spec.Limits = karpv1.Limits(Amounts(v1alpha1.ResourceGPU, "1", "cpu", "100"))
			}, Warning, "NodePool gpu-shared", "uses 1 of its limit of 1 nvidia.com/gpu", "kubectl patch nodepool gpu-shared",
		},
		"no agents":                     {func(f *Facts) { f.Agents, f.AgentsOn = nil, map[string]bool{} }, Error, "agent", "no DaemonSet", "node.enabled=true"},
		"a node without an agent":       {func(f *Facts) { f.AgentsOn = map[string]bool{} }, Error, "agent", "no ready agent runs on a", "spec.nodeName=a"},
		"an agent that stands back":     {nodeIs(nodecontract.SharingCondition, nodecontract.ReasonStandingBack), Error, "Node a", "StandingBack: it is so", "other device plugin"},
		"a GPU that is out":             {nodeIs(nodecontract.HardwareCondition, nodecontract.ReasonLost), Warning, "Node a", "GPULost", "explain node/a"},
		"a runtime that gives all GPUs": {nodeIs(nodecontract.AccessCondition, nodecontract.ReasonEnvironmentAccepted), Warning, "Node a", "NVIDIA_VISIBLE_DEVICES", "accept-nvidia-visible-devices-envvar-when-unprivileged = false"},
		"a pod that names its GPUs": {func(f *Facts) {
			f.Visible = []Visible{{Pod: "team/b", Container: "c", Node: "a", Value: "all"}, {Pod: "team/a", Container: "c", Node: "a", Value: "\x1b[2J"}, {Pod: "team/c", Node: "without-agent", Value: "all"}}
		}, Warning, "Pod team/a and 1 more", `sets NVIDIA_VISIBLE_DEVICES="\x1b[2J" in the container c, and so can use GPUs of the node a`, "remove the variable"},
		"a cordon of no GPU":          {nodeIs(nodecontract.CordonCondition, nodecontract.ReasonCordonInvalid), Warning, "Node a", "GPUCordonInvalid", "annotate node a --overwrite karve.sh/gpu-cordon="},
		"a controller without scrape": {func(f *Facts) { f.Monitors.Controller = false }, Warning, "ServiceMonitor", "scrape the controller", "serviceMonitor.enabled=true"},
		"agents without scrape":       {func(f *Facts) { f.Monitors.Agent = false }, Warning, "PodMonitor", "scrape the agents", "node.podMonitor.enabled=true"},
		"pods that are misspelled": {
			func(f *Facts) { f.Cluster.Pods = Pods("x", 3, Asking("nvidia.com/gpu.shred", "1")) }, Warning, "Pod default/x-000 and 2 more", "did you mean nvidia.com/gpu.shared?", "kubectl karve explain pod/x-000 -n default",
		},
		"pods that nobody serves": {
			func(f *Facts) { f.Cluster.Pods = Pods("x", 1, Asking("example.com/fpga", "1")) }, Warning, "Pod default/x-000", "requests example.com/fpga, which nothing in the cluster serves", "explain",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := well()
			c.change(f)
			got := Check(f)
			if len(got) != 1 {
				t.Fatalf("%d findings, want 1: %+v", len(got), got)
			}
			if g := got[0]; g.Severity != c.severity || g.Object != c.object || !strings.Contains(g.Message, c.message) || !strings.Contains(g.Fix, c.fix) {
				t.Errorf("%+v\nwant %s of %s: %q, fixed by %q", g, c.severity, c.object, c.message, c.fix)
			}
		})
	}
}

// nodeOf returns a node that is not Karve's.
func nodeOf(instanceType string, vcpus int64) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: instanceType, Labels: map[string]string{corev1.LabelInstanceTypeStable: instanceType}},
		Status:     corev1.NodeStatus{Capacity: corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(vcpus, resource.DecimalSI)}},
	}
}

// TestQuotasThatThisClusterDoesNotUseAreNoProblem has quotas of 0 for machines that no NodePool allows, and large ones for those that nodes are of.
func TestQuotasThatThisClusterDoesNotUseAreNoProblem(t *testing.T) {
	t.Parallel()
	f := well()
	f.Quotas = []catalog.Quota{
		{Group: "P", CapacityType: "on-demand", Code: "L-417A185B"},
		{Group: "G and VT", CapacityType: "spot", Code: "L-3819A6DF"},
		{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA", VCPUs: 64},
	}
	spot, managed := nodeOf("g5.24xlarge", 96), nodeOf("g5.12xlarge", 48)
	spot.Labels[karpv1.CapacityTypeLabelKey] = karpv1.CapacityTypeSpot
	managed.Labels["eks.amazonaws.com/capacityType"] = "SPOT"
	f.Cluster.Nodes = append(f.Cluster.Nodes, spot, managed, nodeOf("m5.24xlarge", 96))
	if got := Check(f); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestTheWorstComesFirst(t *testing.T) {
	t.Parallel()
	f := well()
	f.Unread, f.CLI, f.Kubernetes = []Unread{{"Nodes", "forbidden", "list nodes"}}, "v9", "v1.2.3"
	var got []Severity
	for _, finding := range Check(f) {
		got = append(got, finding.Severity)
	}
	if want := []Severity{Error, Warning, Unknown}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRightsOfRules(t *testing.T) {
	t.Parallel()
	got := rightsOf(&rbacv1.PolicyRule{APIGroups: []string{"", "apps"}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}}, "checks")
	want := []Right{{"", "pods", "get", "checks", ""}, {"", "pods", "list", "checks", ""}, {"apps", "pods", "get", "checks", ""}, {"apps", "pods", "list", "checks", ""}}
	if !slices.Equal(got, want) || got[3].String() != "list pods.apps in the namespace checks" {
		t.Errorf("%v, want %v", got, want)
	}
}
