package manifests

import (
	"strings"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var kindsOfToday = map[string]schema.GroupKind{
	"NodePool":     {Group: "karpenter.sh", Kind: "NodePool"},
	"NodeClaim":    {Group: "karpenter.sh", Kind: "NodeClaim"},
	"EC2NodeClass": {Group: "karpenter.k8s.aws", Kind: "EC2NodeClass"},
}

func TestMovedFieldsAreInCRDsOfToday(t *testing.T) {
	t.Parallel()
	for kind, paths := range moved {
		for path, became := range paths {
			if hasField(t, kindsOfToday[kind], path) {
				t.Errorf("%s still has %s", kind, path)
			}
			words := strings.FieldsFunc(became, func(r rune) bool { return r == ' ' || r == ',' || r == ':' })
			of := kind
			if strings.HasSuffix(became, "of the EC2NodeClass") {
				of = "EC2NodeClass"
			}
			if strings.HasPrefix(words[0], "spec.") && !hasField(t, kindsOfToday[of], words[0]) {
				t.Errorf("%s of %s is said to be %s, which %s does not have", path, kind, words[0], of)
			}
		}
	}
}

func hasField(t *testing.T, of schema.GroupKind, path string) bool {
	t.Helper()
	c, err := crds[of]()
	if err != nil {
		t.Fatal(err)
	}
	at := c.structural
	for key := range strings.SplitSeq(path, ".") {
		var next structuralschema.Structural
		var ok bool
		if next, ok = at.Properties[key]; !ok {
			return false
		}
		at = &next
	}
	return true
}
