package gather

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// objectBytes is about what the API server accepts of an object.
const objectBytes = 1 << 20

// filled returns n texts that take about the given number of bytes together, and that differ between objects.
func filled(object, n, bytes int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("k%d-%d-", object, i)
		all[i] += strings.Repeat("x", max(0, bytes/n-len(all[i])))
	}
	return all
}

func mapOf(keys []string, value string) map[string]string {
	m := map[string]string{}
	for _, key := range keys {
		m[key] = value
	}
	return m
}

// oversized makes objects that are as large as the API server allows in one field.
var oversized = map[string]func(i int) client.Object{
	"annotations with Karve's prefix": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.Annotations = mapOf(filled(i, 1000, 1<<10), strings.Repeat("v", 240))
		for j := range 1000 {
			p.Annotations[fmt.Sprintf("karve.sh/%d", j)] = strings.Repeat("v", 240)
			p.Annotations[fmt.Sprintf("karpenter.sh/%d", j)] = strings.Repeat("v", 240)
		}
		return &p
	},
	"the value of an annotation": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.Annotations = map[string]string{v1alpha1.GPUMemoryAnnotation: filled(i, 1, 256<<10)[0]}
		return &p
	},
	"labels": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.Labels = mapOf(filled(i, 10_000, objectBytes), "v")
		return &p
	},
	"node selector": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.Spec.NodeSelector = mapOf(filled(i, 10_000, objectBytes), "v")
		return &p
	},
	"node affinity": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpIn, Values: filled(i, 10_000, objectBytes)}}},
		}}}}
		return &p
	},
	"anti-affinity": func(i int) client.Object {
		p := snapshottest.Pod("p")
		var terms []corev1.PodAffinityTerm
		for _, key := range filled(i, 5_000, objectBytes) {
			terms = append(terms, corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: &metav1.LabelSelector{}})
		}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}}
		return &p
	},
	"tolerations": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 20_000, objectBytes) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key})
		}
		return &p
	},
	"spread": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 5_000, objectBytes) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{TopologyKey: key})
		}
		return &p
	},
	"containers": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for j := range 5_000 {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint(j), Resources: corev1.ResourceRequirements{Requests: snapshottest.Amounts("cpu", fmt.Sprintf("%dm", i+j))}})
		}
		return &p
	},
	"resources": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 10_000, objectBytes) {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(key)] = quantity.MustParse("1")
		}
		return &p
	},
	"slots": func(i int) client.Object {
		p := snapshottest.Pod("p", snapshottest.Asking("cpu", "100m"))
		for size := range 20_000 {
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceName(fmt.Sprintf("nvidia.com/gpu-%dmb", i*20_000+size+1))] = quantity.MustParse("1")
		}
		return &p
	},
	"owners": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 1_000, objectBytes) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Kind: key, Name: key, UID: types.UID(key)})
		}
		return &p
	},
	"an owner": func(i int) client.Object {
		p := snapshottest.Pod("p")
		p.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: filled(i, 1, objectBytes)[0]}}
		return &p
	},
	"volumes": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 5_000, objectBytes) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: key[:min(len(key), 63)], VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: key}}})
		}
		return &p
	},
	"claims of a pod": func(i int) client.Object {
		p := snapshottest.Pod("p")
		for _, key := range filled(i, 10_000, objectBytes) {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: key, ResourceClaimName: &key})
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: key, ResourceClaimName: &key})
		}
		return &p
	},
	"container statuses": func(int) client.Object {
		p := snapshottest.Pod("p")
		p.Status.Phase = corev1.PodSucceeded
		for j := range 5_000 {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: fmt.Sprint(j), State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}})
		}
		return &p
	},
	"selectors of a claim": func(i int) client.Object {
		c := &resourcev1.ResourceClaim{}
		for range 4 {
			r := resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{}}
			for _, e := range filled(i, 32, objectBytes/4) {
				r.Exactly.Selectors = append(r.Exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
			}
			c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
		}
		return c
	},
	"configs and reservations of a claim": func(i int) client.Object {
		c := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Labels: mapOf(filled(i, 1000, objectBytes), "v")}}
		for j, e := range filled(i, 32, objectBytes) {
			driver := []string{nodecontract.DRADriver, nodecontract.NVIDIADRADriver, "example.com"}[j%3]
			c.Spec.Spec.Devices.Config = append(c.Spec.Spec.Devices.Config, resourcev1.DeviceClaimConfiguration{DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driver, Parameters: kruntime.RawExtension{Raw: []byte(e)}},
			}})
		}
		return c
	},
	"a PersistentVolumeClaim": func(i int) client.Object {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Labels: mapOf(filled(i, 1000, objectBytes), "v"), Annotations: mapOf(filled(i, 1000, objectBytes), "v")},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: filled(i, 1, objectBytes)[0]},
		}
	},
	"a Namespace": func(i int) client.Object {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: mapOf(filled(i, 1000, objectBytes), "v"), Annotations: mapOf(filled(i, 1000, 256<<10), "v")}}
	},
	"a Deployment": func(i int) client.Object {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Labels: mapOf(filled(i, 1000, objectBytes), "v"), Annotations: map[string]string{"karve.sh/x": filled(i, 1, 256<<10)[0]}}}
		d.Spec.Template.Labels = mapOf(filled(i, 1000, 256<<10), "v")
		d.Spec.Template.Spec.NodeSelector = mapOf(filled(i, 1000, 256<<10), "v")
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: mapOf(filled(i, 1000, 256<<10), "v")}
		return d
	},
	"a DaemonSet": func(i int) client.Object {
		d := &appsv1.DaemonSet{}
		d.Spec.Template.Spec.NodeSelector = mapOf(filled(i, 1000, objectBytes), "v")
		return d
	},
}

