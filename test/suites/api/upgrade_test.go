package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/crds"
	"karve.sh/karve/test/harness/await"
)

// otherGroup serves a copy of the kind, so that the tests beside this one keep theirs.
const otherGroup = "upgrade.karve.sh"

// served is how long the API server may take to serve a new version of a CRD.
const served = 30 * time.Second

// copyOfCRD returns the CRD of GPUNodeClasses in another group.
func copyOfCRD(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	text, err := crds.FS.ReadFile("karve.sh_gpunodeclasses.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		t.Fatal(err)
	}
	crd.Name, crd.Spec.Group = crd.Spec.Names.Plural+"."+otherGroup, otherGroup
	return crd
}

// TestObjectsOfEarlierReleasesStayValid stores the fields of an earlier release, whose CRD had no rule against them, and then upgrades the CRD.
func TestObjectsOfEarlierReleasesStayValid(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	clients, err := clientset.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	definitions := clients.ApiextensionsV1().CustomResourceDefinitions()
	dynamics, err := dynamic.NewForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	earlier := copyOfCRD(t)
	fields := earlier.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["consolidation"].Properties
	old := map[string]any{"minSavingPerMove": "0.05", "nearEnoughPercent": int64(5), "settleAfter": "5m"}
	for name := range old {
		field, ok := fields[name]
		if !ok || len(field.XValidations) == 0 {
			t.Fatalf("the schema has no rule against %s", name)
		}
		field.XValidations = nil
		fields[name] = field
	}
	if _, err := definitions.Create(ctx, earlier, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	classes := dynamics.Resource(schema.GroupVersionResource{Group: otherGroup, Version: earlier.Spec.Versions[0].Name, Resource: earlier.Spec.Names.Plural})
	class := object(t, "from-an-earlier-release", edits{"spec.consolidation": old})
	class.SetAPIVersion(otherGroup + "/" + earlier.Spec.Versions[0].Name)
	await.Nil(t, served, func() error {
		_, err := classes.Create(ctx, class, metav1.CreateOptions{})
		return err
	})

	await.Nil(t, served, func() error { // The API server writes the status of the CRD meanwhile.
		stored, err := definitions.Get(ctx, earlier.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		stored.Spec = copyOfCRD(t).Spec
		_, err = definitions.Update(ctx, stored, metav1.UpdateOptions{})
		return err
	})
	class.SetName("with-old-fields")
	await.Nil(t, served, func() error {
		_, err := classes.Create(ctx, class, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "write restartCost") {
			return fmt.Errorf("a new object with the old fields: %w, want a refusal that says what to write", err)
		}
		return nil
	})

	change := func(edit func(*unstructured.Unstructured)) error {
		stored, err := classes.Get(ctx, "from-an-earlier-release", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		edit(stored)
		_, err = classes.Update(ctx, stored, metav1.UpdateOptions{})
		return err
	}
	set := func(value any, path ...string) func(*unstructured.Unstructured) {
		return func(o *unstructured.Unstructured) {
			if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := change(set("yes", "metadata", "labels", "touched")); err != nil {
		t.Errorf("the stored object cannot be labeled: %v", err)
	}
	if err := change(set("10m", "spec", "consolidation", "idleAfter")); err != nil {
		t.Errorf("another field beside the old ones cannot be changed: %v", err)
	}
	if err := change(set("0.02", "spec", "consolidation", "minSavingPerMove")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "minSavingPerMove was replaced") {
		t.Errorf("an old field is changed: %v, want a refusal", err)
	}
	if err := change(func(o *unstructured.Unstructured) {
		unstructured.RemoveNestedField(o.Object, "spec", "consolidation")
		set("0.10", "spec", "consolidation", "restartCost")(o)
	}); err != nil {
		t.Errorf("the new field does not replace the old ones: %v", err)
	}
}
