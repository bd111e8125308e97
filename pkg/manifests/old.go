package manifests

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// versionsGuide is the page about files for Karpenter's older versions.
const versionsGuide = "docs/migrate/karpenter-versions.md"

// successor is what took the place of a kind.
type successor struct {
	// removed is the version of Karpenter that no longer has the kind.
	removed       string
	kind, version string
}

// successors are the kinds that Karpenter no longer has.
var successors = map[schema.GroupKind]successor{
	{Group: "karpenter.sh", Kind: "Provisioner"}:          {"0.33", "NodePool", "karpenter.sh/v1"},
	{Group: "karpenter.sh", Kind: "Machine"}:              {"0.33", "NodeClaim", "karpenter.sh/v1"},
	{Group: "karpenter.k8s.aws", Kind: "AWSNodeTemplate"}: {"0.33", "EC2NodeClass", "karpenter.k8s.aws/v1"},
}

// The fields of today that several older ones became.
const (
	ofLaunchTemplate = "Karpenter makes launch templates itself: write what this one has as fields of the EC2NodeClass"
	toKubelet        = "spec.kubelet of the EC2NodeClass"
	toSubnetTerms    = "spec.subnetSelectorTerms"
	toGroupTerms     = "spec.securityGroupSelectorTerms"
)

// moved says what became of fields of Karpenter's older versions, by the kind of today and path. Fields that are as before are not in it.
var moved = map[string]map[string]string{
	"NodePool": {
		"spec.annotations":                           "spec.template.metadata.annotations",
		"spec.consolidation":                         "spec.disruption",
		"spec.consolidation.enabled":                 "spec.disruption.consolidationPolicy: WhenEmptyOrUnderutilized",
		"spec.disruption.expireAfter":                "spec.template.spec.expireAfter",
		"spec.kubeletConfiguration":                  toKubelet,
		"spec.labels":                                "spec.template.metadata.labels",
		"spec.limits.resources":                      "spec.limits",
		"spec.provider":                              "an EC2NodeClass",
		"spec.provider.amiFamily":                    "spec.amiFamily of the EC2NodeClass",
		"spec.provider.blockDeviceMappings":          "spec.blockDeviceMappings of the EC2NodeClass",
		"spec.provider.instanceProfile":              "spec.instanceProfile of the EC2NodeClass",
		"spec.provider.launchTemplate":               ofLaunchTemplate,
		"spec.provider.metadataOptions":              "spec.metadataOptions of the EC2NodeClass",
		"spec.provider.securityGroupSelector":        toGroupTerms + " of the EC2NodeClass",
		"spec.provider.subnetSelector":               toSubnetTerms + " of the EC2NodeClass",
		"spec.provider.tags":                         "spec.tags of the EC2NodeClass",
		"spec.providerRef":                           "spec.template.spec.nodeClassRef",
		"spec.requirements":                          "spec.template.spec.requirements",
		"spec.startupTaints":                         "spec.template.spec.startupTaints",
		"spec.taints":                                "spec.template.spec.taints",
		"spec.template.spec.kubelet":                 toKubelet,
		"spec.template.spec.nodeClassRef.apiVersion": "spec.template.spec.nodeClassRef.group, without the version",
		"spec.template.spec.resources":               "nothing: the instance type has it",
		"spec.ttlSecondsAfterEmpty":                  "spec.disruption.consolidateAfter, with consolidationPolicy: WhenEmpty",
		"spec.ttlSecondsUntilExpired":                "spec.template.spec.expireAfter",
	},
	"EC2NodeClass": {
		"spec.amiSelector":           "spec.amiSelectorTerms",
		"spec.launchTemplate":        ofLaunchTemplate,
		"spec.launchTemplateName":    ofLaunchTemplate,
		"spec.securityGroupSelector": toGroupTerms,
		"spec.subnetSelector":        toSubnetTerms,
	},
	"NodeClaim": {
		"spec.kubelet":                 toKubelet,
		"spec.nodeClassRef.apiVersion": "spec.nodeClassRef.group, without the version",
	},
}

// currentForm returns what became of a field of an older version and of those in it, or "".
func currentForm(kind, path string, object []byte) string {
	became, ok := moved[kind][path]
	if !ok {
		return ""
	}
	var f fields
	if err := json.Unmarshal(object, &f); err == nil {
		inside := slices.DeleteFunc(movedFields(kind, f), func(text string) bool { return !strings.HasPrefix(text, path+".") })
		if len(inside) > 0 {
			return strings.Join(inside, "; ") + ": " + versionsGuide
		}
	}
	if became == ofLaunchTemplate {
		return became + ": " + versionsGuide
	}
	return "it is " + became + " today: " + versionsGuide
}

// todaysValue returns what became of a value of an older version that the API server refuses, or "".
func todaysValue(kind string, fault *field.Error) string {
	switch {
	case kind == "NodePool" && fault.Field == "spec.disruption.consolidationPolicy" && fault.BadValue == "WhenUnderutilized":
		return "it is WhenEmptyOrUnderutilized since Karpenter 1.0: " + versionsGuide
	case kind == "EC2NodeClass" && fault.Field == "spec.amiSelectorTerms" && fault.Type == field.ErrorTypeRequired:
		return "Karpenter 1.0 requires it, such as [{alias: al2023@latest}]: " + versionsGuide
	case kind == "EC2NodeClass" && fault.Field == "spec.amiFamily" && fault.BadValue == "Ubuntu":
		return "it is Custom or AL2023 with an Ubuntu image in spec.amiSelectorTerms since Karpenter 1.0: " + versionsGuide
	}
	return ""
}

func withToday(wrong, became string) error {
	if became == "" {
		return errors.New(wrong)
	}
	return fmt.Errorf("%s (%s)", wrong, became)
}

// replaced returns an error for an object of a kind or version that Karpenter no longer has. It names what became of each field of the object that is not as
// before. version is the version to use of the kind, or "" for a kind that is gone.
func replaced(gk schema.GroupKind, apiVersion, version string, f fields) error {
	now, gone := successors[gk]
	if !gone && version == "" || !gone && !strings.HasPrefix(gk.Group, "karpenter.") {
		return nil
	}
	text := fmt.Sprintf("Karpenter has no %s since version %s: write it as %s (%s)", gk.Kind, now.removed, now.kind, now.version)
	if !gone {
		text = fmt.Sprintf("apiVersion %s is not read: write it as %s", apiVersion, schema.GroupVersion{Group: gk.Group, Version: version})
	}
	parts := movedFields(cmp.Or(now.kind, gk.Kind), f)
	if !gone && gk.Kind == "NodePool" && f.text("spec", "disruption", "consolidationPolicy") == "WhenUnderutilized" {
		parts = append(parts, "consolidationPolicy: WhenUnderutilized is WhenEmptyOrUnderutilized")
	}
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, "; ")
	}
	return fmt.Errorf("%s: see %s", text, versionsGuide)
}

// movedFields returns what became of the fields of an object, sorted by path. Of a field and the one around it, it has the inner one.
func movedFields(kind string, f fields) []string {
	var parts []string
	paths := slices.Sorted(maps.Keys(moved[kind]))
	paths = slices.DeleteFunc(paths, func(path string) bool { return f.at(strings.Split(path, ".")...) == nil })
	for _, path := range paths {
		inside := func(other string) bool { return strings.HasPrefix(other, path+".") }
		switch became := moved[kind][path]; {
		case slices.ContainsFunc(paths, inside):
		case became == ofLaunchTemplate:
			parts = append(parts, path+" is gone, since "+became)
		default:
			parts = append(parts, path+" is "+became)
		}
	}
	return parts
}
