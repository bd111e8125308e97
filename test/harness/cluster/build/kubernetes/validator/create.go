package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
)

// largest is the size of the largest object that etcd stores, by default.
const largest = 1.5 * (1 << 20)

// kinds has what the API server does with each kind, and the name of its resource.
var kinds = map[string]struct {
	resource string
	strategy rest.RESTCreateStrategy
}{
	"Pod":                   {"pods", pod.Strategy},
	"PodTemplate":           {"podtemplates", podtemplate.Strategy},
	"PersistentVolumeClaim": {"persistentvolumeclaims", persistentvolumeclaim.Strategy},
	"DaemonSet":             {"daemonsets", daemonset.Strategy},
	"Deployment":            {"deployments", deployment.Strategy},
	"ReplicaSet":            {"replicasets", replicaset.Strategy},
	"StatefulSet":           {"statefulsets", statefulset.Strategy},
	"PodDisruptionBudget":   {"poddisruptionbudgets", poddisruptionbudget.Strategy},
	"ResourceClaim":         {"resourceclaims", resourceclaim.NewStrategy(namespaces{}, nil)},
	"ResourceClaimTemplate": {"resourceclaimtemplates", resourceclaimtemplate.NewStrategy(namespaces{})},
}

// namespaces has namespaces without labels, of which none allows adminAccess.
type namespaces struct{ typedcorev1.NamespaceInterface }

func (namespaces) Get(context.Context, string, metav1.GetOptions) (*corev1.Namespace, error) {
	return &corev1.Namespace{}, nil
}

// create returns an object as the API server stores it.
func create(sent []byte) ([]byte, error) {
	o, gvk, err := legacyscheme.Codecs.UniversalDecoder().Decode(sent, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decoding: %w", err)
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	kind, ok := kinds[gvk.Kind]
	if !ok {
		return nil, fmt.Errorf("%s is not a kind that users create", gvk.Kind)
	}
	if err := admit(o); err != nil {
		return nil, err
	}
	ctx := genericapirequest.WithNamespace(context.Background(), m.GetNamespace())
	ctx = genericapirequest.WithRequestInfo(ctx, &genericapirequest.RequestInfo{
		IsResourceRequest: true, Verb: "create", APIGroup: gvk.Group, APIVersion: gvk.Version, Resource: kind.resource, Namespace: m.GetNamespace(),
	})
	rest.FillObjectMetaSystemFields(m)
	if err := rest.BeforeCreate(kind.strategy, ctx, o); err != nil {
		return nil, err
	}
	codec := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	stored, err := runtime.Encode(legacyscheme.Codecs.EncoderForVersion(codec, gvk.GroupVersion()), o)
	if err == nil && len(stored) > largest {
		return nil, errors.New("etcdserver: request is too large")
	}
	return stored, err
}

// admit does what the admission plugins of the API server do with pods that refer to other objects, of which there are none.
func admit(o runtime.Object) error {
	p, ok := o.(*core.Pod)
	if !ok {
		return nil
	}
	spec := &p.Spec
	switch {
	case spec.PriorityClassName != "" && spec.PriorityClassName != "system-cluster-critical" && spec.PriorityClassName != "system-node-critical":
		return errors.New("no PriorityClass has this name")
	case spec.Priority != nil && *spec.Priority != 0, spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != core.PreemptLowerPriority:
		return errors.New("the priority is not that of the PriorityClass")
	case spec.RuntimeClassName != nil, spec.Overhead != nil:
		return errors.New("no RuntimeClass has this name or this overhead")
	case spec.ServiceAccountName != "" && spec.ServiceAccountName != "default":
		return errors.New("no service account has this name")
	case p.Annotations[core.MirrorPodAnnotationKey] != "":
		return errors.New("only kubelets create mirror pods")
	}
	priority, policy := int32(0), core.PreemptLowerPriority
	switch spec.PriorityClassName {
	case "system-cluster-critical":
		priority = 2_000_000_000
	case "system-node-critical":
		priority = 2_000_001_000
	}
	spec.Priority, spec.PreemptionPolicy = &priority, &policy
	return nil
}