// TestMemoryOfObjectsDoesNotDependOnTheirSize is not parallel, because it measures the heap.
func TestMemoryOfObjectsDoesNotDependOnTheirSize(t *testing.T) {
	const objects, made, most = 1000, 40, 24 << 20
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, object := range oversized {
		t.Run(name, func(t *testing.T) {
			trim, before := Trim(), heap()
			var kept []any
			for i := range made {
				o, err := trim(object(i))
				if err != nil {
					t.Fatal(err)
				}
				kept = append(kept, o)
			}
			if took := (heap() - before) * objects / made; took > most {
				t.Errorf("%d objects take %d MiB", objects, took>>20)
			}
			runtime.KeepAlive(kept)
			runtime.KeepAlive(trim)
		})
	}
}

func TestPodsThatAreTooLargeWaitWithAReason(t *testing.T) {
	t.Parallel()
	for name, object := range oversized {
		pod, ok := object(0).(*corev1.Pod)
		if !ok || pod.Status.Phase == corev1.PodSucceeded || strings.HasPrefix(name, "a") && name != "anti-affinity" || name == "the value of an annotation" || name == "owners" {
			continue // What is left out of these pods has no effect, or is invalid.
		}
		maps.Copy(pod.Spec.Containers[0].Resources.Requests, snapshottest.Amounts(v1alpha1.ResourceGPUShared, "1", "cpu", "100m"))
		c := snapshottest.Shared()
		c.Pods = copies(t, Trim(), []corev1.Pod{*pod})
		if why := facts.TooLarge(&c.Pods[0]); why == "" || facts.GPURequestOf(&c.Pods[0]).Replicas != 1 {
			t.Errorf("%s: the pod is kept as %+v", name, c.Pods[0])
		}
		v := snapshot.Build(c)
		if len(v.Classes) != 1 || v.Classes[0].Blocked == nil || !strings.Contains(v.Classes[0].Blocked.Message, "which Karve does not read") {
			t.Errorf("%s: the pod is planned for as %+v", name, v.Classes)
		}
	}
}

func TestLargeTemplatesKeepTheGPUOfTheirLimits(t *testing.T) {
	t.Parallel()
	spec := corev1.PodSpec{
		NodeSelector: mapOf(filled(0, 1000, objectBytes), "v"),
		Containers:   []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: snapshottest.Amounts(v1alpha1.ResourceGPU, "1", "cpu", "2")}}},
	}
	template := copies(t, Trim(), []corev1.PodTemplate{{Template: corev1.PodTemplateSpec{Spec: spec}}})[0].Template
	deployment := copies(t, Trim(), []appsv1.Deployment{{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: spec}}}})[0].Spec.Template
	for name, template := range map[string]*corev1.PodTemplateSpec{"PodTemplate": &template, "Deployment": &deployment} {
		pod := facts.PodOfTemplate("default", "p", template)
		requests := facts.PodRequests(pod)
		if facts.TooLarge(pod) == "" || facts.GPURequestOf(pod).Resource != v1alpha1.ResourceGPU || facts.GPURequestOf(pod).Replicas != 1 || requests.Cpu().Value() != 2 {
			t.Errorf("%s: a pod of it is %+v", name, pod)
		}
	}
}

