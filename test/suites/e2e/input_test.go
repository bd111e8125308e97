package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

func objectMeta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func objectMetaIn(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// expectation is a message that users must get: a condition of the pool, or an event about the pod.
type expectation struct {
	condition, event string
	words            []string
}

// TestInvalidInputIsReportedAndLaunchesNothing has one mistake per case. The message must name the mistake and the way out.
func TestInvalidInputIsReportedAndLaunchesNothing(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	never := v1alpha1.IdleNever
	for _, c := range []struct {
		name string
		// arrange creates everything but the pod; nil creates a valid class and pool.
		arrange func(*scene)
		pod     []func(*corev1.PodSpec)
		want    []expectation
	}{
		{
			"no-taint", func(s *scene) {
				s.class(never)
				s.pool(poolOptions{taintKey: "none", labels: map[string]string{"example.com/case": s.name}})
			},
			[]func(*corev1.PodSpec){selects("example.com/case", "no-taint")},
			[]expectation{
				{condition: karpv1.ConditionTypeValidationSucceeded, words: []string{"NoTaint", "spec.template.spec.taints", "nvidia.com/gpu.shared"}},
				{event: "PoolClosed", words: []string{"NodePool no-taint", "spec.template.spec.taints"}},
			},
		},
		{
			"no-class", func(s *scene) { s.pool(poolOptions{}) }, nil,
			[]expectation{{condition: karpv1.ConditionTypeNodeClassReady, words: []string{"GPUNodeClassNotFound", `GPUNodeClass "no-class"`, "create it"}}},
		},
		{
			"no-inner-class", func(s *scene) {
				s.class(never, func(spec *v1alpha1.GPUNodeClassSpec) { spec.NodeClassRef.Name = "nowhere" })
				s.pool(poolOptions{})
			}, nil,
			[]expectation{
				{condition: karpv1.ConditionTypeNodeClassReady, words: []string{"NodeClassNotFound", `EC2NodeClass "nowhere"`, "create it"}},
				{event: "PoolClosed", words: []string{"NodePool no-inner-class", `EC2NodeClass "nowhere"`, "create it"}},
			},
		},
		{
			"inner-not-ready", func(s *scene) {
				s.notReady()
				s.class(never)
				s.pool(poolOptions{})
			}, nil,
			[]expectation{
				{condition: karpv1.ConditionTypeNodeClassReady, words: []string{"NodeClassNotReady", `EC2NodeClass "inner-not-ready"`, "AMIsReady=False", "see its conditions"}},
				{event: "PoolClosed", words: []string{"NodePool inner-not-ready", "AMIsReady=False"}},
			},
		},
		{
			"unknown-kind", func(s *scene) {
				s.class(never, func(spec *v1alpha1.GPUNodeClassSpec) {
					spec.NodeClassRef = v1alpha1.NodeClassReference{Group: "example.com", Kind: "MoonNodeClass", Name: "x"}
				})
				s.pool(poolOptions{})
			}, nil,
			[]expectation{{condition: karpv1.ConditionTypeNodeClassReady, words: []string{"NodeClassKindUnknown", "MoonNodeClass", "example.com", "spec.nodeClassRef"}}},
		},
		{
			"no-types", func(s *scene) {
				s.class(never)
				s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-family": "p9"}})
			}, nil,
			[]expectation{{condition: karpv1.ConditionTypeValidationSucceeded, words: []string{"NoInstanceTypes", "the catalog of", "karpenter.k8s.aws/instance-family is p9", "correct the name"}}},
		},
		{
			"too-many", func(s *scene) {
				s.class(never)
				s.pool(poolOptions{requirements: map[string]string{"karpenter.k8s.aws/instance-size": "xlarge"}})
			},
			[]func(*corev1.PodSpec){asks(v1alpha1.ResourceGPUShared, "11")},
			[]expectation{{event: "TooLarge", words: []string{"11 replicas", "g4dn.xlarge in NodePool too-many", "10 replicas", "ask for less"}}},
		},
		{
			"claims", func(s *scene) {
				s.class(never)
				s.pool(poolOptions{})
				claim := manifest("resource.k8s.io/v1", "ResourceClaim", "gpu", map[string]any{"devices": map[string]any{"requests": []any{
					map[string]any{"name": "gpu", "exactly": map[string]any{"deviceClassName": "nowhere"}},
				}}})
				claim.SetNamespace(s.name)
				s.create(claim)
			},
			[]func(*corev1.PodSpec){func(spec *corev1.PodSpec) {
				spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("gpu")}}
			}},
			[]expectation{{event: "UnsupportedConstraint", words: []string{"resource claims", "remove it"}}},
		},
		{
			"near-nobody", nil,
			[]func(*corev1.PodSpec){func(spec *corev1.PodSpec) {
				spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelTopologyZone, "nobody")}}
			}},
			[]expectation{{event: "RuleUnsatisfiable", words: []string{"podAffinity"}}},
		},
		{
			"volume", func(s *scene) {
				s.class(never)
				s.pool(poolOptions{})
				s.create(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
				}})
			},
			[]func(*corev1.PodSpec){claiming("data")},
			[]expectation{{event: "VolumesNotReady", words: []string{"PersistentVolumeClaim volume/data", "names no StorageClass"}}},
		},
		{
			"only-one", func(s *scene) {
				s.class(never, func(spec *v1alpha1.GPUNodeClassSpec) { spec.Sharing.RequestsAboveOne = v1alpha1.RequestsAboveOneRefuse })
				s.pool(poolOptions{})
			},
			[]func(*corev1.PodSpec){asks(v1alpha1.ResourceGPUShared, "2")},
			[]expectation{{event: "RequestsAboveOne", words: []string{"2 replicas", "GPUNodeClass only-one", "ask for one", "Allow"}}},
		},
		{
			"only-one-by-dra", func(s *scene) {
				s.class(never, byDRA)
				s.pool(poolOptions{})
			},
			[]func(*corev1.PodSpec){asks(v1alpha1.ResourceGPUShared, "2")},
			[]expectation{{event: "RequestsAboveOne", words: []string{"2 replicas", "GPUNodeClass only-one-by-dra", "ask for one", "backend DevicePlugin"}}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A pool without a taint admits the pods of the other cases too, and they would get its events.
			if c.name != "no-taint" {
				t.Parallel()
			}
			if (c.name == "claims" || c.name == "only-one-by-dra") && !servesDRA() {
				t.Skip("this Kubernetes has no ResourceClaims")
			}
			s := w.scene(t, c.name)
			if c.arrange == nil {
				s.class(never)
				s.pool(poolOptions{})
			} else {
				c.arrange(s)
			}
			s.pod("asks", c.pod...)
			for _, want := range c.want {
				if want.condition != "" {
					s.untilCondition(s.name, want.condition, "False", want.words...)
					s.untilCondition(s.name, "Ready", "False")
				} else {
					s.untilEvent("Pod", "asks", want.event, want.words...)
				}
			}
			// A launch on a second reconcile would happen now.
			s.stays(12*time.Second, "no claim", func() (bool, string) { return len(s.claims()) == 0, lines(s.claims()) })
			if n := s.running(); n != 0 {
				t.Errorf("%d pods run", n)
			}
		})
	}
}

// notReady gives the cloud's node class an image that does not exist. Karpenter then sets it not ready.
func (s *scene) notReady() {
	s.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(cloud + "/v1")
	o.SetKind(cloudKind)
	o.SetName(s.name)
	s.patch(o, `{"spec":{"amiFamily":"AL2023","amiSelectorTerms":[{"id":"ami-00000000000000000"}]}}`)
}
