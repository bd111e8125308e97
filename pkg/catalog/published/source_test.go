package published_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/published"
)

func TestWhatTheControllerPublishesComesFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	bytes := encoded(t, published.Catalog{{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "gpu"}: {
		InstanceTypes: []catalog.InstanceType{{Name: "g4dn.xlarge", Offerings: []catalog.Offering{{Zone: "eu-west-1a", CapacityType: "spot", MicroUSDPerHour: 200_000}}}},
	}})
	settings := published.DefaultSettings()
	settings.ReplicasTimeout.Duration = 20 * time.Minute
	there := published.ConfigMap("karve", bytes, published.Quotas{}, "v1", settings, now)
	corrupt := published.ConfigMap("karve", bytes[:40], published.Quotas{}, "v1", settings, now)
	earlier := there.DeepCopy()
	delete(earlier.Data, "settings.json")
	invalid := there.DeepCopy()
	invalid.Data["settings.json"] = `{"replicasTimeout": "20m"}`
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, published.Name, errors.New("no"))
	const elsewhere = ", in which the controller publishes its instance types"
	const region = ", so zones and prices are those of us-east-1"
	for name, c := range map[string]struct {
		is      *corev1.ConfigMap
		err     error
		given   []catalog.InstanceType
		types   int
		at      bool
		builtin string
		timeout time.Duration
	}{
		"published":                  {is: there, types: 1, at: true, timeout: 20 * time.Minute},
		"with a file":                {is: there, given: make([]catalog.InstanceType, 3), types: 3, timeout: 20 * time.Minute},
		"by an earlier release":      {is: earlier, types: 1, at: true},
		"without all settings":       {is: invalid, types: 1, at: true},
		"not there":                  {types: 59, builtin: "there is no ConfigMap karve/karve-catalog" + elsewhere + " (--karve-namespace)" + region},
		"not there, and with a file": {given: make([]catalog.InstanceType, 3), types: 3},
		"forbidden":                  {err: forbidden, types: 59, builtin: "you may not get ConfigMap karve/karve-catalog" + elsewhere + region},
		"corrupt":                    {is: corrupt, types: 59, builtin: "ConfigMap karve/karve-catalog cannot be read: decompressing it: unexpected EOF" + region, timeout: 20 * time.Minute},
	} {
		b := fake.NewClientBuilder().WithScheme(scheme.Scheme)
		if c.is != nil {
			b = b.WithObjects(c.is)
		}
		if c.err != nil {
			b = b.WithInterceptorFuncs(failing(c.err))
		}
		s, err := published.OrBuiltin(t.Context(), b.Build(), "karve", c.given)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		class := &unstructured.Unstructured{}
		class.SetGroupVersionKind(schema.GroupVersionKind{Group: "karpenter.k8s.aws", Version: "v1", Kind: "EC2NodeClass"})
		class.SetName("gpu")
		if n := len(s.InstanceTypes(t.Context(), class).InstanceTypes); n != c.types || s.At.IsZero() == c.at || s.Builtin != c.builtin {
			t.Errorf("%s: %d types, at %v, %q", name, n, s.At, s.Builtin)
		}
		want := published.DefaultSettings()
		if c.timeout > 0 {
			want = settings
		}
		if !reflect.DeepEqual(s.Settings, want) || (s.Assumed == "") != (c.timeout > 0) {
			t.Errorf("%s: settings %v, %q", name, s.Settings, s.Assumed)
		}
	}
	failed := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithInterceptorFuncs(failing(errors.New("away"))).Build()
	if _, err := published.OrBuiltin(t.Context(), failed, "karve", nil); err == nil {
		t.Error("an API server that fails gives instance types")
	}
}

func failing(err error) interceptor.Funcs {
	return interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
		return err
	}}
}
