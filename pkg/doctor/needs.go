package doctor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"reflect"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

	"karve.sh/karve/config"
	"karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/pkg/apis/v1alpha1"
)

// NeededKinds are the kinds that Karve needs, with a version that must be served, by the names of their CustomResourceDefinitions.
var NeededKinds = map[string]schema.GroupVersionKind{
	"gpunodeclasses.karve.sh": v1alpha1.GroupVersion.WithKind(v1alpha1.Kind), "gpuimagerollouts.karve.sh": v1alpha1.GroupVersion.WithKind("GPUImageRollout"),
	"nodepools.karpenter.sh": {Group: karpapis.Group, Version: "v1", Kind: "NodePool"}, "nodeclaims.karpenter.sh": {Group: karpapis.Group, Version: "v1", Kind: "NodeClaim"},
}

// IsOurs reports whether a CustomResourceDefinition with this name is Karve's.
func IsOurs(name string) bool {
	_, err := ownCRD(name)
	return err == nil
}

// DiffersFromOurs reports whether a CustomResourceDefinition of Karve has other schemas than that of this program.
func DiffersFromOurs(crd *unstructured.Unstructured) bool {
	own, err := ownCRD(crd.GetName())
	return err == nil && !reflect.DeepEqual(schemasOf(own), schemasOf(crd.Object))
}

// schemasOf returns the schemas of the served versions of a CustomResourceDefinition.
func schemasOf(crd map[string]any) map[string]any {
	all := map[string]any{}
	versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok || version["served"] != true {
			continue
		}
		if name, ok := version["name"].(string); ok {
			all[name] = version["schema"]
		}
	}
	return all
}

// ownCRD returns this program's CustomResourceDefinition with a name. It returns an error if there is none.
func ownCRD(name string) (map[string]any, error) {
	plural, group, _ := strings.Cut(name, ".")
	text, err := crds.FS.ReadFile(group + "_" + plural + ".yaml")
	if err != nil {
		return nil, err
	}
	text, err = yaml.ToJSON(text)
	if err != nil {
		return nil, err
	}
	crd := &unstructured.Unstructured{}
	err = crd.UnmarshalJSON(text)
	return crd.Object, err
}

// NeededRights returns the rights that a controller with these flags needs in its namespace. Those of a feature are in a file with the name of its flag.
func NeededRights(flags map[string]string, namespace string) ([]Right, error) {
	namespaces := map[string]string{"karve-system": namespace, "karve-checks": flags["gpu-check-namespace"]}
	files, err := fs.Glob(config.Roles, "rbac/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Right
	for _, file := range files {
		feature := strings.TrimSuffix(path.Base(file), ".yaml")
		if set := flags[feature]; feature != "role" && (set == "" || set == "false") {
			continue
		}
		rights, err := rightsIn(file, namespaces)
		if err != nil {
			return nil, err
		}
		all = append(all, rights...)
	}
	return all, nil
}

// rightsIn returns the rights in a file of roles, with the namespaces of an installation instead of those in the file.
func rightsIn(name string, namespaces map[string]string) ([]Right, error) {
	text, err := fs.ReadFile(config.Roles, name)
	if err != nil {
		return nil, err
	}
	var all []Right
	for documents := yaml.NewYAMLToJSONDecoder(bytes.NewReader(text)); ; {
		var role rbacv1.Role
		if err := documents.Decode(&role); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		namespace := role.Namespace
		if here := namespaces[namespace]; here != "" {
			namespace = here
		}
		all = append(all, Rights(namespace, role.Rules)...)
	}
}

// MonitorSelects reports whether a ServiceMonitor or PodMonitor selects objects with the labels.
func MonitorSelects(o *unstructured.Unstructured, set labels.Set) bool {
	selector, ok, err := unstructured.NestedMap(o.Object, "spec", "selector")
	if !ok || err != nil {
		return false
	}
	var s metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(selector, &s) != nil {
		return false
	}
	selects, err := metav1.LabelSelectorAsSelector(&s)
	return err == nil && selects.Matches(set)
}
