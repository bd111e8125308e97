package scale

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/nodecontract"
)

const (
	// pool is the name of the NodePool, the GPUNodeClass and the KWOKNodeClass.
	pool = "shared"
	// gpuType is the instance type of the initial GPU nodes. No other type offers ten replicas at a lower price.
	gpuType = "g4dn.xlarge"
	// otherType is the instance type of the other nodes. They belong to a managed node group: neither Karve nor Karpenter may remove them.
	otherType = "m6i.2xlarge"

	kwokGroup   = "karpenter.kwok.sh"
	kwokKind    = "KWOKNodeClass"
	terminates  = "karpenter.sh/termination" // Karpenter's finalizer
	daemonSet   = "karve-node"
	kubeSystem  = "kube-system"
	leases      = "kube-node-lease"
	providerIDs = "kwok://" // the prefix that Karpenter's kwok provider uses
)

var zones = []string{"us-east-1a", "us-east-1b", "us-east-1c"}

// shape holds the resource requests and the zone of a pod.
type shape struct {
	milliCPU, memoryMiB int64
	// replicas is 0 for a pod without a GPU.
	replicas int64
	// zone is empty if the pod may run in any zone.
	zone string
}

var (
	// steadyGPU is the shape of the initial GPU pods. Ten of them fill a GPU node.
	steadyGPU = shape{milliCPU: 300, memoryMiB: 1024, replicas: 1}
	// late does not fit into the room that bursts leave on the nodes.
	late   = shape{milliCPU: 1900, memoryMiB: 6144, replicas: 1}
	other  = shape{milliCPU: 250, memoryMiB: 512}
	daemon = shape{milliCPU: 100, memoryMiB: 128}
)

// burstShapes returns the 50 shapes of a burst.
func burstShapes() []shape {
	var all []shape
	for _, zone := range []string{"", zones[0]} {
		for _, cpu := range []int64{100, 200, 300, 400, 500} {
			for _, memory := range []int64{256, 512, 1024, 1536, 2048} {
				all = append(all, shape{milliCPU: cpu, memoryMiB: memory, replicas: 1, zone: zone})
			}
		}
	}
	return all
}

func (s shape) requests() corev1.ResourceList {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewMilliQuantity(s.milliCPU, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(s.memoryMiB<<20, resource.BinarySI),
	}
	if s.replicas > 0 {
		list[v1alpha1.ResourceGPUShared] = *resource.NewQuantity(s.replicas, resource.DecimalSI)
	}
	return list
}

// resources returns the resources of a container.
func (s shape) resources() corev1.ResourceRequirements {
	requests := s.requests()
	limits := corev1.ResourceList{corev1.ResourceMemory: requests[corev1.ResourceMemory]}
	if s.replicas > 0 {
		limits[v1alpha1.ResourceGPUShared] = requests[v1alpha1.ResourceGPUShared]
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

// selector returns the node selector of a pod.
func (s shape) selector() map[string]string {
	if s.zone == "" {
		return nil
	}
	return map[string]string{corev1.LabelTopologyZone: s.zone}
}

// replicaSetPod returns a pod of a ReplicaSet with the additions of mutating webhooks and of the ServiceAccount admission plugin. It has about 3 kB.
func replicaSetPod(namespace, name, app string, s shape) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name,
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-" + namespace, "app.kubernetes.io/managed-by": "Helm", "pod-template-hash": "6f4c9d7b58",
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
				"checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, UID: types.UID("5d0cd0e6-" + app), Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: app, RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, TerminationGracePeriodSeconds: new(int64(0)),
			Tolerations: []corev1.Toleration{
				{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
				{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(300))},
			},
			Containers: []corev1.Container{{
				Name: "main", Image: "123456789012.dkr.ecr.us-east-1.amazonaws.com/" + app + ":v1.4.2", Args: []string{"serve", "--config=/etc/app/config.yaml", "--log-level=info"},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
				Env: []corev1.EnvVar{
					{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
					{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}},
					{Name: "DATABASE_URL", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: app}, Key: "url"}}},
					{Name: "LOG_FORMAT", Value: "json"},
					{Name: "OTEL_EXPORTER_OTLP_ENDPOINT", Value: "http://otel-collector.observability:4317"},
				},
				Resources:      s.resources(),
				ReadinessProbe: probe("/readyz"), LivenessProbe: probe("/healthz"),
				VolumeMounts: []corev1.VolumeMount{
					{Name: "config", MountPath: "/etc/app", ReadOnly: true},
					{Name: "kube-api-access-x2f7k", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
				},
				TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullIfNotPresent,
			}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app}}}},
				{Name: "kube-api-access-x2f7k", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: new(int64(3607)), Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{
						LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
					}},
				}}}},
			},
		},
	}
	if s.replicas > 0 {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: v1alpha1.ResourceGPUShared, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	p.Spec.NodeSelector = s.selector()
	return p
}

