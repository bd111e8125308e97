package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// report is a public report of a problem with another tool, turned into input for this one.
type report struct {
	// from is where it was reported. asks is what the reporters expected.
	from, asks string
	// replicas is the number of pods, and gpus the number of GPU replicas of each. 0 means 1. pod is added to the spec of the pods, and requests and limits to those of their container.
	replicas, gpus        int
	pod, requests, limits string
	// pool is added to the spec of the NodePool, template to that of its template, and requirement to its requirements.
	pool, template, requirement string
	// more are further documents. If workload is set, it takes the place of the Deployment.
	more, workload string
	// want are parts of the output, in order.
	want []string
}

const (
	reportClass = `
apiVersion: karve.sh/v1alpha1
kind: GPUNodeClass
metadata: {name: shared}
spec:
  nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
  sharing: {strategy: TimeSlicing, replicas: 10}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: shared}
spec:
  POOL
  template:
    spec:
      TEMPLATE
      nodeClassRef: {group: karve.sh, kind: GPUNodeClass, name: shared}
      requirements:
      - {key: karpenter.k8s.aws/instance-family, operator: In, values: [g4dn, g5]}
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      REQUIREMENT
      taints: [{key: nvidia.com/gpu.shared, effect: NoSchedule}]
---
`
	reportTolerations = `tolerations: [{key: nvidia.com/gpu.shared, operator: Exists}]`
	reportContainers  = `containers: [{name: main, image: x, resources: {requests: {cpu: 500m, memory: 1Gi, REQUESTS}, limits: {nvidia.com/gpu.shared: "GPUS", LIMITS}}}]`
	reportDeployment  = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: infer}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: infer}}
  template:
    metadata: {labels: {app: infer}}
    spec:
      ` + reportTolerations + `
      ` + reportContainers + `
      POD
