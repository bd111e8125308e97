package hostile_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/provreq"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
	"karve.sh/karve/test/harness/hostile"
)

var podGroupKinds = []schema.GroupVersionKind{
	facts.KubernetesGroups.PodGroupKind().WithVersion("v1beta1"), facts.PluginGroups.PodGroupKind().WithVersion("v1alpha1"),
	facts.VolcanoGroups.PodGroupKind().WithVersion("v1beta1"), facts.KAIGroups.PodGroupKind().WithVersion("v2alpha2"),
}

// crowd is what a tenant creates.
type crowd struct {
	objects []client.Object
	// says has a part of the reason for each object that is named, or "" if it must have a place.
	says map[string]string
	// others are what a round with these is compared with; nil for the same pods in no group.
	others *crowd
}

// like compares a round with one for n pods in no group.
func (c *crowd) like(n int, edits ...func(*corev1.Pod)) {
	c.others = &crowd{}
	c.others.pods("other", n, edits...)
}

func (c *crowd) add(objects ...client.Object) { c.objects = append(c.objects, objects...) }

// podGroup adds a PodGroup with a spec.
func (c *crowd) podGroup(kind int, name string, spec map[string]any) {
	c.loose(podGroupKinds[kind], name, spec)
}

func (c *crowd) loose(kind schema.GroupVersionKind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(hostile.Namespace)
	u.SetName(name)
	u.SetUID(types.UID(kind.String() + name))
	u.SetCreationTimestamp(metav1.NewTime(snapshottest.Now.Add(-time.Minute)))
	c.add(u)
	return u
}

// pods adds n pods of the tenant that the sane pool admits.
func (c *crowd) pods(prefix string, n int, edits ...func(*corev1.Pod)) {
	tolerant := snapshottest.Tolerating(v1alpha1.ResourceGPUShared, "sane")
	all := snapshottest.Pods(prefix, n, append([]func(*corev1.Pod){tolerant, func(p *corev1.Pod) { p.Namespace = hostile.Namespace }}, edits...)...)
	for i := range all {
		c.add(&all[i])
	}
}

// request adds a ProvisioningRequest for so many pods of a PodTemplate.
func (c *crowd) request(name, template string, count int64, parameters map[string]any) {
	c.loose(provreq.Kind, name, map[string]any{
		"provisioningClassName": provreq.Atomic, "parameters": parameters,
		"podSets": []any{map[string]any{"count": count, "podTemplateRef": map[string]any{"name": template}}},
	})
}

// template adds a PodTemplate.
func (c *crowd) template(name string, edits ...func(*corev1.Pod)) {
	pod := snapshottest.Pod("", append([]func(*corev1.Pod){snapshottest.Tolerating(v1alpha1.ResourceGPUShared, "sane")}, edits...)...)
	c.add(&corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: hostile.Namespace, Name: name}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}, Spec: pod.Spec}})
}

func inGroup(kind int, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		switch kind {
		case 0:
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
		case 1:
			metav1.SetMetaDataLabel(&p.ObjectMeta, facts.PluginGroupLabel, name)
		case 2:
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, facts.VolcanoGroupAnnotation, name)
		default:
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, facts.KAIGroupAnnotation, name)
		}
	}
}

func inOwnGroup(name, minimum string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.GroupAnnotation: name, v1alpha1.GroupMinMembersAnnotation: minimum}
	}
}

func gang(minimum any) map[string]any {
	return map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": minimum}}}
}

