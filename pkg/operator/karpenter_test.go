package operator

import (
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"karve.sh/karve/pkg/cloud/aws/instancetype"
)

// deployed returns a Deployment of Karpenter with arguments and variables, as FLAG=VALUE.
func deployed(namespace string, args []string, variables ...string) appsv1.Deployment {
	container := corev1.Container{Name: "controller", Args: args}
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		container.Env = append(container.Env, corev1.EnvVar{Name: name, Value: value})
	}
	d := appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "karpenter", Labels: map[string]string{"app.kubernetes.io/name": "karpenter"}}}
	d.Spec.Template.Spec.Containers = []corev1.Container{container}
	return d
}

func stopped(d appsv1.Deployment) appsv1.Deployment {
	d.Spec.Replicas = new(int32(0))
	return d
}

func TestOptionsAreThoseOfKarpenter(t *testing.T) {
	t.Parallel()
	standard := instancetype.DefaultOptions
	chart := deployed("kube-system", nil, "CLUSTER_NAME=prod", "VM_MEMORY_OVERHEAD_PERCENT=0.06", "RESERVED_ENIS=1", "ISOLATED_VPC=true")
	ofChart := instancetype.Options{VMMemoryOverheadPercent: 0.06, ReservedENIs: 1, IsolatedVPC: true}
	for name, tc := range map[string]struct {
		deployments []appsv1.Deployment
		stated      map[string]string
		want        instancetype.Options
		problem     string
	}{
		"none":                 {want: standard},
		"variables":            {deployments: []appsv1.Deployment{chart}, want: ofChart},
		"empty variables":      {deployments: []appsv1.Deployment{deployed("a", nil, "RESERVED_ENIS=", "ISOLATED_VPC=")}, want: standard},
		"no containers":        {deployments: []appsv1.Deployment{{}}, want: standard},
		"a flag over variable": {deployments: []appsv1.Deployment{deployed("a", []string{"--reserved-enis=2"}, "RESERVED_ENIS=1")}, want: instancetype.Options{VMMemoryOverheadPercent: 0.075, ReservedENIs: 2}},
		"ours over Karpenter's": {
			deployments: []appsv1.Deployment{chart}, stated: map[string]string{"reserved-enis": "0"},
			want: instancetype.Options{VMMemoryOverheadPercent: 0.06, IsolatedVPC: true},
		},
		"an old one without replicas": {deployments: []appsv1.Deployment{stopped(deployed("a", nil, "RESERVED_ENIS=3")), chart}, want: ofChart},
		"two that agree":              {deployments: []appsv1.Deployment{chart, chart}, want: ofChart},
		"two that differ": {
			deployments: []appsv1.Deployment{chart, deployed("other", nil)}, want: ofChart,
			problem: "Deployment other/karpenter has other options than Deployment kube-system/karpenter, which Karve goes by",
		},
		"a value that Karpenter would refuse": {
			deployments: []appsv1.Deployment{deployed("a", nil, "RESERVED_ENIS=one", "VM_MEMORY_OVERHEAD_PERCENT=7.5")}, want: standard,
			problem: `Deployment a/karpenter: invalid value "one" for --reserved-enis: strconv.Atoi: parsing "one": invalid syntax
invalid value "7.5" for --vm-memory-overhead-percent: it must be a fraction of 1, such as 0.075`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := optionsOf(tc.deployments, tc.stated)
			if got != tc.want {
				t.Errorf("options %+v, want %+v", got, tc.want)
			}
			if text := errorText(err); text != tc.problem {
				t.Errorf("problem %q, want %q", text, tc.problem)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestFlagsOfKarpenterAreValidated(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]string{
		"--vm-memory-overhead-percent=7.5": "it must be a fraction of 1, such as 0.075",
		"--vm-memory-overhead-percent=NaN": "it must be a fraction of 1, such as 0.075",
		"--reserved-enis=-1":               "it must not be less than 0",
		"--isolated-vpc=perhaps":           "invalid syntax",
	} {
		var o Options
		fs := flag.NewFlagSet("controller", flag.ContinueOnError)
		fs.SetOutput(io.Discard)
		o.AddFlags(fs)
		if err := fs.Parse([]string{arg}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", arg, err, want)
		}
	}
}

func TestControllerRestartsWhenKarpenterHasOtherOptions(t *testing.T) {
	t.Parallel()
	d := deployed("kube-system", nil, "RESERVED_ENIS=1")
	c := fake.NewClientBuilder().WithObjects(&d).Build()
	synctest.Test(t, func(t *testing.T) {
		k := &karpenterOptions{reader: c, clock: clock.RealClock{}}
		var err error
		if k.start, err = k.read(t.Context()); err != nil || k.start.ReservedENIs != 1 {
			t.Fatalf("read %+v, %v", k.start, err)
		}
		ended := make(chan error, 1)
		go func() { ended <- k.Start(t.Context()) }()
		synctest.Wait()
		d.Spec.Template.Spec.Containers[0].Env[0].Value = "2"
		if err := c.Update(t.Context(), &d); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, errKarpenterChanged) {
			t.Errorf("got %v", err)
		}
	})
}

func TestOptionsWithoutPermissionAreKarpentersDefaults(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", errors.New("no"))
	for err, fails := range map[error]bool{forbidden: false, errors.New("connection refused"): true} {
		c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err }}).Build()
		got, problem := (&karpenterOptions{reader: c, stated: map[string]string{"reserved-enis": "1"}}).read(t.Context())
		if (problem != nil) != fails {
			t.Errorf("%v: got %v", err, problem)
		}
		if want := (instancetype.Options{VMMemoryOverheadPercent: 0.075, ReservedENIs: 1}); !fails && got != want {
			t.Errorf("options %+v, want %+v", got, want)
		}
	}
}
