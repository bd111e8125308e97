package machines

import (
	"encoding/base64"
	"strings"
	"testing"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/aws/karpenter-provider-aws/pkg/providers/amifamily/bootstrap"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// script returns the user data that Karpenter generates.
func script(t *testing.T, b bootstrap.Bootstrapper) string {
	t.Helper()
	encoded, err := b.Script(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return string(plain)
}

// TestMachineReadsUserDataFromKarpenter reads user data from Karpenter's own generators.
func TestMachineReadsUserDataFromKarpenter(t *testing.T) {
	t.Parallel()
	options := bootstrap.Options{
		ClusterName: "karve", ClusterEndpoint: "https://cluster.invalid", ClusterCIDR: new("10.100.0.0/16"), CABundle: new("Y2E="),
		KubeletConfig:         &ec2v1.ParsedKubeletConfig{MaxPods: new(intstr.FromInt32(29)), SystemReserved: map[string]string{"cpu": "100m"}},
		UnparsedKubeletConfig: ec2v1.KubeletConfiguration{"maxPods": ec2v1.JSONValue(29), "systemReserved": ec2v1.JSONValue(map[string]string{"cpu": "100m"})},
		Taints: []corev1.Taint{
			{Key: "nvidia.com/gpu.shared", Value: "a", Effect: corev1.TaintEffectNoSchedule},
			{Key: "karve.sh/replicas-not-ready", Effect: corev1.TaintEffectNoSchedule},
			{Key: "karpenter.sh/unregistered", Effect: corev1.TaintEffectNoExecute},
		},
		Labels: map[string]string{"karpenter.sh/nodepool": "gpu-shared", "karpenter.sh/capacity-type": "on-demand", "example.com/empty": ""},
	}
	want := settings{labels: options.Labels, taints: options.Taints, maxPods: 29}
	for name, b := range map[string]func(bootstrap.Options) bootstrap.Bootstrapper{
		"nodeadm":      func(o bootstrap.Options) bootstrap.Bootstrapper { return bootstrap.Nodeadm{Options: o} },
		"Bottlerocket": func(o bootstrap.Options) bootstrap.Bootstrapper { return bootstrap.Bottlerocket{Options: o} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := boot(script(t, b(options)))
			if err != nil {
				t.Fatal(err)
			}
			byKey := cmpopts.SortSlices(func(a, b corev1.Taint) bool { return a.Key < b.Key })
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(settings{}), byKey); diff != "" {
				t.Errorf("(-what Karpenter wrote +what the machine read)\n%s", diff)
			}
		})
	}
	t.Run("nodeadm after a user script and configuration", func(t *testing.T) {
		t.Parallel()
		o := options
		o.CustomUserData = new("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"X\"\n\n--X\nContent-Type: text/x-shellscript; charset=\"us-ascii\"\n\n#!/bin/sh\n\n" +
			"--X\nContent-Type: application/node.eks.aws\n\nspec:\n  kubelet:\n    config: {maxPods: 3}\n    flags: [--node-labels=example.com/mine=1]\n\n--X--\n")
		got, err := boot(script(t, bootstrap.Nodeadm{Options: o}))
		if err != nil {
			t.Fatal(err)
		}
		if got.labels["example.com/mine"] != "1" || got.labels["karpenter.sh/nodepool"] != "gpu-shared" || got.maxPods != 29 {
			t.Errorf("read %+v", got)
		}
	})
}

func TestInvalidUserDataIsRefused(t *testing.T) {
	t.Parallel()
	const head = "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n--//\nContent-Type: application/node.eks.aws\n\n"
	for name, data := range map[string]string{
		"a script":                      "#!/bin/sh\necho hello\n",
		"a MIME document without parts": "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n",
		"a type without a boundary":     "MIME-Version: 1.0\nContent-Type: ;\n\n",
		"a NodeConfig that is not YAML": head + "spec: [\n--//--\n",
		"a label without a value":       head + "spec:\n  kubelet:\n    flags: [--node-labels=a]\n--//--\n",
		"a taint without an effect":     "[settings.kubernetes.node-taints]\nkey = [\"value\"]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if s, err := boot(data); err == nil {
				t.Errorf("it was read as %+v", s)
			}
		})
	}
}

// FuzzBoot checks that any user data is either read, or refused with an error that says which part is invalid.
func FuzzBoot(f *testing.F) {
	f.Add("[settings.kubernetes.node-taints]\nkey = [\"value:NoSchedule\"]\n")
	f.Add("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"//\"\n\n--//\nContent-Type: application/node.eks.aws\n\nspec:\n  kubelet:\n    flags:\n    - --node-labels=\"a=b,c=d\"\n--//--\n")
	f.Fuzz(func(t *testing.T, data string) {
		if _, err := boot(data); err != nil && !strings.HasPrefix(err.Error(), "reading ") {
			t.Errorf("refused with %q", err)
		}
	})
}
