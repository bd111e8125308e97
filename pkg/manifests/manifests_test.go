package manifests_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const (
	class = `
apiVersion: karve.sh/v1alpha1
kind: GPUNodeClass
metadata: {name: shared}
spec:
  nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}
  sharing: {strategy: TimeSlicing, replicas: 10}
`
	pool = `
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: shared}
spec:
  template:
    spec:
      nodeClassRef: {group: karve.sh, kind: GPUNodeClass, name: shared}
      requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}]
      taints: [{key: nvidia.com/gpu.shared, effect: NoSchedule}]
`
	podSpec = `tolerations: [{operator: Exists}], containers: [{name: main, image: main, resources: {limits: {cpu: 1, nvidia.com/gpu.shared: 1}}}]`
)

// made returns a workload of a kind with these fields in its spec.
func made(apiVersion, kind, name, spec string) string {
	return fmt.Sprintf(`
apiVersion: %s
kind: %s
metadata: {name: %s}
spec: {%s, template: {metadata: {labels: {app: x}}, spec: {%s}}}
`, apiVersion, kind, name, spec, podSpec)
}

const selector = "selector: {matchLabels: {app: x}}"

func deployment(name, spec string) string {
	return made("apps/v1", "Deployment", name, spec+", "+selector)
}

// files returns the texts as files a.yaml, b.yaml and so on.
func files(texts ...string) []manifests.File {
	var all []manifests.File
	for i, text := range texts {
		all = append(all, manifests.File{Name: string(rune('a'+i)) + ".yaml", Content: []byte(text)})
	}
	return all
}

