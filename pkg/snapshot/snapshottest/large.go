package snapshottest

import (
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Large returns a cluster with the given number of nodes and ten times as many pods in 200 namespaces, in Deployments of twenty. A quarter of the nodes are
// Karve's machines. They run a fifth of the pods, eight on each, and each of these pods holds one of ten replicas. Karpenter launched the other nodes. Each
// node has a pod of a DaemonSet. One Deployment in ten keeps its pods on different nodes, and one in ten spreads them over the zones. A few pods wait for
// replicas.
func Large(nodes int) *facts.Cluster {
	c := LargePart(0, nodes)
	for i := range 5 {
		c.Pods = append(c.Pods, largePod("waits", i, Asking("cpu", fmt.Sprintf("%dm", 400+100*i), "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")))
	}
	for i := range c.Pods {
		c.Pods[i].ResourceVersion = strconv.Itoa(i + 1)
	}
	return c
}

// LargePart returns part of a cluster like that of Large, without pending pods: the given number of nodes from index first on, and their pods. The
// parts of a cluster fit in memory one after the other.
func LargePart(first, nodes int) *facts.Cluster {
	c := Shared()
	Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)(&c.NodePools[0])
	c.NodePools = append(c.NodePools, KarpenterPool("stock", Requiring("karpenter.k8s.aws/instance-gpu-count", corev1.NodeSelectorOpDoesNotExist)))
	c.DaemonSets = append(c.DaemonSets, DaemonSet("agent", "cpu", "50m", "memory", "100Mi"))
	for i := range 200 {
		c.Namespaces = append(c.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespaceOf(i)}})
	}
	machine := TypeNamed("g4dn.xlarge")
	var ours, stock []string
	for i := first; i < first+nodes; i++ {
		var node corev1.Node
		if i%4 == 0 {
			claim := Claim(fmt.Sprintf("gpu-shared-%05d", i), &c.NodePools[0], machine, Initialized(Now))
			claim.ResourceVersion = strconv.Itoa(i + 1)
			node = Node(&claim, machine, 10)
			c.NodeClaims = append(c.NodeClaims, claim)
			ours = append(ours, node.Name)
		} else {
			node = stockNode(fmt.Sprintf("stock-%05d", i), Zones[i%len(Zones)])
			stock = append(stock, node.Name)
		}
		node.ResourceVersion = strconv.Itoa(i + 1)
		c.Nodes = append(c.Nodes, node)
		c.Pods = append(c.Pods, Pod("agent-"+node.Name, Running(node.Name), OwnedBy("apps/v1", "DaemonSet", "agent"), Asking("cpu", "50m", "memory", "100Mi"), in("kube-system"), fat))
	}
	for i := 2 * first; i < 2*(first+nodes); i++ {
		c.Pods = append(c.Pods, largePod("model", i, Running(ours[i%len(ours)]), Asking("cpu", "300m", "memory", "1Gi", v1alpha1.ResourceGPUShared, "1")))
	}
	for i := 7 * first; i < 7*(first+nodes); i++ {
		c.Pods = append(c.Pods, largePod("web", i, Running(stock[i%len(stock)]), Asking("cpu", "100m", "memory", "256Mi")))
	}
	for i := range c.Pods {
		c.Pods[i].ResourceVersion = strconv.Itoa(10*first + i + 1)
	}
	return c
}

func namespaceOf(i int) string { return fmt.Sprintf("team-%03d", i%200) }

func in(namespace string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = namespace } }

// largePod returns the i-th pod of a kind. Each Deployment has twenty of them.
func largePod(kind string, i int, edits ...func(*corev1.Pod)) corev1.Pod {
	deployment := i / 20
	app := fmt.Sprintf("%s-%04d", kind, deployment)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": app}}
	pod := Pod(fmt.Sprintf("%s-5d8f9b7c6-%05d", app, i), append(edits, in(namespaceOf(deployment)), OwnedBy("apps/v1", "ReplicaSet", app+"-5d8f9b7c6"),
		WithLabels("app.kubernetes.io/name", app, "app.kubernetes.io/instance", app, "app.kubernetes.io/managed-by", "Helm", "pod-template-hash", "5d8f9b7c6"), fat)...)
	pod.UID = types.UID(fmt.Sprintf("%s-%08d-0000-0000-0000", kind, i))
	switch deployment % 10 {
	case 3:
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: selector},
		}}}
	case 7:
		pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector},
		}
	}
	return pod
}

// fat adds fields that pods of real workloads have and that no decision needs.
func fat(pod *corev1.Pod) {
	pod.CreationTimestamp = metav1.NewTime(Now.Add(-3600e9))
	pod.Annotations = map[string]string{"kubernetes.io/config.seen": "2026-03-01T11:00:00Z", "prometheus.io/scrape": "true", "checksum/config": "0123456789abcdef0123456789abcdef0123456789abcdef"}
	pod.GenerateName = pod.Name
	pod.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 1500))},
		{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 800))},
	}
	ctr := &pod.Spec.Containers[0]
	ctr.Image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/team/" + pod.Name + ":v1.2.3"
	ctr.Command, ctr.Args = []string{"/bin/server"}, []string{"--config=/etc/config/config.yaml", "--port=8080", "--log-level=info"}
	for i := range 20 {
		ctr.Env = append(ctr.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", i), Value: fmt.Sprintf("https://service-%d.example.com:8443/path", i)})
	}
	ctr.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/config"}, {Name: "kube-api-access", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
	ctr.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz"}}, PeriodSeconds: 10}
	ctr.ReadinessProbe = ctr.LivenessProbe.DeepCopy()
	ctr.Resources.Limits = ctr.Resources.Requests.DeepCopy()
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "config"}}}},
		corev1.Volume{Name: "kube-api-access", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}, {}, {}}}}},
	)
	seconds := int64(300)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	if pod.Spec.NodeName == "" {
		return
	}
	for _, condition := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: pod.CreationTimestamp})
	}
	started := pod.CreationTimestamp
	pod.Status.StartTime, pod.Status.HostIP, pod.Status.PodIP = &started, "10.0.0.1", "10.0.1.1"
	pod.Status.PodIPs, pod.Status.HostIPs = []corev1.PodIP{{IP: "10.0.1.1"}}, []corev1.HostIP{{IP: "10.0.0.1"}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", Image: ctr.Image, ImageID: ctr.Image + "@sha256:0123456789abcdef", ContainerID: "containerd://0123456789abcdef", Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
	}}
}

func stockNode(name, zone string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelInstanceTypeStable: "m5.2xlarge", corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux",
		karpv1.NodePoolLabelKey: "stock", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand, karpv1.NodeRegisteredLabelKey: "true", karpv1.NodeInitializedLabelKey: "true",
	}}}
	n.Spec.ProviderID = "aws:///" + name
	n.Status.Allocatable = Amounts("cpu", "7910m", "memory", "29Gi", "pods", "58", "ephemeral-storage", "90Gi")
	n.Status.Capacity = Amounts("cpu", "8", "memory", "32Gi", "pods", "58", "ephemeral-storage", "100Gi")
	for _, condition := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		is := corev1.ConditionFalse
		if condition == corev1.NodeReady {
			is = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: condition, Status: is, LastHeartbeatTime: metav1.NewTime(Now), LastTransitionTime: metav1.NewTime(Now.Add(-3600e9))})
	}
	for i := range 30 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/image-%d@sha256:0123456789abcdef", i), fmt.Sprintf("registry.example.com/image-%d:v1", i)}, SizeBytes: 1 << 28})
	}
	return n
}
