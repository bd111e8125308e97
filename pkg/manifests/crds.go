package manifests

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	awsapis "github.com/aws/karpenter-provider-aws/pkg/apis"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kutiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/karpenter/pkg/apis"
	"sigs.k8s.io/yaml"

	ours "karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/pkg/apis/v1alpha1"
)

// crd is what the API server knows of a kind: the schema with its defaults and the CEL rules.
type crd struct {
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// crds has Karve's GPUNodeClass, the kinds of Karpenter and of its AWS provider, and the version that the API server stores. A schema is read when the first object
// of the kind is.
var crds = func() map[schema.GroupKind]func() (*crd, error) {
	all := map[schema.GroupKind]func() (*crd, error){{Group: v1alpha1.Group, Kind: v1alpha1.Kind}: sync.OnceValues(gpuNodeClassCRD)}
	for _, definition := range slices.Concat(apis.CRDs, awsapis.CRDs) {
		gk := schema.GroupKind{Group: definition.Spec.Group, Kind: definition.Spec.Names.Kind}
		if gk.Kind != "CapacityBuffer" && all[gk] == nil {
			all[gk] = sync.OnceValues(func() (*crd, error) { return crdOf(definition) })
		}
	}
	return all
}()

// nodeClassVersions are the versions of the node classes that have a CRD.
var nodeClassVersions = map[schema.GroupKind]string{{Group: awsapis.Group, Kind: "EC2NodeClass"}: "v1"}

func gpuNodeClassCRD() (*crd, error) {
	text, err := ours.FS.ReadFile("karve.sh_gpunodeclasses.yaml")
	if err != nil {
		return nil, err
	}
	var definition apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(text, &definition); err != nil {
		return nil, err
	}
	return crdOf(&definition)
}

func crdOf(definition *apiextensionsv1.CustomResourceDefinition) (*crd, error) {
	version := definition.Spec.Versions[slices.IndexFunc(definition.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })]
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, err
	}
	var c crd
	var err error
	if c.schema, _, err = validation.NewSchemaValidator(&props); err != nil {
		return nil, err
	}
	if c.structural, err = structuralschema.NewStructural(&props); err != nil {
		return nil, err
	}
	c.rules = cel.NewValidator(c.structural, true, celconfig.PerCallLimit)
	return &c, nil
}

// admitted returns an object with the defaults of its CRD, or all that the API server would refuse. mistyped reports whether that is only values of wrong types. The status is as it is, because it is not applied.
func (c *crd) admitted(ctx context.Context, kind string, object []byte) (with []byte, mistyped bool, refused []error) {
	var content map[string]any
	if err := kutiljson.Unmarshal(object, &content); err != nil {
		return nil, true, []error{err}
	}
	status, hasStatus := content["status"]
	delete(content, "status")
	options := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	for _, path := range pruning.PruneWithOptions(content, c.structural, true, options) {
		refused = append(refused, withToday(fmt.Sprintf("unknown field %q", path), currentForm(kind, path, object)))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(content, c.structural)
	defaulting.Default(content, c.structural)
	faults := slices.Concat(validation.ValidateCustomResource(nil, content, c.schema), listtype.ValidateListSetsAndMaps(nil, c.structural, content))
	if len(faults) == 0 {
		faults, _ = c.rules.Validate(ctx, nil, c.structural, content, nil, celconfig.RuntimeCELCostBudget)
	}
	slices.SortStableFunc(faults, func(a, b *field.Error) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Error(), b.Error()))
	})
	mistyped = len(refused) == 0 && len(faults) > 0
	for _, fault := range faults {
		mistyped = mistyped && fault.Type == field.ErrorTypeTypeInvalid
		refused = append(refused, withToday(strings.ReplaceAll(fault.Error(), "\n", " "), todaysValue(kind, fault)))
	}
	if len(refused) > 0 {
		return nil, mistyped, refused
	}
	if hasStatus {
		content["status"] = status
	}
	with, err := json.Marshal(content)
	if err != nil {
		return nil, false, []error{err}
	}
	return with, false, nil
}

// admit sets the defaults of the object's CRD. It returns why the API server would refuse the object, and whether that is only because of values of wrong types.
func (o *object) admit(ctx context.Context) (refused []error, mistyped bool) {
	schema, ok := crds[o.of]
	if !ok {
		return nil, false
	}
	c, err := schema()
	if err == nil {
		err = unboundedQuantity(o.json)
	}
	if err != nil {
		return []error{err}, false
	}
	with, mistyped, refused := c.admitted(ctx, o.of.Kind, o.json)
	if len(refused) == 0 {
		o.json = with
	}
	return refused, mistyped
}
