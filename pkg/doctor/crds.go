package doctor

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	karpapis "sigs.k8s.io/karpenter/pkg/apis"

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

func crdsMissing(f *Facts) []Finding {
	if f.CRDs == nil {
		return nil
	}
	var all []Finding
	for _, name := range slices.Sorted(maps.Keys(NeededKinds)) {
		fix := f.helm("upgrade --install karve-crd charts/karve-crd")
		if strings.HasSuffix(name, ".karpenter.sh") {
			fix = "helm upgrade --install karpenter-crd, as Karpenter's guide says"
		}
		switch crd, ok := f.CRDs[name]; {
		case !ok:
			all = append(all, Finding{Error, "CustomResourceDefinition " + name, "is not installed", fix})
		case !slices.Contains(crd.Served, NeededKinds[name].Version):
			all = append(all, Finding{Error, "CustomResourceDefinition " + name, "does not serve version " + NeededKinds[name].Version, fix})
		}
	}
	return all
}

func crdsDiffer(f *Facts) []Finding {
	var all []Finding
	for _, name := range slices.Sorted(maps.Keys(f.CRDs)) {
		if f.CRDs[name].Differs {
			all = append(all, Finding{
				Warning, "CustomResourceDefinition " + name, "its fields differ from those of this version: Helm does not upgrade CRDs with a chart, so fields may be missing",
				f.helm("upgrade --install karve-crd charts/karve-crd") + ", of the controller's version",
			})
		}
	}
	return all
}