func probe(path string) *corev1.Probe {
	p := &corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3}
	p.HTTPGet = &corev1.HTTPGetAction{Path: path, Scheme: corev1.URISchemeHTTP}
	p.HTTPGet.Port.StrVal, p.HTTPGet.Port.Type = "http", 1
	return p
}

// daemonPod returns the pod of the DaemonSet on a node.
func daemonPod(node string) *corev1.Pod {
	p := replicaSetPod(kubeSystem, daemonSet+"-"+node, daemonSet, daemon)
	p.OwnerReferences[0].Kind = "DaemonSet"
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	p.Spec.NodeName = node
	return p
}

func theDaemonSet() *appsv1.DaemonSet {
	p := replicaSetPod(kubeSystem, daemonSet, daemonSet, daemon)
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	// The template's variables have other names than those of the pods.
	for i := range p.Spec.Containers[0].Env {
		p.Spec.Containers[0].Env[i].Name += "_"
	}
	labels := map[string]string{"app.kubernetes.io/name": daemonSet}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: daemonSet},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec},
		},
	}
}

// runningStatus returns the status that a kubelet reports for a running pod.
func runningStatus(p *corev1.Pod, now time.Time) corev1.PodStatus {
	at := metav1.NewTime(now.Truncate(time.Second))
	var conditions []corev1.PodCondition
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		conditions = append(conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: at})
	}
	image := p.Spec.Containers[0].Image
	return corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: conditions, HostIP: "10.0.12.34", HostIPs: []corev1.HostIP{{IP: "10.0.12.34"}}, PodIP: "10.0.56.78", PodIPs: []corev1.PodIP{{IP: "10.0.56.78"}},
		StartTime: &at, QOSClass: corev1.PodQOSBurstable,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Ready: true, Started: new(true), Image: image, ImageID: image + "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			ContainerID: "containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		}},
	}
}

// unschedulable returns the condition that a scheduler sets on a pod that fits on no node.
func unschedulable(now time.Time) corev1.PodCondition {
	return corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "0 nodes are available: insufficient nvidia.com/gpu.shared.",
		LastTransitionTime: metav1.NewTime(now),
	}
}

// readTypes returns the instance types of both controllers by name.
func readTypes(path string) (map[string]*catalog.InstanceType, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the instance types: %w", err)
	}
	defer f.Close() //nolint:errcheck // It was only read.
	all, err := catalog.ReadKWOK(f, aws.GPULabels)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	byName := map[string]*catalog.InstanceType{}
	for i := range all {
		byName[all[i].Name] = &all[i]
	}
	return byName, nil
}

