package cloud

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestEachKindOfNodeClassHasItsCatalog(t *testing.T) {
	t.Parallel()
	class := func(apiVersion, kind string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion(apiVersion)
		u.SetKind(kind)
		return u
	}
	aws, file := SameForAll{{Name: "of AWS"}}, SameForAll{{Name: "of the file"}}
	kinds := map[schema.GroupKind]Catalog{{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass"}: aws}
	both, one := ByKind{Kinds: kinds, Others: file}, ByKind{Kinds: kinds}
	ec2, kwok := class("karpenter.k8s.aws/v1", "EC2NodeClass"), class("karpenter.kwok.sh/v1alpha1", "KWOKNodeClass")
	for name, tc := range map[string]struct {
		in    ByKind
		class *unstructured.Unstructured
		want  string
	}{
		"an EC2NodeClass": {both, ec2, "of AWS"}, "another": {both, kwok, "of the file"}, "an EC2NodeClass without a file": {one, ec2, "of AWS"},
	} {
		if l := tc.in.InstanceTypes(t.Context(), tc.class); len(l.InstanceTypes) != 1 || l.InstanceTypes[0].Name != tc.want || l.Reason != "" {
			t.Errorf("%s: %+v", name, l)
		}
	}
	l := one.InstanceTypes(t.Context(), kwok)
	if len(l.InstanceTypes) != 0 || l.Reason != "NoCatalog" ||
		!strings.Contains(l.Message, "KWOKNodeClass") || !strings.Contains(l.Message, "--instance-types-file") {
		t.Errorf("another without a file: %+v", l)
	}
}