---
`
)

func (r *report) manifests() string {
	text := reportClass + reportDeployment
	if r.workload != "" {
		text = reportClass + r.workload + "\n---\n"
	}
	fields := strings.NewReplacer(
		"POOL", r.pool, "TEMPLATE", r.template, "REQUIREMENT", r.requirement, "REQUESTS", r.requests, "LIMITS", r.limits,
		"REPLICAS", strconv.Itoa(max(1, r.replicas)), "POD", r.pod, "GPUS", strconv.Itoa(max(1, r.gpus)),
	)
	return fields.Replace(text) + r.more
}

// TestPublicReportsHaveRightAnswers plans what people reported of Karpenter, device plugins and schedulers.
func TestPublicReportsHaveRightAnswers(t *testing.T) {
	t.Parallel()
	for _, r := range []report{
		{from: "kubernetes-sigs/karpenter#729", asks: "pods that ask for several replicas share a GPU", replicas: 3, gpus: 3, want: []string{"1 × g4dn.xlarge", "0.526   optimal"}},
		{from: "aws/karpenter-provider-aws#3376", asks: "no GPU for each pod, and none too few", replicas: 11, want: []string{"2 × g4dn.xlarge", "1.052   optimal"}},
		{from: "aws/karpenter-provider-aws#7038", asks: "a pod with a number of GPUs that no machine has exactly", gpus: 7, want: []string{"1 × g4dn.xlarge"}},
		{from: "bottlerocket-os/bottlerocket#4250", asks: "no machine for a resource that it will not have", workload: reportPod(`{nvidia.com/gpu: "1"}`), want: []string{"NoMatchingPool", "asks for nvidia.com/gpu,", "it offers nvidia.com/gpu.shared"}},
		{from: "aws/karpenter-provider-aws#4017", asks: "no machine whose disk is too small", requests: "ephemeral-storage: 50Gi", want: []string{"TooLarge", "asks for 50Gi of ephemeral storage", "has 17Gi"}},
		{from: "aws/karpenter-provider-aws#2797", asks: "a machine for storage that fits", requests: "ephemeral-storage: 15Gi", want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#2298", asks: "the disk of the node class counts", requests: "ephemeral-storage: 50Gi", more: "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {name: gpu}\nspec:\n  blockDeviceMappings: [{deviceName: /dev/xvda, ebs: {volumeSize: 200Gi}}]\n  role: node\n  amiSelectorTerms: [{alias: al2023@latest}]\n  subnetSelectorTerms: [{id: subnet-1}]\n  securityGroupSelectorTerms: [{id: sg-1}]\n", want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#8068", asks: "a limit that is reached is named", replicas: 11, pool: "limits: {nvidia.com/gpu: 1}", want: []string{"10", "LimitReached", "may launch 0 GPUs more within spec.limits"}},
		{from: "aws/karpenter-provider-aws#6355", asks: "a startup taint that pods do not tolerate", replicas: 2, template: "startupTaints: [{key: node.cilium.io/agent-not-ready, effect: NoExecute}]", want: []string{"1 × g4dn.xlarge", "optimal"}},
		{from: "aws/karpenter-provider-aws#7754", asks: "minValues with one family", requirement: "- {key: karpenter.k8s.aws/instance-size, operator: Exists, minValues: 3}", want: []string{"1 × g4dn.xlarge,g4dn.2xlarge"}},
		{from: "aws/karpenter-provider-aws#6884", asks: "a pool that leaves types out", requirement: "- {key: node.kubernetes.io/instance-type, operator: NotIn, values: [g4dn.xlarge, g4dn.2xlarge]}", want: []string{"1 × g5.xlarge"}},
		{from: "aws/karpenter-provider-aws#5703", asks: "one GPU for a pod that asks for one, by a label of the pool", pod: "nodeSelector: {team: ml}", requirement: "- {key: team, operator: In, values: [ml]}", want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#1146", asks: "pods of one claim share a machine", replicas: 3, pod: "volumes: [{name: v, persistentVolumeClaim: {claimName: models}}]", more: reportClaim, want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#2651", asks: "a StorageClass that does not exist is the cause", replicas: 2, pod: "volumes: [{name: v, persistentVolumeClaim: {claimName: models}}]", more: reportClaim[:strings.Index(reportClaim, "---")], want: []string{"VolumesNotReady", "its StorageClass gp3 does not exist"}},
		{from: "kai-scheduler/KAI-Scheduler#1615", asks: "pods behind a scheduling gate cost nothing", pod: "schedulingGates: [{name: kueue.x-k8s.io/admission}]", want: []string{"No pods are waiting", "Deployment default/infer (scheduling gates kueue.x-k8s.io/admission)"}},
		{from: "kubernetes-sigs/kueue#426", asks: "neither do suspended Jobs", workload: reportJob("name: train", "suspend: true"), want: []string{"No pods are waiting", "Job default/train (suspended)"}},
		{from: "tektoncd/pipeline#1397", asks: "objects with generated names count, and are named if their pods are unknown", workload: "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: wf-}\nspec: {templates: [{name: a, container: {image: x, resources: {limits: {nvidia.com/gpu.shared: \"1\"}}}}]}", want: []string{"No pods are part of the plan", "Workflow.argoproj.io default/wf-1"}},
		{from: "kubernetes/kubernetes#44501", asks: "Jobs with generated names count", workload: reportJob("generateName: train-", "parallelism: 12"), want: []string{"2 × g4dn.xlarge", "default/train-1 (12)"}},
		{from: "kubernetes/kubernetes#117955", asks: "pods that failed at admission hold nothing", workload: reportPod(`{nvidia.com/gpu.shared: "1"}`) + "status: {phase: Failed, reason: UnexpectedAdmissionError}", want: []string{"No pods are waiting"}},
		{from: "kubernetes-sigs/karpenter#2325", asks: "requests at the level of the pod count", replicas: 4, pod: "resources: {requests: {cpu: '6', memory: 20Gi}}", want: []string{"1 × g4dn.8xlarge"}},
		{from: "Project-HAMi/HAMi#1942", asks: "init containers run one after the other: the largest counts", workload: reportInit, want: []string{"1 × g4dn.xlarge"}},
		{from: "Project-HAMi/HAMi#602", asks: "two replicas for a pod on a machine with one GPU", gpus: 2, want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#1900", asks: "devices that only another plugin will serve are a reason, not a launch", limits: `smarter-devices/fuse: "1"`, want: []string{"TooLarge", "asks for smarter-devices/fuse besides nvidia.com/gpu.shared, which no machine of NodePool shared has", "nothing serves smarter-devices/fuse"}},
		{from: "aws/karpenter-provider-aws#3127", asks: "EFA interfaces are counted", limits: `vpc.amazonaws.com/efa: "1"`, want: []string{"1 × g4dn.8xlarge"}},
		{from: "aws/karpenter-provider-aws#3315", asks: "huge pages that no machine has are the cause", requests: "hugepages-2Mi: 64Mi", limits: "hugepages-2Mi: 64Mi", want: []string{"TooLarge", "asks for hugepages-2Mi"}},
		{from: "kubernetes-sigs/karpenter#329", asks: "spread over more zones than one machine has", replicas: 3, pod: "topologySpreadConstraints: [{maxSkew: 1, minDomains: 3, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: infer}}}]", want: []string{"us-east-1a", "us-east-1b", "us-east-1c", "3 machines"}},
		{from: "aws/karpenter-provider-aws#1573", asks: "a DaemonSet with limits and no requests takes its part of each node", replicas: 10, more: "---\n" + reportDaemonSet, want: []string{"2 × g4dn.xlarge"}},
		{from: "awslabs/eks-node-viewer#40", asks: "completed pods hold nothing", workload: reportPod(`{nvidia.com/gpu.shared: "1"}`) + "  nodeName: ip-10-0-0-1\nstatus: {phase: Succeeded}", want: []string{"No pods are waiting"}},
		{from: "kubernetes-sigs/karpenter#376", asks: "a bound volume needs no StorageClass", pod: "volumes: [{name: v, persistentVolumeClaim: {claimName: models}}]", more: reportVolume, want: []string{"1 × g4dn.xlarge"}},
		{from: "aws/karpenter-provider-aws#1795", asks: "a claim that is missing stops its own pod alone", replicas: 3, more: "---\n" + reportPod(`{nvidia.com/gpu.shared: "1"}`) + "  volumes: [{name: v, persistentVolumeClaim: {claimName: gone}}]\n", want: []string{"1 × g4dn.xlarge", "3   0.526", "VolumesNotReady", "default/gone"}},
	} {
		t.Run(r.from, func(t *testing.T) {
			t.Parallel()
			path := t.TempDir() + "/in.yaml"
			if err := os.WriteFile(path, []byte(r.manifests()), 0o600); err != nil {
				t.Fatal(err)
			}
			out := runIt(t, []string{"plan", "-f", path}, "")
			rest := out
			for _, part := range r.want {
				var found bool
				if _, rest, found = strings.Cut(rest, part); !found {
					t.Fatalf("%s: %q is missing in\n%s", r.asks, part, out)
				}
			}
		})
	}
}

const (
	reportClaim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, resources: {requests: {storage: 10Gi}}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gp3}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
`
	reportVolume = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