// claim returns a NodeClaim as Karve creates it, with the labels and the finalizer that Karpenter adds. Its status is empty.
func claim(name, zone string, np *karpv1.NodePool, t *catalog.InstanceType) *karpv1.NodeClaim {
	in := func(key string, values ...string) karpv1.NodeSelectorRequirementWithMinValues {
		return karpv1.NodeSelectorRequirementWithMinValues{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	price := int64(0)
	for _, o := range t.Offerings {
		if o.Zone == zone && o.CapacityType == karpv1.CapacityTypeOnDemand {
			price = o.MicroUSDPerHour
		}
	}
	return &karpv1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Finalizers: []string{terminates},
			Labels: map[string]string{
				karpv1.NodePoolLabelKey: np.Name, v1alpha1.GPUNodeClassLabel: pool, corev1.LabelInstanceTypeStable: t.Name, corev1.LabelTopologyZone: zone,
				karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
			},
			Annotations: map[string]string{
				nodecontract.ResourceAnnotation: v1alpha1.ResourceGPUShared, nodecontract.GPUsAnnotation: strconv.FormatInt(t.GPU.Count, 10),
				nodecontract.ReplicasPerGPUAnnotation: strconv.Itoa(replicasPerNode), v1alpha1.PriceAnnotation: strconv.FormatInt(price, 10),
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodePool", Name: np.Name, UID: np.UID, BlockOwnerDeletion: new(true)}},
		},
		Spec: karpv1.NodeClaimSpec{
			NodeClassRef: &karpv1.NodeClassReference{Group: kwokGroup, Kind: kwokKind, Name: pool},
			Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
				in(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeOnDemand), in(corev1.LabelInstanceTypeStable, t.Name), in(corev1.LabelTopologyZone, zone),
			},
			Taints:        np.Spec.Template.Spec.Taints,
			StartupTaints: []corev1.Taint{{Key: v1alpha1.ReplicasNotReadyTaintKey, Effect: corev1.TaintEffectNoSchedule}},
			Resources:     karpv1.ResourceRequirements{Requests: shape{milliCPU: 3100, memoryMiB: 10368}.requests()},
			ExpireAfter:   np.Spec.Template.Spec.ExpireAfter,
		},
	}
}

// launched sets the status of a NodeClaim as Karpenter does once the cloud has launched the machine.
func launched(c *karpv1.NodeClaim, node string, t *catalog.InstanceType) {
	c.Status.ProviderID, c.Status.Capacity, c.Status.Allocatable = providerIDs+node, amounts(t.Capacity), amounts(t.Allocatable)
	c.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
}

func amounts(r catalog.Resources) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: *resource.NewMilliQuantity(r.MilliCPU, resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(r.MemoryBytes, resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(r.EphemeralBytes, resource.BinarySI), corev1.ResourcePods: *resource.NewQuantity(r.Pods, resource.DecimalSI),
	}
}

// valueOf returns the first value that a NodeClaim requires of a label, or the empty string.
func valueOf(c *karpv1.NodeClaim, key string) string {
	for _, r := range c.Spec.Requirements {
		if r.Key == key && len(r.Values) > 0 {
			return r.Values[0]
		}
	}
	return ""
}

// machineNode returns the Node of a NodeClaim's machine as the kubelet registers it and Karpenter labels it. The node exposes its GPU replicas from the
// start.
func machineNode(name string, c *karpv1.NodeClaim, t *catalog.InstanceType, now time.Time) *corev1.Node {
	n := node(name, t.Name, c.Labels[corev1.LabelTopologyZone], now)
	maps.Copy(n.Labels, t.Labels)
	maps.Copy(n.Labels, c.Labels)
	n.Labels[karpv1.NodeRegisteredLabelKey] = "true"
	maps.Copy(n.Annotations, c.Annotations)
	n.Finalizers = []string{terminates}
	n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: c.Name, UID: c.UID, BlockOwnerDeletion: new(true)}}
	n.Spec.Taints = slices.Concat(c.Spec.Taints, c.Spec.StartupTaints)
	n.Status.Capacity, n.Status.Allocatable = amounts(t.Capacity), amounts(t.Allocatable)
	perGPU, _ := strconv.ParseInt(c.Annotations[nodecontract.ReplicasPerGPUAnnotation], 10, 64)
	replicas := *resource.NewQuantity(t.GPU.Count*perGPU, resource.DecimalSI)
	n.Status.Capacity[v1alpha1.ResourceGPUShared], n.Status.Allocatable[v1alpha1.ResourceGPUShared] = replicas, replicas
	return n
}