func TestPodsAndTemplatesAreBoundedAlikeInAndOutsideTheCaches(t *testing.T) {
	t.Parallel()
	amounts := snapshottest.Amounts(v1alpha1.ResourceGPU, "1", "cpu", "2")
	for name, edit := range map[string]func(spec *corev1.PodSpec){
		"requests and limits": func(spec *corev1.PodSpec) {
			spec.Containers = append(spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: amounts, Limits: amounts}})
		},
		"only limits": func(spec *corev1.PodSpec) {
			spec.Containers = append(spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Limits: amounts}})
		},
		"topology spread": func(spec *corev1.PodSpec) {
			spec.TopologySpreadConstraints = append(spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{TopologyKey: corev1.LabelHostname})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: amounts}}}}}
			whole, cut := 0, 0
			for range 200 {
				edit(&template.Spec)
				pod, ds := corev1.Pod{Spec: template.Spec}, appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: template}}
				kept := copies(t, Trim(), []corev1.PodTemplate{{Template: template}})[0].Template
				for i, of := range [][2]*corev1.Pod{
					{facts.Bounded(&pod), &copies(t, Trim(), []corev1.Pod{pod})[0]},
					{facts.PodOfTemplate("default", "p", &template), facts.PodOfTemplate("default", "p", &kept)},
					{records.DaemonPod(&ds), records.DaemonPod(&copies(t, Trim(), []appsv1.DaemonSet{ds})[0])},
				} {
					if facts.Content(of[0]) != facts.Content(of[1]) {
						t.Fatalf("%d: the pod is %+v, and in a cache %+v", i, of[0], of[1])
					}
					if facts.TooLarge(of[1]) == "" {
						whole++
					} else {
						cut++
					}
				}
			}
			if whole == 0 || cut == 0 {
				t.Errorf("%d are whole and %d are cut", whole, cut)
			}
		})
	}
}

func TestContainersOfPodsWithoutGPUsAreMergedWithTheSameRequests(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := snapshottest.Pod("p", snapshottest.Asking("cpu", "100m"), snapshottest.HostPort(80))
	for i := range 100 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Resources: corev1.ResourceRequirements{Requests: snapshottest.Amounts("cpu", fmt.Sprintf("%dm", i), "memory", "1Mi")}})
	}
	pod.Spec.InitContainers = []corev1.Container{{RestartPolicy: &always, Resources: corev1.ResourceRequirements{Requests: snapshottest.Amounts("cpu", "3")}}}
	pod.Spec.Overhead = snapshottest.Amounts("memory", "5Mi")
	got := copies(t, Trim(), []corev1.Pod{pod})[0]
	want, has := facts.PodRequests(&pod), facts.PodRequests(&got)
	if len(got.Spec.Containers) != 1 || facts.TooLarge(&got) != "" || len(got.Spec.Containers[0].Ports) != 1 {
		t.Fatalf("the pod has %d containers, and is too large because it %q", len(got.Spec.Containers), facts.TooLarge(&got))
	}
	for name, q := range want {
		if other := has[name]; other.Cmp(q) != 0 {
			t.Errorf("it requests %s of %s, and %s before", other.String(), name, q.String())
		}
	}
}

func TestLargeAntiAffinityOfAPodKeepsAtLeastAsManyPodsAway(t *testing.T) {
	t.Parallel()
	pod, ok := oversized["anti-affinity"](0).(*corev1.Pod)
	if !ok {
		t.Fatal("no pod")
	}
	pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = corev1.LabelHostname
	got := copies(t, Trim(), []corev1.Pod{*pod})[0]
	terms := got.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if len(terms) == 0 || terms[0].TopologyKey != corev1.LabelHostname || terms[0].NamespaceSelector == nil || len(terms[0].LabelSelector.MatchLabels) > 0 {
		t.Errorf("the pod keeps away %+v", terms)
	}
}