// crowds are groups and requests with absurd values, and very many of them.
func crowds() map[string]*crowd {
	all := map[string]*crowd{}
	add := func(name string, fill func(*crowd), says ...string) {
		c := &crowd{says: map[string]string{}}
		fill(c)
		for i := 0; i < len(says); i += 2 {
			c.says[says[i]] = says[i+1]
		}
		all[name] = c
	}
	pod := func(name string) string { return hostile.Namespace + "/" + name }
	request := func(name string) string { return "ProvisioningRequest " + hostile.Namespace + "/" + name }
	for name, minimum := range map[string]any{"0": int64(0), "below 0": int64(-5), "a text": "many", "a number like 1e300": 1e300, "a list": []any{int64(3)}} {
		add("a minimum that is "+name, func(c *crowd) {
			c.podGroup(0, "train", gang(minimum))
			c.podGroup(2, "train", map[string]any{"minMember": minimum, "minTaskMember": map[string]any{"worker": minimum}})
			c.pods("a", 3, inGroup(0, "train"))
			c.pods("b", 3, inGroup(2, "train"))
		}, pod("a-000"), "", pod("b-002"), "")
	}
	add("a minimum of 10^9", func(c *crowd) {
		c.podGroup(1, "train", map[string]any{"minMember": int64(1e9)})
		c.pods("a", 8, inGroup(1, "train"))
		c.pods("b", 8, inOwnGroup("other", "1000000000"))
	}, pod("a-000"), "needs 1000000000 pods at once, 8 exist", pod("b-007"), "needs 1000000000 pods at once, 8 exist")
	add("a minimum of 10^18", func(c *crowd) {
		c.podGroup(3, "train", map[string]any{"minMember": int64(1e18)})
		c.pods("a", 8, inGroup(3, "train"))
	}, pod("a-000"), "needs 2147483647 pods at once, 8 exist")
	add("5,000 pods", func(c *crowd) {
		c.podGroup(2, "train", map[string]any{"minMember": int64(5000)})
		c.pods("a", 5000, inGroup(2, "train"))
	}, pod("a-000"), "", pod("a-4999"), "")
	add("5,000 pods that all differ", func(c *crowd) {
		c.podGroup(2, "train", map[string]any{"minMember": int64(5000)})
		i := 0
		c.like(5000) // If they were planned for, it would take much longer.
		c.pods("a", 5000, inGroup(2, "train"), func(p *corev1.Pod) {
			i++
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = snapshottest.Amounts("cpu", fmt.Sprintf("%dm", i))[corev1.ResourceCPU]
		})
	}, pod("a-000"), "has more different pods and rules")
	add("5,000 pods of which one fits nowhere", func(c *crowd) {
		c.podGroup(2, "train", map[string]any{"minMember": int64(5001)})
		c.pods("a", 5000, inGroup(2, "train"))
		c.pods("b", 1, inGroup(2, "train"), snapshottest.Asking("cpu", "1000", v1alpha1.ResourceGPUShared, "1"))
	}, pod("a-000"), "needs a place for 5001 pods at once", pod("b-000"), "needs a place for 5001 pods at once")
	add("two PodGroups of one name", func(c *crowd) {
		c.podGroup(1, "train", map[string]any{"minMember": int64(9)})
		c.podGroup(2, "train", map[string]any{"minMember": int64(2)})
		c.pods("a", 3, inGroup(1, "train"))
		c.pods("b", 3, inGroup(2, "train"))
	}, pod("a-000"), "PodGroup "+hostile.Namespace+"/train (scheduling.x-k8s.io) needs 9 pods at once, 3 exist", pod("b-000"), "")
	add("pods that name four groups", func(c *crowd) {
		c.podGroup(0, "first", gang(int64(50)))
		c.pods("a", 3, inOwnGroup("fifth", "1"), inGroup(3, "fourth"), inGroup(2, "third"), inGroup(1, "second"), inGroup(0, "first"))
	}, pod("a-000"), "PodGroup "+hostile.Namespace+"/first needs 50 pods at once, 3 exist")
	add("pods for several pools", func(c *crowd) {
		c.podGroup(0, "train", gang(int64(6)))
		c.pods("a", 3, inGroup(0, "train"))
		c.pods("b", 2, inGroup(0, "train"), snapshottest.Tolerating(v1alpha1.ResourceGPUShared, "dra"), snapshottest.Selecting("karpenter.sh/nodepool", "dra"))
		c.pods("c", 1, inGroup(0, "train"), snapshottest.Selecting("karpenter.sh/nodepool", "none"))
	}, pod("a-000"), "needs a place for 6 pods at once", pod("c-000"), "no NodePool with a GPUNodeClass serves it")
	add("pods in another namespace", func(c *crowd) {
		c.podGroup(0, "train", gang(int64(4)))
		c.pods("a", 2, inGroup(0, "train"))
		c.pods("b", 2, inGroup(0, "train"), func(p *corev1.Pod) { p.Namespace = "default" })
	}, pod("a-000"), "needs 4 pods at once, 2 exist", "default/b-000", "PodGroup default/train of scheduling.k8s.io does not exist")
	add("pods that state different minimums", func(c *crowd) {
		for i, minimum := range []string{"1", "2147483647", "2147483648", "-1", "many", strings.Repeat("9", 1000)} {
			c.pods(fmt.Sprint("a", i), 1, inOwnGroup("train", minimum))
		}
	}, pod("a0-000"), "needs 2147483647 pods at once, 2 exist", pod("a2-000"), "", pod("a5-000"), "")
	add("a name of 100,000 bytes", func(c *crowd) {
		c.pods("a", 20, inOwnGroup(strings.Repeat("a", 100_000), "2"))
	}, pod("a-000"), "")
	add("a topology that is no label", func(c *crowd) {
		c.podGroup(3, "train", map[string]any{"minMember": int64(2), "topologyConstraint": map[string]any{"requiredTopologyLevel": strings.Repeat("z/", 50_000)}})
		c.pods("a", 2, inGroup(3, "train"))
	}, pod("a-000"), "")
	add("3,000 groups", func(c *crowd) {
		for i := range 3000 {
			name := fmt.Sprintf("g%04d", i)
			c.podGroup(2, name, map[string]any{"minMember": int64(3)})
			c.pods(name, 2, inGroup(2, name))
		}
	}, pod("g0000-000"), "needs 3 pods at once, 2 exist")
	add("1,000 groups that fit nowhere", func(c *crowd) {
		i := 0
		c.like(2000, func(p *corev1.Pod) {
			i++
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = snapshottest.Amounts("cpu", fmt.Sprint(1000+i/2))[corev1.ResourceCPU]
		})
		for i := range 1000 {
			name := fmt.Sprintf("g%04d", i)
			c.podGroup(2, name, map[string]any{"minMember": int64(2)})
			c.pods(name, 2, inGroup(2, name), snapshottest.Asking("cpu", "1000", v1alpha1.ResourceGPUShared, "1"))
		}
	}, pod("g0000-000"), "needs a place for 2 pods at once")
	add("1,000 PodGroups of 100 kB", func(c *crowd) {
		for i := range 1000 {
			c.podGroup(2, fmt.Sprint("g", i), map[string]any{"minMember": int64(3), "note": strings.Repeat(fmt.Sprintf("%08d", i), 100_000/8)})
		}
	})

	add("requests for 10,000 and more pods", func(c *crowd) {
		c.like(10_000)
		c.template("gpu")
		c.request("most", "gpu", 10_000, nil)
		c.request("more", "gpu", 10_001, nil)
		c.request("absurd", "gpu", 2147483647, nil)
		c.request("below", "gpu", -3, nil)
		c.request("nothing", "gpu", 0, nil)
	}, request("most"), "Provisioned=False", request("more"), "10001 pods are more than the 10000 for which Karve plans", request("absurd"), "2147483647 pods are more than")
	add("parameters that nobody knows", func(c *crowd) {
		c.template("gpu")
		c.request("a", "gpu", 1, map[string]any{"ValidUntilSeconds": "-1", "noRetry": "perhaps", "shade": strings.Repeat("green", 10_000)})
		c.request("b", "gpu", 1, map[string]any{"ValidUntilSeconds": "99999999999999999999"})
	}, request("a"), "Provisioned=False NodesAreStarting", request("b"), "Provisioned=False NodesAreStarting")
	add("a PodTemplate that does not exist", func(c *crowd) {
		c.request("a", "none", 3, nil)
	}, request("a"), "there is no PodTemplate none in namespace "+hostile.Namespace)
	add("a PodTemplate without a GPU", func(c *crowd) {
		c.template("cpu", snapshottest.Asking("cpu", "1"))
		c.request("a", "cpu", 3, nil)
	}, request("a"), "PodTemplate cpu requests no GPU that Karve shares")
	add("a huge PodTemplate", func(c *crowd) {
		c.like(5000)
		c.template("gpu", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"example.com/note": strings.Repeat("x", 200<<10)}
			p.Spec.Affinity = affinity(100, 300, 100, 1)
			for i := range 4000 {
				p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("E", i), Value: strings.Repeat("v", 100)})
			}
		})
		c.request("a", "gpu", 5000, nil)
	}, request("a"), "")
	add("300 requests for 10,000 pods", func(c *crowd) {
		c.like(10_000)
		c.template("gpu")
		for i := range 300 {
			c.request(fmt.Sprintf("r%03d", i), "gpu", 10_000, nil)
		}
	}, request("r299"), "the requests before it have so many pods")
	add("300 requests that fit nowhere", func(c *crowd) {
		c.like(300*20, snapshottest.Asking("cpu", "1000", v1alpha1.ResourceGPUShared, "1"))
		c.template("gpu", snapshottest.Asking("cpu", "1000", v1alpha1.ResourceGPUShared, "1"))
		for i := range 300 {
			c.request(fmt.Sprintf("r%03d", i), "gpu", 20, nil)
		}
	}, request("r000"), "Failed=True", request("r299"), "Failed=True")
	return all
}

