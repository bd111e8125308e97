package api

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/manifests"
	"karve.sh/karve/test/harness/cluster"
)

// TestManifestsAreAdmittedAsByTheAPIServer creates generated pods beside a RuntimeClass, LimitRanges, a PriorityClass and a ResourceQuota, and reads the same
// objects as manifests. Both must refuse the same pods and set the same fields in the others. KARVE_ADMISSIONS is the number of namespaces.
func TestManifestsAreAdmittedAsByTheAPIServer(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	api, err := kubernetes.NewForConfig(unlimited(server.RESTConfig()))
	if err != nil {
		t.Fatal(err)
	}
	count := 80
	if n, err := strconv.Atoi(os.Getenv("KARVE_ADMISSIONS")); err == nil {
		count = n
	}
	refused, changed := 0, 0
	for seed := range count {
		a := admission{rand.New(rand.NewPCG(7, uint64(seed))), fmt.Sprintf("admit-%d", seed)} //nolint:gosec // The same objects in every run.
		objects, pod := a.draw()
		manifest := a.create(t, api, objects) + encode(t, pod)
		made, err := api.CoreV1().Pods(a.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Fatalf("seed %d: %v", seed, err)
		}
		c, skipped, read := manifests.Read(t.Context(), []manifests.File{{Name: "in.yaml", Content: []byte(manifest)}})
		switch ours := read != nil || len(skipped.Refused) > 0; {
		case ours != (err != nil):
			t.Errorf("seed %d: the API server says %v, and the reader %v, %v, of\n%s", seed, err, read, skipped.Refused, manifest)
		case err != nil:
			refused++
		default:
			if diff := cmp.Diff(admitted(made), admitted(&c.Pods[0])); diff != "" {
				t.Errorf("seed %d (-API server +reader):\n%s\nof\n%s", seed, diff, manifest)
			}
			if cmp.Diff(admitted(pod), admitted(made)) != "" {
				changed++
			}
		}
	}
	t.Logf("%d namespaces: %d pods were refused, %d changed", count, refused, changed)
	if refused < count/4 || changed < count/5 {
		t.Errorf("the generator is too tame")
	}
}

func unlimited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS = -1
	return config
}

// admission draws the objects of a namespace.
type admission struct {
	*rand.Rand
	namespace string
}

func (a *admission) maybe() bool { return a.IntN(2) == 0 }

func (a *admission) amount(name corev1.ResourceName) resource.Quantity {
	switch name {
	case corev1.ResourceCPU:
		return resource.MustParse([]string{"100m", "250m", "1", "1500m", "2"}[a.IntN(5)])
	case corev1.ResourceMemory:
		return resource.MustParse([]string{"64Mi", "256Mi", "1Gi", "1G", "2Gi"}[a.IntN(5)])
	default:
		return *resource.NewQuantity(int64(1+a.IntN(3)), resource.DecimalSI)
	}
}

func (a *admission) amounts() corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if a.maybe() {
			list[name] = a.amount(name)
		}
	}
	return list
}

// sorted returns two lists of the same resources of which none of the first is more than in the second.
func (a *admission) sorted() (least, most corev1.ResourceList) {
	least, most = a.amounts(), corev1.ResourceList{}
	for name := range least {
		x, y := least[name], a.amount(name)
		if x.Cmp(y) > 0 {
			x, y = y, x
		}
		least[name], most[name] = x, y
	}
	return least, most
}

// draw returns the objects of the namespace, and a pod.
func (a *admission) draw() (objects []metav1.Object, pod *corev1.Pod) {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: a.namespace} }
	global := metav1.ObjectMeta{Name: a.namespace}
	class := &nodev1.RuntimeClass{ObjectMeta: global, Handler: "nvidia"}
	if a.maybe() {
		class.Overhead = &nodev1.Overhead{PodFixed: a.amounts()}
	}
	if a.maybe() {
		class.Scheduling = &nodev1.Scheduling{NodeSelector: map[string]string{"runtime": "nvidia"}, Tolerations: []corev1.Toleration{{Key: "runtime", Operator: corev1.TolerationOpExists}}}
	}
	priority := &schedulingv1.PriorityClass{ObjectMeta: global, Value: int32(a.IntN(100))}
	if a.maybe() {
		priority.PreemptionPolicy = new(corev1.PreemptNever)
	}
	objects = append(objects, class, priority)
	for i := range a.IntN(3) {
		// Two LimitRanges with defaults for containers apply in an order that the API server does not define.
		item := corev1.LimitRangeItem{Type: []corev1.LimitType{corev1.LimitTypeContainer, corev1.LimitTypePod}[i]}
		item.Min, item.Max = a.sorted()
		if item.Type == corev1.LimitTypeContainer && len(item.Min) == 0 {
			item.DefaultRequest, item.Default = a.sorted()
		}
		objects = append(objects, &corev1.LimitRange{ObjectMeta: meta(fmt.Sprint("limits-", i)), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{item}}})
	}
	if a.maybe() {
		hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1"), "count/configmaps": resource.MustParse("0")}
		for _, name := range []corev1.ResourceName{"requests.cpu", "limits.memory", "requests.nvidia.com/gpu.shared", "requests.memory"} {
			if a.IntN(4) == 0 {
				hard[name] = a.amount(corev1.ResourceName(strings.TrimPrefix(strings.TrimPrefix(string(name), "requests."), "limits.")))
			}
		}
		objects = append(objects, &corev1.ResourceQuota{ObjectMeta: meta("quota"), Spec: corev1.ResourceQuotaSpec{Hard: hard}})
	}
	return objects, a.pod("pod", class, priority)
}