// node returns a ready Node without GPUs. It has about 6 kB, most of them image names.
func node(name, instanceType, zone string, now time.Time) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelInstanceTypeStable: instanceType, corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "us-east-1",
				corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64", "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
			},
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true", "alpha.kubernetes.io/provided-node-ip": "10.0.12.34"},
		},
		Spec: corev1.NodeSpec{ProviderID: providerIDs + name},
		Status: corev1.NodeStatus{
			Capacity: amounts(catalog.Resources{MilliCPU: 8000, MemoryBytes: 32 << 30, EphemeralBytes: 100 << 30, Pods: 58}),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "10.0.12.34"}, {Type: corev1.NodeInternalDNS, Address: name}, {Type: corev1.NodeHostName, Address: name},
			},
			Conditions: nodeConditions(now),
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: "ec2d3f6ae2b84e5c9a5a5f7b1c2d3e4f", SystemUUID: "ec2d3f6a-e2b8-4e5c-9a5a-5f7b1c2d3e4f", BootID: "5b3a1f0e-7c6d-4a8b-9e2f-1d0c3b5a7f9e",
				KernelVersion: "6.1.141-155.222.amzn2023.x86_64", OSImage: "Amazon Linux 2023.7", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.36.3",
				OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	n.Status.Allocatable = amounts(catalog.Resources{MilliCPU: 7910, MemoryBytes: 31 << 30, EphemeralBytes: 90 << 30, Pods: 58})
	for i := range 25 {
		repository := fmt.Sprintf("123456789012.dkr.ecr.us-east-1.amazonaws.com/team-%d/service", i)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names:     []string{repository + "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", repository + ":v1.4.2"},
			SizeBytes: 123_456_789,
		})
	}
	return n
}

// nodeConditions returns the conditions that a kubelet reports at a time.
func nodeConditions(now time.Time) []corev1.NodeCondition {
	at := metav1.NewTime(now.Truncate(time.Second))
	condition := func(kind corev1.NodeConditionType, is corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: is, LastHeartbeatTime: at, LastTransitionTime: metav1.NewTime(booted), Reason: reason, Message: message}
	}
	return []corev1.NodeCondition{
		condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
	}
}

// booted is the time of the last transition of all node conditions.
var booted = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func lease(node string, now time.Time) *coordinationv1.Lease {
	at := metav1.NewMicroTime(now)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: leases, Name: node},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: new(int32(40)), RenewTime: &at},
	}
}

func csiNode(node string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: "ebs.csi.aws.com", NodeID: node, TopologyKeys: []string{corev1.LabelTopologyZone}, Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(25))},
	}}}}
}

// nodePool returns the NodePool of the GPU nodes. Karve manages its machines if the class is a GPUNodeClass, and Karpenter if it is a KWOKNodeClass. With
// still, the disruption budget allows no disruption.
func nodePool(class karpv1.NodeClassReference, still bool) *karpv1.NodePool {
	np := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: pool}}
	np.Spec.Template.Spec = karpv1.NodeClaimTemplateSpec{
		NodeClassRef: &class,
		Taints:       []corev1.Taint{{Key: v1alpha1.ResourceGPUShared, Effect: corev1.TaintEffectNoSchedule}},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{
			{Key: karpv1.CapacityTypeLabelKey, Operator: corev1.NodeSelectorOpIn, Values: []string{karpv1.CapacityTypeOnDemand}},
		},
		ExpireAfter: karpv1.MustParseNillableDuration("720h"),
	}
	np.Spec.Disruption = karpv1.Disruption{
		ConsolidationPolicy: karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized, ConsolidateAfter: karpv1.MustParseNillableDuration("30s"), Budgets: []karpv1.Budget{{Nodes: "10%"}},
	}
	if still {
		np.Spec.Disruption.Budgets[0].Nodes = "0"
	}
	return np
}

func gpuNodeClass() *v1alpha1.GPUNodeClass {
	return &v1alpha1.GPUNodeClass{ObjectMeta: metav1.ObjectMeta{Name: pool}, Spec: v1alpha1.GPUNodeClassSpec{
		NodeClassRef:  v1alpha1.NodeClassReference{Group: kwokGroup, Kind: kwokKind, Name: pool},
		Sharing:       v1alpha1.Sharing{Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(replicasPerNode))},
		Consolidation: v1alpha1.Consolidation{IdleAfter: "30s"},
	}}
}