func read(t testing.TB, texts ...string) *facts.Cluster {
	t.Helper()
	c, _, err := manifests.Read(t.Context(), files(texts...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// waiting returns the names of the pods that need a machine.
func waiting(c *facts.Cluster) []string {
	var names []string
	for i := range c.Pods {
		if facts.Waits(&c.Pods[i]) {
			names = append(names, c.Pods[i].Namespace+"/"+c.Pods[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestWorkloadsExpandToPods(t *testing.T) {
	t.Parallel()
	gated := strings.Replace(podSpec, "tolerations:", "schedulingGates: [{name: g}], tolerations:", 1)
	existing := func(name, more string) string {
		return fmt.Sprintf("\napiVersion: v1\nkind: Pod\nmetadata: {name: %s%s\nspec: {%s}\n", name, more, podSpec)
	}
	ownedBy := func(kind, name string) string {
		return fmt.Sprintf(", ownerReferences: [{apiVersion: v1, kind: %s, name: %s, uid: u, controller: true}]}", kind, name)
	}
	for name, c := range map[string]struct {
		texts []string
		want  []string
	}{
		"a Deployment with one replica":                 {[]string{deployment("d", "paused: true")}, []string{"default/d-0"}},
		"a Deployment with three replicas":              {[]string{deployment("d", "replicas: 3")}, []string{"default/d-0", "default/d-1", "default/d-2"}},
		"a Deployment without replicas":                 {[]string{deployment("d", "replicas: 0")}, nil},
		"a ReplicaSet":                                  {[]string{made("apps/v1", "ReplicaSet", "r", "replicas: 2, "+selector)}, []string{"default/r-0", "default/r-1"}},
		"a StatefulSet":                                 {[]string{made("apps/v1", "StatefulSet", "s", "replicas: 2, serviceName: s, "+selector)}, []string{"default/s-0", "default/s-1"}},
		"a StatefulSet with a start ordinal":            {[]string{made("apps/v1", "StatefulSet", "s", "ordinals: {start: 7}, serviceName: s, "+selector)}, []string{"default/s-7"}},
		"a Job":                                         {[]string{made("batch/v1", "Job", "j", "backoffLimit: 1")}, []string{"default/j-0"}},
		"a Job with fewer completions than parallelism": {[]string{made("batch/v1", "Job", "j", "parallelism: 3, completions: 2")}, []string{"default/j-0", "default/j-1"}},
		"a Job with more completions than parallelism":  {[]string{made("batch/v1", "Job", "j", "parallelism: 2, completions: 9")}, []string{"default/j-0", "default/j-1"}},
		"a partly completed Job":                        {[]string{made("batch/v1", "Job", "j", "parallelism: 2, completions: 9") + "status: {succeeded: 8}\n"}, []string{"default/j-0"}},
		"a suspended Job":                               {[]string{made("batch/v1", "Job", "j", "suspend: true")}, nil},
		"a pod":                                         {[]string{existing("p", "}")}, []string{"default/p"}},
		"a pod in another namespace":                    {[]string{existing("p", ", namespace: other}")}, []string{"other/p"}},
		"a running pod":                                 {[]string{strings.Replace(existing("p", "}"), "spec: {", "spec: {nodeName: node, ", 1)}, nil},
		"a finished pod":                                {[]string{existing("p", "}") + "status: {phase: Failed}\n"}, nil},
		"a gated pod":                                   {[]string{strings.Replace(existing("p", "}"), podSpec, gated, 1)}, nil},
		"a gated template":                              {[]string{strings.Replace(deployment("d", "replicas: 2"), podSpec, gated, 1)}, nil},
		"a name conflict":                               {[]string{existing("d-0", "}"), deployment("d", "replicas: 1")}, []string{"default/d-0", "default/d-1"}},
		"a StatefulSet keeps its pod names":             {[]string{deployment("s", "replicas: 1"), made("apps/v1", "StatefulSet", "s", "serviceName: s, "+selector)}, []string{"default/s-0", "default/s-1"}},
		"a StatefulSet with an existing pod":            {[]string{existing("s-0", ownedBy("StatefulSet", "s")), made("apps/v1", "StatefulSet", "s", "replicas: 2, serviceName: s, "+selector)}, []string{"default/s-0", "default/s-1"}},
		"a Deployment with more pods than replicas":     {[]string{existing("d-1", ownedBy("Deployment", "d")), existing("d-2", ownedBy("Deployment", "d")), deployment("d", "replicas: 1")}, []string{"default/d-1", "default/d-2"}},
		"a Deployment with pods of its ReplicaSet":      {[]string{existing("d-h-1", ", labels: {pod-template-hash: h}"+ownedBy("ReplicaSet", "d-h")), deployment("d", "replicas: 2")}, []string{"default/d-0", "default/d-h-1"}},
		"pods of another Deployment":                    {[]string{existing("d-h-1", ", labels: {pod-template-hash: h}"+ownedBy("ReplicaSet", "e-h")), deployment("d", "replicas: 1")}, []string{"default/d-0", "default/d-h-1"}},
		"a finished pod does not count":                 {[]string{existing("x", ownedBy("Deployment", "d")) + "status: {phase: Succeeded}\n", deployment("d", "replicas: 1")}, []string{"default/d-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, waiting(read(t, c.texts...))); diff != "" {
				t.Errorf("waiting pods (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsHaveAPIServerDefaults(t *testing.T) {
	t.Parallel()
	pod := func(spec string) *corev1.Pod {
		c := read(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {"+spec+"}\n---\n"+
			"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 7\n---\n"+
			"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: usual}\nvalue: 3\nglobalDefault: true\n")
		return &c.Pods[0]
	}
	got := pod("containers: [{name: a, resources: {limits: {cpu: 2, memory: 1Gi}, requests: {cpu: 1}}}], initContainers: [{name: b, resources: {limits: {cpu: 3}}}]").Spec
	if r := got.Containers[0].Resources.Requests; r.Cpu().Value() != 1 || r.Memory().Value() != 1<<30 || got.InitContainers[0].Resources.Requests.Cpu().Value() != 3 {
		t.Errorf("limits do not stand for requests that are left out: %+v", got)
	}
	got = pod("resources: {limits: {cpu: 8, memory: 4Gi}}, containers: [{name: a, resources: {requests: {cpu: 2}}}, {name: b, resources: {requests: {cpu: 1}}}]").Spec
	if r := got.Resources.Requests; r.Cpu().Value() != 3 || r.Memory().Value() != 4<<30 {
		t.Errorf("the pod as a whole asks for %v, not for what its containers do, or its limit", r)
	}
	for spec, want := range map[string]int32{"priorityClassName: high, ": 7, "": 3, "priority: 5, ": 5} {
		if got := pod(spec + "containers: [{name: a}]").Spec.Priority; got == nil || *got != want {
			t.Errorf("%q has priority %v, want %d", spec, got, want)
		}
	}
	if got := pod("priorityClassName: other, containers: [{name: a}]").Spec.Priority; got != nil {
		t.Errorf("a class that is not there gives priority %d", *got)
	}
}

// claimsOf returns the PersistentVolumeClaims of the cluster with their class and phase.
func claimsOf(c *facts.Cluster) []string {
	var all []string
	for i := range c.PersistentVolumeClaims {
		claim := &c.PersistentVolumeClaims[i]
		class := "-"
		if claim.Spec.StorageClassName != nil {
			class = *claim.Spec.StorageClassName
		}
		all = append(all, fmt.Sprintf("%s/%s %s %s", claim.Namespace, claim.Name, class, claim.Status.Phase))
	}
	slices.Sort(all)
	return all
}

func TestVolumesAreClaimedAndBoundAsByControllers(t *testing.T) {
	t.Parallel()
	c := read(t, made("apps/v1", "StatefulSet", "s", "replicas: 2, serviceName: s, volumeClaimTemplates: [{metadata: {name: data}}], "+selector), `
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: a}]
  volumes:
  - {name: scratch, ephemeral: {volumeClaimTemplate: {spec: {storageClassName: fast}}}}
  - {name: own, persistentVolumeClaim: {claimName: own}}
---
apiVersion: v1
kind: PersistentVolumeClaimList
items:
- {metadata: {name: data-s-1}, spec: {volumeName: disk, storageClassName: ""}}
- {metadata: {name: own}, spec: {volumeName: missing}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: usual, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: it}
spec: {drivers: []}
`)
	want := []string{"default/data-s-0 usual ", "default/data-s-1  Bound", "default/own usual ", "default/p-scratch fast "}
	if diff := cmp.Diff(want, claimsOf(c)); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	for i := range c.Pods {
		if name := c.Pods[i].Name; strings.HasPrefix(name, "s-") {
			volumes := c.Pods[i].Spec.Volumes
			if len(volumes) != 1 || volumes[0].PersistentVolumeClaim == nil || volumes[0].PersistentVolumeClaim.ClaimName != "data-"+name {
				t.Errorf("%s has volumes %+v", name, volumes)
			}
		}
	}
	if len(c.CSINodes) != 1 || len(c.StorageClasses) != 1 {
		t.Errorf("%d CSINodes, %d StorageClasses", len(c.CSINodes), len(c.StorageClasses))
	}
}

func TestNamespacesOfPodsAreAdded(t *testing.T) {
	t.Parallel()
	c := read(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: one, labels: {team: a}}", deployment("d", "replicas: 2"))
	if len(c.Namespaces) != 2 || c.Namespaces[0].Labels["team"] != "a" || c.Namespaces[0].Labels["kubernetes.io/metadata.name"] != "one" ||
		c.Namespaces[1].Labels["kubernetes.io/metadata.name"] != "default" {
		t.Errorf("%+v", c.Namespaces)
	}
}

func TestOtherObjectsAreKept(t *testing.T) {
	t.Parallel()
	c, skipped, err := manifests.Read(t.Context(), files(class+"---\n"+pool+"---"+`
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: o}
spec: {requirements: [{key: a.example.com/b, operator: In, values: [c]}], capacity: {nvidia.com/gpu.shared: 10}}
---
apiVersion: karpenter.sh/v1
kind: NodeClaim
metadata: {name: c}
spec: {nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: gpu}, requirements: []}
---
apiVersion: v1
kind: NodeList
items: [{metadata: {name: one}}, {metadata: {name: two}}]
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata: {name: x}
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: other}
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: gpu}
---
apiVersion: v1
kind: ConfigMapList
items: []
`))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.GPUNodeClasses) != 1 || len(c.NodePools) != 1 || len(c.NodeOverlays) != 1 || len(c.NodeClaims) != 1 || len(c.Nodes) != 2 {
		t.Errorf("%d GPUNodeClasses, %d NodePools, %d NodeOverlays, %d NodeClaims, %d Nodes", len(c.GPUNodeClasses), len(c.NodePools), len(c.NodeOverlays), len(c.NodeClaims), len(c.Nodes))
	}
	if !c.NodeClasses[c.GPUNodeClasses[0].Spec.NodeClassRef].Ready {
		t.Error("the cloud's node class is not Ready")
	}
	want := []manifests.KindCount{{Kind: "Certificate.cert-manager.io", Count: 1}, {Kind: "ConfigMapList", Count: 1}}
	if diff := cmp.Diff(want, skipped.Kinds); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if len(skipped.Unnamed) != 1 {
		t.Errorf("node classes that nothing names: %v", skipped.Unnamed)
	}
}

// TestReadRoundTripsPods draws pods, writes them as YAML or JSON, one by one or in a list, and checks that reading them returns the same requests.
func TestReadRoundTripsPods(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var pods []corev1.Pod
		for i := range rapid.IntRange(1, 5).Draw(t, "pods") {
			pods = append(pods, snapshottest.Pod(fmt.Sprintf("p-%d", i), snapshottest.Asking(
				"cpu", fmt.Sprintf("%dm", rapid.IntRange(1, 5000).Draw(t, "cpu")), "memory", fmt.Sprintf("%dMi", rapid.IntRange(1, 5000).Draw(t, "memory")))))
			pods[i].APIVersion, pods[i].Kind = "v1", "Pod"
		}
		var text []byte
		var err error
		switch rapid.SampledFrom([]string{"documents", "list", "json"}).Draw(t, "as") {
		case "documents":
			for i := range pods {
				one, marshalErr := yaml.Marshal(pods[i])
				text, err = append(append(text, "---\n"...), one...), marshalErr
			}
		case "list":
			text, err = yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": pods})
		default:
			for i := range pods {
				one, marshalErr := yaml.Marshal(pods[i])
				if marshalErr != nil {
					t.Fatal(marshalErr)
				}
				one, err = yaml.YAMLToJSON(one)
				text = append(append(text, one...), '\n')
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := manifests.Read(t.Context(), []manifests.File{{Name: "f", Content: text}})
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		for i := range pods {
			want, got := pods[i].Spec.Containers[0].Resources.Requests, c.Pods[i].Spec.Containers[0].Resources.Requests
			if c.Pods[i].Name != pods[i].Name || !want.Cpu().Equal(*got.Cpu()) || !want.Memory().Equal(*got.Memory()) {
				t.Fatalf("pod %d asks for %v, want %v", i, got, want)
			}
		}
	})
}

// FuzzRead checks that no input makes Read panic, and that what Read accepts yields a snapshot that the planner accepts.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", "---\n---", class + "---" + pool + "---" + deployment("d", "replicas: 3"), "kind: List\napiVersion: v1\nitems: [null, 1, {}, {kind: List}]",
		"a: &a [*a]", "{\"apiVersion\": \"v1\", \"kind\": \"Pod\"}{}", "apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]", "apiVersion: a/b/c\nkind: Pod",
		made("batch/v1", "Job", "j", "parallelism: -3"), made("apps/v1", "StatefulSet", "s", "ordinals: {start: -1}, "+selector), "\xff", "kind: [", "kind: Pod\nkind: Pod",
		"apiVersion: v1\nkind: Node\nmetadata: {name: it}\nstatus: {allocatable: {cpu: 1e30}}",
		class + "---" + pool + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {" + podSpec + "}",
	} {
		f.Add([]byte(seed))
	}
	types := snapshottest.Types()
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := manifests.Read(t.Context(), []manifests.File{{Name: "f", Content: data}})
		if err != nil || len(c.Pods) > 1000 {
			return
		}
		c.UseInstanceTypes(types)
		if err := planner.Validate(snapshot.Build(c).Snapshot); err != nil {
			t.Fatalf("%v in\n%s", err, data)
		}
	})
}
