package chart_test

import (
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/operator"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// features are the values that enable the rights in config/rbac/<feature>.yaml, and the controller options that they set.
var features = []struct {
	name, value string
	on          func(*operator.Options) bool
}{
	{"nominations", "nominations.enabled", func(o *operator.Options) bool { return o.Nominations }},
	{"capacity-buffers", "capacityBuffers.enabled", func(o *operator.Options) bool { return o.CapacityBuffers }},
	{"provisioning-requests", "provisioningRequests.enabled", func(o *operator.Options) bool { return o.ProvisioningRequests }},
	{"image-rollouts", "imageRollouts.enabled", func(o *operator.Options) bool { return o.ImageRollouts }},
	{"dra", "node.dra.enabled", func(o *operator.Options) bool { return o.DRA }},
	{"metrics-secure", "controller.metrics.secure", func(o *operator.Options) bool { return o.MetricsSecure }},
	{"memory-aliases", "memoryAliases.gpuNodeClass", func(o *operator.Options) bool { return o.MemoryAliases.Enabled() }},
}

// role is the kind, the namespace and the name of a role.
type role struct{ kind, namespace, name string }

// TestRolesMatchEnabledFeatures renders the chart with no feature, with each one alone and with all of them. If a feature is disabled,
// the chart grants no rights for it and the controller does not use it.
func TestRolesMatchEnabledFeatures(t *testing.T) {
	generated := generatedRoles(t)
	sets := []int{0, 1<<len(features) - 1}
	for i := range features {
		sets = append(sets, 1<<i)
	}
	for _, set := range sets {
		var values []string
		want := map[role][]rbacv1.PolicyRule{}
		add := func(name string) {
			maps.Copy(want, generated[name])
		}
		add("role")
		for i, f := range features {
			on := set&(1<<i) != 0
			value := strconv.FormatBool(on)
			if f.name == "memory-aliases" {
				value = map[bool]string{true: "gpu-memory"}[on]
			}
			values = append(values, f.value+"="+value)
			if on {
				add(f.name)
			}
		}
		options := []string{needed, "--set=node.enabled=false," + strings.Join(values, ","), older}
		all := objects(t, options...)
		if diff := cmp.Diff(want, boundRoles(t, all), cmp.AllowUnexported(role{})); diff != "" {
			t.Errorf("%s: the roles that are bound are not those of config/rbac (-want +got):\n%s", options[1], diff)
		}
		_, o := started(t, options...)
		for i, f := range features {
			if on := set&(1<<i) != 0; f.on(o) != on {
				t.Errorf("%s: the controller has %s: %t", options[1], f.name, f.on(o))
			}
		}
	}
	if len(generated) != len(features)+1 {
		t.Errorf("there are %d files in config/rbac and %d features", len(generated), len(features))
	}
}

// generatedRoles returns the roles in config/rbac, by file name.
func generatedRoles(t *testing.T) map[string]map[role][]rbacv1.PolicyRule {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	generated := map[string]map[role][]rbacv1.PolicyRule{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		generated[name] = map[role][]rbacv1.PolicyRule{}
		for document := range strings.SplitSeq(string(text), "---\n") {
			var r rbacv1.ClusterRole // A ClusterRole has all fields of a Role.
			if err := sigsyaml.Unmarshal([]byte(document), &r); err != nil {
				t.Fatal(err)
			}
			if r.Kind != "" {
				generated[name][role{r.Kind, r.Namespace, r.Name}] = r.Rules
			}
		}
	}
	return generated
}

// boundRoles returns the roles that are bound to the controller's service account.
func boundRoles(t *testing.T, all chart.Objects) map[role][]rbacv1.PolicyRule {
	t.Helper()
	subject := rbacv1.Subject{Kind: "ServiceAccount", Name: into[corev1.ServiceAccount](t, all, "ServiceAccount").Name, Namespace: controller.Namespace}
	roles, bound := map[role][]rbacv1.PolicyRule{}, map[role][]rbacv1.PolicyRule{}
	for _, o := range all {
		convert := func(into any) {
			if err := chart.Convert(o, into); err != nil {
				t.Fatal(err)
			}
		}
		switch o.GetKind() {
		case "ClusterRole", "Role":
			var r rbacv1.ClusterRole
			convert(&r)
			roles[role{o.GetKind(), o.GetNamespace(), o.GetName()}] = r.Rules
		case "ClusterRoleBinding", "RoleBinding":
			var binding rbacv1.RoleBinding
			convert(&binding)
			if diff := cmp.Diff([]rbacv1.Subject{subject}, binding.Subjects); diff != "" {
				t.Errorf("%s %s: %s", o.GetKind(), o.GetName(), diff)
			}
			bound[role{binding.RoleRef.Kind, o.GetNamespace(), binding.RoleRef.Name}] = nil
		}
	}
	for r := range bound {
		bound[r] = roles[r]
	}
	for r := range roles {
		// Administrators bind the roles for users.
		if _, ok := bound[r]; ok == (r.name == controller.Name+"-viewer" || r.name == controller.Name+"-view") {
			t.Errorf("%v is bound: %t", r, ok)
		}
	}
	return bound
}
