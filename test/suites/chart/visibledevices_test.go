package chart_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestPolicyRefusesPodsThatNameTheirGPUs uses a real API server.
func TestPolicyRefusesPodsThatNameTheirGPUs(t *testing.T) {
	cluster.Require(t)
	if all := objects(t, needed).Kind("ValidatingAdmissionPolicy"); len(all) == 0 {
		t.Fatal("there is no policy at all")
	} else {
		for _, o := range all {
			if strings.HasSuffix(o.GetName(), "-visible-devices") {
				t.Error("the policy is there although nobody asked for it")
			}
		}
	}
	k, err := karve.Client(server)
	if err != nil {
		t.Fatal(err)
	}
	namespace := func(name string, labels map[string]string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if err := k.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	namespace("tenant", nil)
	namespace("monitoring", map[string]string{"karve.sh/visible-devices": "allowed"})
	namespace("karve-node", nil)
	for _, o := range objects(t, needed, "--set=admissionPolicy.visibleDevices=true,nominations.enabled=false") {
		if strings.HasSuffix(o.GetName(), "-visible-devices") {
			create(t, k, o)
			t.Cleanup(func() {
				if err := k.Delete(context.WithoutCancel(t.Context()), o); err != nil {
					t.Error(err)
				}
			})
		}
	}
	env := func(e ...corev1.EnvVar) corev1.Container { return corev1.Container{Name: "main", Image: "app", Env: e} }
	named := func(value string) corev1.EnvVar { return corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", Value: value} }
	from := corev1.EnvVar{Name: "NVIDIA_VISIBLE_DEVICES", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['gpus']"}}}
	try := func(namespace string, init bool, c corev1.Container) error {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "names-gpus"}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
		if init {
			c.Name = "init"
			pod.Spec.InitContainers, pod.Spec.Containers = []corev1.Container{c}, []corev1.Container{env()}
		}
		return k.Create(t.Context(), pod, client.DryRunAll)
	}
	for deadline := time.Now().Add(time.Minute); !apierrors.IsForbidden(try("tenant", false, env(named("all")))); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the policy is not in force")
		}
	}
	for name, c := range map[string]struct {
		namespace string
		init      bool
		container corev1.Container
		refused   bool
	}{
		"all GPUs":                        {"tenant", false, env(named("all")), true},
		"a GPU":                           {"tenant", false, env(corev1.EnvVar{Name: "A"}, named("0")), true},
		"from a label":                    {"tenant", false, env(from), true},
		"in an init container":            {"tenant", true, env(named("all")), true},
		"none":                            {"tenant", false, env(named("none")), false},
		"void":                            {"tenant", false, env(named("void")), false},
		"empty":                           {"tenant", false, env(named("")), false},
		"no variable":                     {"tenant", false, env(), false},
		"another variable":                {"tenant", false, env(corev1.EnvVar{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "all"}), false},
		"in an exempt namespace":          {"monitoring", false, env(named("all")), false},
		"in the namespace of the agents":  {"karve-node", false, env(named("all")), false},
		"in an init container, elsewhere": {"monitoring", true, env(named("all")), false},
	} {
		if err := try(c.namespace, c.init, c.container); c.refused != apierrors.IsForbidden(err) || err != nil && !c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "debugged"}, Spec: corev1.PodSpec{Containers: []corev1.Container{env()}}}
	create(t, k, pod)
	t.Cleanup(func() { _ = k.Delete(context.WithoutCancel(t.Context()), pod) })
	pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "app", Env: []corev1.EnvVar{named("all")}}}}
	if err := k.SubResource("ephemeralcontainers").Update(t.Context(), pod); !apierrors.IsForbidden(err) {
		t.Errorf("in an ephemeral container: %v", err)
	}
}
