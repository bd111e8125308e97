package prometheus

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// kueue is what examples/integrations/kueue.yaml has. The types have the fields of Kueue's v1beta2 that it uses, and no others.
type kueue struct {
	flavor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			NodeLabels  map[string]string   `json:"nodeLabels"`
			Tolerations []corev1.Toleration `json:"tolerations"`
		} `json:"spec"`
	}
	cluster struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
			ResourceGroups    []struct {
				CoveredResources []corev1.ResourceName `json:"coveredResources"`
				Flavors          []struct {
					Name      string  `json:"name"`
					Resources []quota `json:"resources"`
				} `json:"flavors"`
			} `json:"resourceGroups"`
		} `json:"spec"`
	}
	local struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ClusterQueue string `json:"clusterQueue"`
		} `json:"spec"`
	}
	job batchv1.Job
}

type quota struct {
	Name         corev1.ResourceName `json:"name"`
	NominalQuota quantity.Quantity   `json:"nominalQuota"`
}

// readKueue reads the example. Unknown fields fail the test.
func readKueue(t *testing.T) *kueue {
	t.Helper()
	f := must[*os.File](t)(os.Open(kueueFile(t)))
	defer f.Close()
	k := &kueue{}
	for documents := yaml.NewYAMLReader(bufio.NewReader(f)); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return k
		}
		var kind metav1.TypeMeta
		if err == nil {
			err = sigsyaml.Unmarshal(text, &kind)
		}
		into, known := map[string]any{
			"kueue.x-k8s.io/v1beta2 ResourceFlavor": &k.flavor, "kueue.x-k8s.io/v1beta2 ClusterQueue": &k.cluster, "kueue.x-k8s.io/v1beta2 LocalQueue": &k.local, "batch/v1 Job": &k.job,
		}[kind.APIVersion+" "+kind.Kind]
		if err == nil && !known {
			err = errors.New("the kind is not known")
		}
		if err == nil {
			err = sigsyaml.UnmarshalStrict(text, into)
		}
		if err != nil {
			t.Fatalf("%s %s: %v", kind.APIVersion, kind.Kind, err)
		}
	}
}

func kueueFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(root(t), "examples/integrations/kueue.yaml")
}

// room returns how many pods of the Job fit the quotas.
func (k *kueue) room() int32 {
	container := k.job.Spec.Template.Spec.Containers[0].Resources
	room := *k.job.Spec.Parallelism
	for _, q := range k.cluster.Spec.ResourceGroups[0].Flavors[0].Resources {
		request, ok := container.Requests[q.Name]
		if !ok {
			request = container.Limits[q.Name]
		}
		if !request.IsZero() {
			room = min(room, int32(q.NominalQuota.MilliValue()/request.MilliValue()))
		}
	}
	return room
}

// TestKueueWouldAdmitTheExamplesJob checks that the objects of the example refer to each other, and that Kueue admits a part of the Job.
func TestKueueWouldAdmitTheExamplesJob(t *testing.T) {
	t.Parallel()
	k := readKueue(t)
	group := k.cluster.Spec.ResourceGroups[0]
	flavor := group.Flavors[0]
	var quotas []corev1.ResourceName
	for _, q := range flavor.Resources {
		quotas = append(quotas, q.Name)
	}
	if flavor.Name != k.flavor.Name || k.local.Spec.ClusterQueue != k.cluster.Name || k.job.Labels["kueue.x-k8s.io/queue-name"] != k.local.Name || k.job.Namespace != k.local.Namespace {
		t.Error("an object refers to another that is not there")
	}
	if !slices.Equal(quotas, group.CoveredResources) { // Kueue wants the same order.
		t.Errorf("the quotas are for %v, and the group covers %v", quotas, group.CoveredResources)
	}
	container := k.job.Spec.Template.Spec.Containers[0].Resources
	for _, resources := range []corev1.ResourceList{container.Requests, container.Limits} {
		for name := range resources {
			if !slices.Contains(quotas, name) {
				t.Errorf("pods ask for %s, which has no quota", name)
			}
		}
	}
	if room := k.room(); room != 40 {
		t.Errorf("%d pods fit the quotas, want the forty that the comment promises", room)
	}
	// Kueue admits a Job with more pods than fit only if it says how few would do.
	fewest, err := strconv.ParseInt(k.job.Annotations["kueue.x-k8s.io/job-min-parallelism"], 10, 32)
	if err != nil || fewest < 1 || fewest >= int64(*k.job.Spec.Parallelism) || int32(fewest) > k.room() {
		t.Errorf("the fewest pods are %d (%v), of %d", fewest, err, *k.job.Spec.Parallelism)
	}
	if k.job.Spec.Suspend == nil || !*k.job.Spec.Suspend {
		t.Error("the Job is not suspended")
	}
}