spec: {accessModes: [ReadWriteMany], storageClassName: efs-pv, volumeName: efs-pv, resources: {requests: {storage: 5Gi}}}
status: {phase: Bound}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: efs-pv}
spec: {accessModes: [ReadWriteMany], storageClassName: efs-pv, capacity: {storage: 5Gi}, nfs: {server: fs, path: /}, claimRef: {namespace: default, name: models}}
status: {phase: Bound}
`
	reportDaemonSet = `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: exporter}
spec:
  selector: {matchLabels: {app: exporter}}
  template:
    metadata: {labels: {app: exporter}}
    spec:
      tolerations: [{operator: Exists}]
      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu.shared: "1"}}}]
`
	reportInit = `apiVersion: v1
kind: Pod
metadata: {name: infer}
spec:
  ` + reportTolerations + `
  initContainers:
  - {name: a, image: x, resources: {limits: {nvidia.com/gpu.shared: "4"}}}
  - {name: b, image: x, resources: {limits: {nvidia.com/gpu.shared: "4"}}}
  - {name: c, image: x, resources: {limits: {nvidia.com/gpu.shared: "4"}}}
  containers:
  - {name: main, image: x, resources: {limits: {nvidia.com/gpu.shared: "2"}}}
`
)

func reportPod(limits string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: infer}\nspec:\n  " + reportTolerations + "\n  containers: [{name: main, image: x, resources: {limits: " + limits + "}}]\n"
}

func reportJob(metadata, spec string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata: {" + metadata + "}\nspec:\n  " + spec + "\n  template:\n    spec:\n      restartPolicy: Never\n      " + reportTolerations + "\n      containers: [{name: main, image: x, resources: {limits: {nvidia.com/gpu.shared: \"1\"}}}]\n"
}