func (a *admission) pod(name string, class *nodev1.RuntimeClass, priority *schedulingv1.PriorityClass) *corev1.Pod {
	container := func(name string) corev1.Container {
		c := corev1.Container{Name: name, Image: "x", Resources: corev1.ResourceRequirements{Requests: a.amounts(), Limits: corev1.ResourceList{}}}
		for resource, is := range c.Resources.Requests {
			if limit := a.amount(resource); a.maybe() && limit.Cmp(is) >= 0 {
				c.Resources.Limits[resource] = limit
			}
		}
		c.Resources.Limits["nvidia.com/gpu.shared"] = a.amount("nvidia.com/gpu.shared")
		return c
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: a.namespace}, Spec: corev1.PodSpec{Containers: []corev1.Container{container("main")}}}
	if a.maybe() {
		p.Spec.Containers = append(p.Spec.Containers, container("other"))
	}
	if a.IntN(3) == 0 {
		p.Spec.InitContainers = []corev1.Container{container("init")}
	}
	if a.maybe() {
		p.Spec.RuntimeClassName = &class.Name
		if a.IntN(4) == 0 {
			p.Spec.NodeSelector = map[string]string{"runtime": []string{"nvidia", "other"}[a.IntN(2)]}
		}
		if a.IntN(6) == 0 && class.Overhead != nil {
			p.Spec.Overhead = class.Overhead.PodFixed
		}
	} else if a.IntN(8) == 0 {
		p.Spec.Overhead = a.amounts()
	}
	if a.maybe() {
		p.Spec.PriorityClassName = priority.Name
	}
	return p
}

// create creates the objects, and returns them as manifests.
func (a *admission) create(t *testing.T, api kubernetes.Interface, objects []metav1.Object) string {
	t.Helper()
	ctx, options := t.Context(), metav1.CreateOptions{}
	if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: a.namespace}}, options); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CoreV1().ServiceAccounts(a.namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, options); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range objects {
		var err error
		switch o := o.(type) {
		case *nodev1.RuntimeClass:
			o.APIVersion, o.Kind = "node.k8s.io/v1", "RuntimeClass"
			text.WriteString(encode(t, o))
			_, err = api.NodeV1().RuntimeClasses().Create(ctx, o, options)
			t.Cleanup(func() { _ = api.NodeV1().RuntimeClasses().Delete(t.Context(), o.Name, metav1.DeleteOptions{}) })
		case *schedulingv1.PriorityClass:
			o.APIVersion, o.Kind = "scheduling.k8s.io/v1", "PriorityClass"
			text.WriteString(encode(t, o))
			_, err = api.SchedulingV1().PriorityClasses().Create(ctx, o, options)
		case *corev1.LimitRange:
			o.APIVersion, o.Kind = "v1", "LimitRange"
			text.WriteString(encode(t, o))
			_, err = api.CoreV1().LimitRanges(a.namespace).Create(ctx, o, options)
		case *corev1.ResourceQuota:
			o.APIVersion, o.Kind = "v1", "ResourceQuota"
			text.WriteString(encode(t, o))
			if _, err = api.CoreV1().ResourceQuotas(a.namespace).Create(ctx, o, options); err == nil {
				a.writeQuota(t, api)
			}
		}
		if err != nil {
			t.Fatalf("%s: %v", a.namespace, err)
		}
	}
	// The admission plugins see the objects a little later.
	a.await(t, api)
	return text.String()
}

// await waits until the quota counts, which forbids ConfigMaps, and then as long again for the LimitRanges.
func (a *admission) await(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	began := time.Now()
	for {
		_, err := api.CoreV1().ConfigMaps(a.namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch _, missing := api.CoreV1().ResourceQuotas(a.namespace).Get(t.Context(), "quota", metav1.GetOptions{}); {
		case apierrors.IsForbidden(err), apierrors.IsNotFound(missing):
			time.Sleep(max(200*time.Millisecond, time.Since(began)))
			return
		case err != nil:
			t.Fatal(err)
		case time.Since(began) > time.Minute:
			t.Fatal("the quota has no effect")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// writeQuota writes what the quota controller would write for a namespace without pods.
func (a *admission) writeQuota(t *testing.T, api kubernetes.Interface) {
	t.Helper()
	quota, err := api.CoreV1().ResourceQuotas(a.namespace).Get(t.Context(), "quota", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	for name := range quota.Spec.Hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	if _, err := api.CoreV1().ResourceQuotas(a.namespace).UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func encode(t *testing.T, o any) string {
	t.Helper()
	if pod, ok := o.(*corev1.Pod); ok {
		pod.APIVersion, pod.Kind = "v1", "Pod"
	}
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return "---\n" + string(text)
}

// admitted returns what admission sets of a pod's spec. The tolerations of unready nodes are not part of plans.
func admitted(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	list := func(key string, l corev1.ResourceList) {
		for name, q := range l {
			if !q.IsZero() {
				out[key+" "+string(name)] = strconv.FormatInt(q.MilliValue(), 10)
			}
		}
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			list(containers[i].Name+" requests", containers[i].Resources.Requests)
			list(containers[i].Name+" limits", containers[i].Resources.Limits)
		}
	}
	list("overhead", pod.Spec.Overhead)
	out["selector"] = fmt.Sprint(pod.Spec.NodeSelector)
	tolerations := slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
	out["tolerations"] = fmt.Sprint(tolerations)
	out["priority"], out["preemption"] = "0", string(corev1.PreemptLowerPriority)
	if pod.Spec.Priority != nil {
		out["priority"] = fmt.Sprint(*pod.Spec.Priority)
	}
	if pod.Spec.PreemptionPolicy != nil {
		out["preemption"] = string(*pod.Spec.PreemptionPolicy)
	}
	return out
}
