package api

import (
	"regexp"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

func TestUnsetFieldsGetDefaults(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	classes := client(t)
	for name, c := range map[string]struct {
		change edits
		want   string
	}{
		"no consolidation":       {nil, "5m"},
		"an empty consolidation": {edits{"spec.consolidation": map[string]any{}}, "5m"},
		"an explicit value":      {idleAfter("90s"), "90s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := classes.Create(t.Context(), object(t, "defaults", c.change), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if idle, _, _ := unstructured.NestedString(got.Object, "spec", "consolidation", "idleAfter"); idle != c.want {
				t.Errorf("idleAfter is %q, want %q", idle, c.want)
			}
			sharing, _, _ := unstructured.NestedMap(got.Object, "spec", "sharing")
			if len(sharing) != 2 {
				t.Errorf("sharing is %v, want only what was written: its defaults depend on the strategy", sharing)
			}
		})
	}
	for name, c := range map[string]struct {
		change edits
		want   int64
	}{
		"no launch":           {nil, v1alpha1.DefaultMaxPremiumPercent},
		"an empty launch":     {edits{"spec.launch": map[string]any{}}, v1alpha1.DefaultMaxPremiumPercent},
		"an explicit premium": {premium(0), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := classes.Create(t.Context(), object(t, "defaults", c.change), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				t.Fatal(err)
			}
			if percent, _, _ := unstructured.NestedInt64(got.Object, "spec", "launch", "maxPremiumPercent"); percent != c.want {
				t.Errorf("maxPremiumPercent is %d, want %d", percent, c.want)
			}
		})
	}
	if v1alpha1.DefaultIdleAfter != "5m" {
		t.Errorf("DefaultIdleAfter is %q and the API server's default 5m", v1alpha1.DefaultIdleAfter)
	}
}

func TestTypedObjectRoundTrips(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	typed := &v1alpha1.GPUNodeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: "typed"},
		Spec: v1alpha1.GPUNodeClassSpec{
			NodeClassRef: v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"},
			Sharing: v1alpha1.Sharing{
				Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10)),
				Overrides: []v1alpha1.ReplicasOverride{{GPUName: "a10g", Replicas: 20}},
			},
		},
	}
	client := restClient(t)
	got := &v1alpha1.GPUNodeClass{}
	err := client.Post().Resource("gpunodeclasses").Param("dryRun", metav1.DryRunAll).Body(typed).Do(t.Context()).Into(got)
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Spec.Sharing.ReplicasFor("a10g"); n != 20 {
		t.Errorf("ReplicasFor(a10g) = %d, want 20", n)
	}
	if n := got.Spec.Sharing.ReplicasFor("t4"); n != 10 {
		t.Errorf("ReplicasFor(t4) = %d, want 10", n)
	}
	if r := got.Spec.Sharing.Resource(); r != v1alpha1.ResourceGPUShared {
		t.Errorf("Resource() = %q, want %q", r, v1alpha1.ResourceGPUShared)
	}
	if d, never, err := got.Spec.Consolidation.IdleDuration(); d != 5*time.Minute || never || err != nil {
		t.Errorf("IdleDuration() = %v, %t, %v; want 5m", d, never, err)
	}
}

func TestPrinterColumns(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	classes := client(t)
	o, err := classes.Create(t.Context(), object(t, "columns", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteClass(t, classes, "columns") })
	o.Object["status"] = plain(map[string]any{
		"nodes": 4, "gpus": 5, "replicas": 50, "replicasInUse": 37, "usdPerHour": "2.104",
		"conditions": []any{
			map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
			map[string]any{"type": "Ready", "status": "False", "reason": "NodeClassNotReady", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"},
		},
	})
	if _, err := classes.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	table := &metav1.Table{}
	if err := restClient(t).Get().Resource("gpunodeclasses").Name("columns").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").
		Do(t.Context()).Into(table); err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 1 {
		t.Fatalf("the table has %d rows, want 1", len(table.Rows))
	}
	want := []struct {
		name  string
		wide  bool // shown by kubectl get -o wide only
		value any
	}{
		{"Name", false, "columns"},
		{"Strategy", false, "TimeSlicing"},
		{"Nodes", false, int64(4)},
		{"GPUs", false, int64(5)},
		{"In use", false, int64(37)},
		{"Replicas", false, int64(50)},
		{"USD/h", false, "2.104"},
		{"Ready", false, "False"},
		{"Age", false, regexp.MustCompile(`^\d+s$`)},
		{"NodeClass", true, "gpu"},
		{"Reason", true, "NodeClassNotReady"},
	}
	if len(table.ColumnDefinitions) != len(want) {
		t.Fatalf("the columns are %v, want %v", table.ColumnDefinitions, want)
	}
	for i, w := range want {
		column, cell := table.ColumnDefinitions[i], table.Rows[0].Cells[i]
		if column.Name != w.name || (column.Priority > 0) != w.wide {
			t.Errorf("column %d is %s at priority %d, want %s, wide %t", i, column.Name, column.Priority, w.name, w.wide)
		}
		if pattern, ok := w.value.(*regexp.Regexp); ok {
			if text, _ := cell.(string); !pattern.MatchString(text) {
				t.Errorf("%s is %v, want %v", w.name, cell, pattern)
			}
			continue
		}
		if cell != w.value {
			t.Errorf("%s is %v (%T), want %v (%T)", w.name, cell, cell, w.value, w.value)
		}
	}
}

func TestKindIsServedUnderItsNames(t *testing.T) {
	t.Parallel()
	cluster.Require(t)
	disco, err := discovery.NewDiscoveryClientForConfig(server.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	resources, err := disco.ServerResourcesForGroupVersion(v1alpha1.GroupVersion.String())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Name == "gpunodeclasses" })
	if i < 0 {
		t.Fatalf("gpunodeclasses is not among %v", resources.APIResources)
	}
	got := resources.APIResources[i]
	if got.Kind != v1alpha1.Kind || got.Namespaced || !slices.Equal(got.ShortNames, []string{"gnc"}) || !slices.Contains(got.Categories, "karpenter") {
		t.Errorf("served as %+v; want kind GPUNodeClass, cluster-scoped, short name gnc, category karpenter", got)
	}
}

func restClient(t *testing.T) rest.Interface {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	config := server.RESTConfig()
	config.APIPath = "/apis"
	config.GroupVersion = &v1alpha1.GroupVersion
	config.ContentType = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