// notOnPods are the annotations of Karve that decisions read of other objects, or only the agent or users read.
var notOnPods = []string{
	"ResourceAnnotation", "GPUsAnnotation", "ReplicasPerGPUAnnotation", "UnusedSinceAnnotation", "GPUResetAnnotation", "GPUCordonAnnotation", "HoldersAnnotation", "BackendAnnotation",
	"MIGAnnotation", "MPSAnnotation", "SlotsAnnotation", "SlotsInUseAnnotation", "ReplicasRaisedAnnotation", "SlotsNextAnnotation", "SlotsChangingSinceAnnotation", "PriceAnnotation", "ListPriceAnnotation",
	"PlannedPodsAnnotation", "PlanAnnotation", "PlannedLaunchesAnnotation", "IdleSinceAnnotation", "DisruptingSinceAnnotation", "ReplacingAnnotation", "ReplacingSinceAnnotation",
	"ReplacementFailuresAnnotation", "ReplaceAfterAnnotation", "ReplacesAnnotation", "ReplicasShortSinceAnnotation", "ReplicasReadySinceAnnotation", "RepairsAnnotation",
	"ImageRolloutAnnotation", "FormerSelectorTermsAnnotation",
}

// TestEveryAnnotationOfKarveIsKeptOrNotReadOfPods makes who adds an annotation decide whether decisions read it of pods.
func TestEveryAnnotationOfKarveIsKeptOrNotReadOfPods(t *testing.T) {
	t.Parallel()
	onPods := map[string]string{
		"GPUMemoryAnnotation": v1alpha1.GPUMemoryAnnotation, "GPUThreadsAnnotation": nodecontract.GPUThreadsAnnotation, "EvictWhenUnusedAnnotation": v1alpha1.EvictWhenUnusedAnnotation,
		"ThroughputAnnotation": v1alpha1.ThroughputAnnotation, "FollowsLoadAnnotation": v1alpha1.FollowsLoadAnnotation,
		"GroupAnnotation": v1alpha1.GroupAnnotation, "GroupMinMembersAnnotation": v1alpha1.GroupMinMembersAnnotation,
	}
	for _, name := range annotationsIn(t, "../nodecontract", "../apis/v1alpha1") {
		key, on := onPods[name]
		if on == slices.Contains(notOnPods, name) {
			t.Errorf("say for %s in podAnnotations or notOnPods whether decisions read it of pods", name)
		}
		if on && podAnnotations[key] == "" {
			t.Errorf("pods lose %s", name)
		}
	}
}

// annotationsIn returns the names of the constants for annotations in packages.
func annotationsIn(t *testing.T, dirs ...string) []string {
	t.Helper()
	var names []string
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", dir, err)
		}
		for _, path := range files {
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.ValueSpec); ok {
					for _, id := range spec.Names {
						if strings.HasSuffix(id.Name, "Annotation") {
							names = append(names, id.Name)
						}
					}
				}
				return true
			})
		}
	}
	return names
}

func TestBudgetBeyondBoundsKeepsThePodsOfItsNamespaceAlone(t *testing.T) {
	t.Parallel()
	huge, invalid := map[string]string{}, []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}
	for i := range 100 {
		huge[fmt.Sprintf("key-%d", i)] = strings.Repeat("v", 60)
	}
	for name, c := range map[string]struct {
		selector *metav1.LabelSelector
		selects  bool // the pod with another label
		allowed  int32
	}{
		"within":  {&metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, false, 2},
		"none":    {nil, false, 2},
		"huge":    {&metav1.LabelSelector{MatchLabels: huge}, true, 0},
		"invalid": {&metav1.LabelSelector{MatchExpressions: invalid}, true, 0},
	} {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "budget", Annotations: mapOf(filled(0, 10, 1000), "v")},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: c.selector}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 2},
		}
		if _, err := Trim()(budget); err != nil {
			t.Fatal(err)
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || selector.Matches(labels.Set{"app": "other"}) != c.selects || budget.Status.DisruptionsAllowed != c.allowed || budget.Annotations != nil {
			t.Errorf("%s: %+v, %v", name, budget, err)
		}
	}
}