// alone returns the pods as if they were of no group, or others of the same number and size.
func (c *crowd) alone() []client.Object {
	if c.others != nil {
		return c.others.objects
	}
	var all []client.Object
	for _, o := range c.objects {
		if pod, ok := o.(*corev1.Pod); ok {
			single := pod.DeepCopy()
			single.Labels, single.Annotations, single.Spec.SchedulingGroup = nil, nil, nil
			all = append(all, single)
		}
	}
	return all
}

// TestAbsurdGroupsNeitherStopNorSlowOthers compares with a cluster without these, and large crowds with the same pods in no group. It does not run in parallel, because it measures CPU time and memory.
func TestAbsurdGroupsNeitherStopNorSlowOthers(t *testing.T) {
	before, idle, err := watch(t.Context(), nil, client.ObjectKey{}, heapAfterGC())
	if err != nil {
		t.Fatal(err)
	}
	endless := false
	for _, name := range slices.Sorted(maps.Keys(crowds())) {
		t.Run(name, func(t *testing.T) {
			if endless {
				t.Skip("an earlier crowd goes on in the background")
			}
			c := crowds()[name]
			was, large := idle, len(c.objects) > 200 || c.others != nil
			if large && testing.Short() {
				t.Skip("it takes seconds")
			}
			if large {
				var err error
				if _, was, err = watch(t.Context(), c.alone(), client.ObjectKey{}, heapAfterGC()); err != nil {
					t.Fatal(err)
				}
			}
			after, is, err := watch(t.Context(), c.objects, client.ObjectKey{}, heapAfterGC())
			if err != nil {
				endless = errors.Is(err, errEndless)
				t.Fatal(err)
			}
			t.Logf("a round takes %s, and %s for the same pods in no group", is, was)
			if is.round > 3*was.round+maxTime {
				t.Error("others wait too long")
			}
			if worse, _ := compare(before, after, c.objects); len(worse) > 0 {
				t.Errorf("others have worse places: %s", worse)
			}
			for of, says := range c.says {
				got, known := after[of]
				if told := strings.Contains(got.node, says); !known && says != "" || says == "" && got.kind == nowhere && !strings.HasPrefix(of, "Prov") || says != "" && !told {
					t.Errorf("%s: %.300s (known: %v), want %q", of, got.node, known, says)
				}
			}
		})
	}
}