const gated = 12

// whatKueueHoldsBackCostsNothing creates the Job of the example, suspended, and pods with the scheduling gate of Kueue. It checks that Karve launches nodes for them only when they are
// admitted.
func (w *world) whatKueueHoldsBackCostsNothing() {
	k := readKueue(w.t)
	claims := func(pool string) int {
		var list karpv1.NodeClaimList
		if err := w.api.List(w.t.Context(), &list, client.MatchingLabels{karpv1.NodePoolLabelKey: pool}); err != nil {
			w.t.Fatal(err)
		}
		return len(list.Items)
	}
	before := map[string]int{"gpu": claims("gpu"), sharedPool: claims(sharedPool)}
	job := k.job.DeepCopy()
	if err := w.api.Create(w.t.Context(), job); err != nil {
		w.t.Fatal(err)
	}
	for i := range gated {
		if err := w.api.Create(w.t.Context(), gatedPod(i)); err != nil {
			w.t.Fatal(err)
		}
	}
	for began := time.Now(); time.Since(began) < 5*time.Second; time.Sleep(500 * time.Millisecond) {
		for pool, n := range before {
			if now := claims(pool); now > n {
				w.t.Fatalf("%s has %d NodeClaims, and had %d before Kueue held pods back", pool, now, n)
			}
		}
	}

	// Kueue admits as many pods as fit, on the nodes of the flavor.
	admitted := job.DeepCopy()
	admitted.Spec.Suspend, admitted.Spec.Parallelism = new(false), new(k.room())
	admitted.Spec.Template.Spec.NodeSelector, admitted.Spec.Template.Spec.Tolerations = k.flavor.Spec.NodeLabels, k.flavor.Spec.Tolerations
	if err := w.api.Patch(w.t.Context(), admitted, client.MergeFrom(job)); err != nil {
		w.t.Fatal(err)
	}
	for i := range gated {
		if err := w.api.Patch(w.t.Context(), gatedPod(i), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`))); err != nil {
			w.t.Fatal(err)
		}
	}
	for pool, n := range before {
		w.eventually("nodes are launched for the admitted pods", func() error {
			if now := claims(pool); now <= n {
				return fmt.Errorf("%s has %d NodeClaims, and had %d before the pods were admitted", pool, now, n)
			}
			return nil
		})
	}
	w.eventually("the admitted pods run", func() error {
		for i := range gated {
			pod := gatedPod(i)
			if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	w.eventually("the Job completes", func() error {
		if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if job.Status.Succeeded != *job.Spec.Completions {
			return fmt.Errorf("%d of %d pods have succeeded, %d are active", job.Status.Succeeded, *job.Spec.Completions, job.Status.Active)
		}
		return nil
	})
}

// gatedPod returns a pod as Kueue holds it back, with what it adds of a ResourceFlavor.
func gatedPod(i int) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("gated-", i)}, Spec: corev1.PodSpec{
		SchedulingGates: []corev1.PodSchedulingGate{{Name: "kueue.x-k8s.io/admission"}},
		NodeSelector:    map[string]string{v1alpha1.GPUNodeClassLabel: "gpu"}, Tolerations: []corev1.Toleration{{Key: resource, Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "main", Image: "example.com/nothing", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{resource: quantity.MustParse("1")}}}},
	}}
}
