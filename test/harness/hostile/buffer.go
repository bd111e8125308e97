package hostile

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/karpenter/pkg/apis"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	"sigs.k8s.io/yaml"
)

// bufferSchema validates CapacityBuffers by their CRD.
type bufferSchema struct {
	schema     validation.SchemaValidator
	structural *structuralschema.Structural
	rules      *cel.Validator
}

var buffers = sync.OnceValues(func() (s bufferSchema, err error) {
	var crd apiextensionsv1.CustomResourceDefinition
	var all apiextensions.JSONSchemaProps
	if err := yaml.Unmarshal(apis.CapacityBufferCRD, &crd); err != nil {
		return s, err
	}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &all, nil); err != nil {
		return s, err
	}
	if s.schema, _, err = validation.NewSchemaValidator(&all); err != nil {
		return s, err
	}
	if s.structural, err = structuralschema.NewStructural(&all); err != nil {
		return s, err
	}
	s.rules = cel.NewValidator(s.structural, true, celconfig.PerCallLimit)
	return s, nil
})

// createBuffer returns a CapacityBuffer as the API server stores it, which validates it by its CRD.
func createBuffer(o *autoscalingv1beta1.CapacityBuffer) (*autoscalingv1beta1.CapacityBuffer, error) {
	s, err := buffers()
	if err != nil {
		return nil, fmt.Errorf("reading the CRD of CapacityBuffers: %w", err)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	if len(text) > largest {
		return nil, errors.New("it is too large")
	}
	var content any
	stored := &autoscalingv1beta1.CapacityBuffer{}
	if err := errors.Join(json.Unmarshal(text, &content), json.Unmarshal(text, stored)); err != nil {
		return nil, err
	}
	faults := apivalidation.ValidateObjectMetaAccessor(stored, true, apivalidation.NameIsDNSSubdomain, nil)
	faults = append(faults, validation.ValidateCustomResource(nil, content, s.schema)...)
	if len(faults) == 0 {
		faults, _ = s.rules.Validate(context.Background(), nil, s.structural, content, nil, celconfig.RuntimeCELCostBudget)
	}
	return stored, faults.ToAggregate()
}
