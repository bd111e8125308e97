package chart_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	awsv1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/pelletier/go-toml/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
)

// recipe is an unchanged values file for the chart of NVIDIA's device plugin.
const recipe = "--values=testdata/nvdp.yml"

const metricsOfPods = "--set=metrics.pods=true"

var node = chart.Chart{Name: "karve/charts/karve-node", Release: "karve-node", Namespace: "karve-system"}

// agentImage is the value that the agent's chart requires.
const agentImage = "--set=image.repository=registry.example.com/karve/node"

func template(t *testing.T, options ...string) chart.Objects {
	t.Helper()
	objects, err := node.Template(t.Context(), append([]string{agentImage}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func into[T any](t *testing.T, objects chart.Objects, kind string) T {
	t.Helper()
	var object T
	if err := objects.Into(kind, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func daemonSet(t *testing.T, options ...string) appsv1.DaemonSet {
	t.Helper()
	return into[appsv1.DaemonSet](t, template(t, options...), "DaemonSet")
}

func env(d appsv1.DaemonSet, name string) string {
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	return ""
}

// runsOn reports whether a pod may run on a node with the label.
func runsOn(t *testing.T, pod *corev1.Pod, label string) bool {
	t.Helper()
	key, value, _ := strings.Cut(label, "=")
	got, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{key: value}}})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAgentChartPassesLint(t *testing.T) {
	for _, options := range [][]string{nil, {recipe}, {"--set=image.digest=sha256:" + strings.Repeat("0", 64), "--set=metrics.dcgm=true"}} {
		if err := node.Lint(t.Context(), append(options, agentImage)...); err != nil {
			t.Errorf("%q: %v", options, err)
		}
	}
}

func TestRecipeValuesWorkUnchanged(t *testing.T) {
	objects := template(t, recipe)
	d, configs := into[appsv1.DaemonSet](t, objects, "DaemonSet"), into[corev1.ConfigMap](t, objects, "ConfigMap")
	for name, replicas := range map[string]int{"default": 1, "shared_gpu": 10} {
		config, warnings, err := sharing.Read([]byte(configs.Data[name]), true)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %q", name, err, warnings)
		}
		if promise, alike := config.Promise(); !alike || !promise.Equal(sharing.Promise{Resource: nodecontract.ResourceGPU, Replicas: replicas}) {
			t.Errorf("%s promises %v", name, promise)
		}
	}
	pod := d.Spec.Template.Spec
	if got := pod.NodeSelector; len(got) != 1 || got["jina.ai/gpu-type"] != "nvidia" {
		t.Errorf("the node selector is %v", got)
	}
	if pod.Affinity != nil {
		t.Errorf("the nodes that the recipe picks have none of the labels in %v", pod.Affinity)
	}
	dir := env(d, "CONFIG_FILE_SRCDIR")
	i := slices.IndexFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir })
	if i < 0 {
		t.Fatalf("nothing is mounted at %q", dir)
	}
	for _, v := range pod.Volumes {
		if v.Name == pod.Containers[0].VolumeMounts[i].Name && (v.ConfigMap == nil || v.ConfigMap.Name != configs.Name) {
			t.Errorf("the volume is %v, want the ConfigMap %s", v, configs.Name)
		}
	}
}

func TestAgentRunsOnGPUNodesAndSurvivesDrain(t *testing.T) {
	pod := corev1.Pod{Spec: daemonSet(t).Spec.Template.Spec}
	for label, want := range map[string]bool{
		v1alpha1.GPUNodeClassLabel + "=shared":                     true,
		"nvidia.com/gpu.present=true":                              true,
		"nvidia.com/gpu.present=false":                             false,
		"karpenter.k8s.aws/instance-gpu-manufacturer=nvidia":       true,
		"karpenter.k8s.aws/instance-gpu-manufacturer=amd":          false,
		"node.kubernetes.io/instance-type=g4dn.xlarge":             false,
		"kubernetes.io/os=linux":                                   false,
		"karpenter.sh/nodepool=a-pool-that-has-no-gpus-whatsoever": false,
	} {
		if got := runsOn(t, &pod, label); got != want {
			t.Errorf("a node with %s: %t", label, got)
		}
	}
	if !slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		return t.Operator == corev1.TolerationOpExists && t.Key == "" && t.Effect == "" && t.TolerationSeconds == nil
	}) {
		t.Errorf("not all taints are tolerated: %v", pod.Spec.Tolerations)
	}
	if pod.Spec.PriorityClassName != "system-node-critical" {
		t.Errorf("the priority is %q", pod.Spec.PriorityClassName)
	}
}

func TestAgentHasMinimalHostAccess(t *testing.T) {
	for _, options := range [][]string{nil, {recipe}, {metricsOfPods}} {
		pod, ofPods := daemonSet(t, options...).Spec.Template.Spec, slices.Contains(options, metricsOfPods)
		if pod.HostPID != ofPods || pod.HostNetwork || pod.HostIPC || len(pod.InitContainers) > 0 || len(pod.Containers) != 1 {
			t.Errorf("host PIDs %t, network %t, IPC %t, %d containers", pod.HostPID, pod.HostNetwork, pod.HostIPC, len(pod.Containers)+len(pod.InitContainers))
		}
		if p := pod.SecurityContext.SeccompProfile; p == nil || p.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("the seccomp profile is %v", p)
		}
		c := pod.Containers[0]
		s := c.SecurityContext
		if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.SeccompProfile != nil || len(s.Capabilities.Add) > 0 ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("the security context is %v", s)
		}
		readOnly := map[string]bool{}
		for _, m := range c.VolumeMounts {
			readOnly[m.Name] = m.ReadOnly
		}
		host := map[string]bool{"/var/lib/kubelet/device-plugins": false, "/var/lib/kubelet/pod-resources": true, "/var/lib/karve": false, "/dev/null": false, "/etc/nvidia-container-runtime": true}
		if ofPods {
			host["/var/log/pods"], host["/var/log/containers"] = true, true
		}
		for _, v := range pod.Volumes {
			switch {
			case v.HostPath != nil:
				if want, known := host[v.HostPath.Path]; !known || readOnly[v.Name] != want {
					t.Errorf("%s of the machine is mounted, read-only: %t", v.HostPath.Path, readOnly[v.Name])
				}
			case v.ConfigMap == nil || !readOnly[v.Name]:
				t.Errorf("the volume %v", v)
			}
		}
	}
}

func TestAgentHasMinimalRBAC(t *testing.T) {
	objects := template(t)
	for kind, want := range map[string]map[string]string{
		"ClusterRole": {"nodes": "get,patch,watch", "nodes/status": "patch", "resourceslices": "list,watch"},
		"Role":        {"events": "create"},
	} {
		role := into[rbacv1.ClusterRole](t, objects, kind) // A ClusterRole has all fields of a Role.
		got := map[string]string{}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				got[resource] = strings.Join(slices.Sorted(slices.Values(r.Verbs)), ",")
			}
		}
		if len(got) != len(want) {
			t.Errorf("the %s allows %v", kind, got)
		}
		for resource, verbs := range want {
			if got[resource] != verbs {
				t.Errorf("the %s allows to %s %s, want %s", kind, got[resource], resource, verbs)
			}
		}
	}
}

// mounts returns the host paths mounted in the agent's container, with "rw" or "ro".
func mounts(d appsv1.DaemonSet) map[string]string {
	paths, out := map[string]string{}, map[string]string{}
	for _, v := range d.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
		if path, ok := paths[m.Name]; ok {
			out[path+" at "+m.MountPath] = map[bool]string{true: "ro", false: "rw"}[m.ReadOnly]
		}
	}
	return out
}

const (
	allGPUs = "/dev/null at /var/run/nvidia-container-devices/all"
	// A runtime that ignores the environment gives the agent its GPUs because of this mount, and others ignore it.
	runtimeConfig = "/etc/nvidia-container-runtime at /etc/nvidia-container-runtime"
	driverRoot    = "/run/nvidia/driver at /driver-root"
	etcCDI        = "/etc/cdi at /etc/cdi"
	runCDI        = "/var/run/cdi at /var/run/cdi"
)

func TestAgentMountsWhatItsStrategiesNeed(t *testing.T) {
	const inMap = "--set-string=config.map.a=version: v1\nflags: {plugin: {deviceListStrategy: "
	for name, c := range map[string]struct {
		options []string
		want    map[string]string
	}{
		"envvar":                            {nil, nil},
		"volume-mounts":                     {[]string{"--set=deviceListStrategy=volume-mounts"}, nil},
		"volume-mounts in a map":            {[]string{inMap + "volume-mounts}}"}, nil},
		"envvar over volume-mounts":         {[]string{inMap + "volume-mounts}}", "--set=deviceListStrategy=envvar"}, nil},
		"CDI":                               {[]string{"--set=deviceListStrategy=cdi-cri"}, map[string]string{etcCDI: "ro", runCDI: "ro"}},
		"CDI in a map":                      {[]string{inMap + "cdi-annotations}}"}, map[string]string{etcCDI: "ro", runCDI: "ro"}},
		"an existing ConfigMap":             {[]string{"--set=config.name=mine"}, map[string]string{etcCDI: "ro", runCDI: "ro"}},
		"an existing ConfigMap with envvar": {[]string{"--set=config.name=mine", "--set=deviceListStrategy=envvar"}, nil},
		"both":                              {[]string{`--set=deviceListStrategy=volume-mounts\,cdi-cri`}, map[string]string{etcCDI: "ro", runCDI: "ro"}},
		"the driver container":              {[]string{"--set=nvidiaDriverRoot=/run/nvidia/driver"}, map[string]string{driverRoot: "ro"}},
		"the driver root of the host":       {[]string{"--set=nvidiaDriverRoot=/"}, nil},
	} {
		got := mounts(daemonSet(t, c.options...))
		for _, always := range []string{"/var/lib/kubelet/device-plugins at /var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources at /var/lib/kubelet/pod-resources", "/var/lib/karve at /var/lib/karve", allGPUs, runtimeConfig} {
			if got[always] == "" {
				t.Errorf("%s: no %s", name, always)
			}
			delete(got, always)
		}
		if !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestAgentIsPrivilegedOnlyForCPUManager(t *testing.T) {
	for _, options := range [][]string{nil, {"--set=deviceListStrategy=volume-mounts"}, {"--set=passDeviceSpecs=true"}, {"--set=compatWithCPUManager=false"}} {
		if s := daemonSet(t, options...).Spec.Template.Spec.Containers[0].SecurityContext; *s.Privileged || *s.AllowPrivilegeEscalation || len(s.Capabilities.Add) > 0 {
			t.Errorf("%q: %v", options, s)
		}
	}
	d := daemonSet(t, "--set=compatWithCPUManager=true")
	// The API server rejects a privileged container with allowPrivilegeEscalation set to false.
	if s := d.Spec.Template.Spec.Containers[0].SecurityContext; !*s.Privileged || s.AllowPrivilegeEscalation != nil || !*s.ReadOnlyRootFilesystem {
		t.Errorf("with the CPU manager: %v", s)
	}
	if env(d, "PASS_DEVICE_SPECS") != "true" || env(daemonSet(t), "PASS_DEVICE_SPECS") != "" || env(daemonSet(t, "--set=compatWithCPUManager=true,passDeviceSpecs=false"), "PASS_DEVICE_SPECS") != "false" {
		t.Error("PASS_DEVICE_SPECS is wrong")
	}
	s := daemonSet(t, "--set=securityContext.capabilities.add={SYS_ADMIN},compatWithCPUManager=true").Spec.Template.Spec.Containers[0].SecurityContext
	if s.Privileged != nil || s.RunAsUser != nil || !slices.Equal(s.Capabilities.Add, []corev1.Capability{"SYS_ADMIN"}) {
		t.Errorf("of one's own: %v", s)
	}
}

// TestAgentReplacesBottlerocketPlugin reads examples/bottlerocket. Bottlerocket's container runtime selects GPUs by volume mounts only.
func TestAgentReplacesBottlerocketPlugin(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(root, "examples", "bottlerocket")
	text, err := os.ReadFile(filepath.Join(folder, "nodeclass.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var class awsv1.EC2NodeClass
	if err := sigsyaml.UnmarshalStrict(text, &class); err != nil {
		t.Fatal(err)
	}
	var user struct {
		Settings struct {
			Plugins map[string]map[string]any `toml:"kubelet-device-plugins"`
			Runtime map[string]any            `toml:"nvidia-container-runtime"`
		} `toml:"settings"`
	}
	if err := toml.NewDecoder(strings.NewReader(*class.Spec.UserData)).DisallowUnknownFields().Decode(&user); err != nil {
		t.Fatal(err)
	}
	if p := user.Settings.Plugins["nvidia"]; p["enabled"] != false || p["device-list-strategy"] != sharing.ListVolumeMounts {
		t.Errorf("the plugin's settings are %v", p)
	}
	if r := user.Settings.Runtime; r["visible-devices-as-volume-mounts"] != true || r["visible-devices-envvar-when-unprivileged"] != false {
		t.Errorf("the runtime's settings are %v", r)
	}
	all := objects(t, needed, "--values="+filepath.Join(folder, "values.yaml"))
	if got := mounts(into[appsv1.DaemonSet](t, all, "DaemonSet")); got[allGPUs] == "" {
		t.Errorf("the agent sees no GPUs by a mount: %v", got)
	}
	configs := into[corev1.ConfigMap](t, all, "ConfigMap")
	for name, want := range map[string][]string{"bottlerocket": {sharing.ListVolumeMounts}, "default": {sharing.ListEnvVar}} {
		config, warnings, err := sharing.Read([]byte(configs.Data[name]), true)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if s, err := config.Settings(); err != nil || !slices.Equal(s.DeviceLists, want) {
			t.Errorf("%s: %q, %v", name, s.DeviceLists, err)
		}
	}
}

// TestAgentKnowsItsEnvironmentVariables compares the chart with the program's help text.
func TestAgentKnowsItsEnvironmentVariables(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	program := filepath.Join(bin, "karve-node")
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "build"), "node")
	build.Env = append(os.Environ(), "OUT="+bin, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help, err := exec.CommandContext(t.Context(), program, "--help").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	options := []string{
		recipe, "--set=config.default=default", "--set=migStrategy=none", "--set=failOnInitError=false", "--set=passDeviceSpecs=true",
		"--set=deviceListStrategy=envvar", "--set=deviceIDStrategy=uuid", "--set=nvidiaDriverRoot=/", "--set=nvidiaDevRoot=/",
		"--set=gdrcopyEnabled=true,gdsEnabled=true,mofedEnabled=false", "--set=metrics.dcgm=true", metricsOfPods,
	}
	var given []string
	for _, v := range daemonSet(t, options...).Spec.Template.Spec.Containers[0].Env {
		given = append(given, v.Name)
		if runtime := strings.HasPrefix(v.Name, "NVIDIA_VISIBLE") || strings.HasPrefix(v.Name, "NVIDIA_DRIVER_CAP"); !runtime && !strings.Contains(string(help), "["+v.Name+"]") {
			t.Errorf("the agent does not know %s", v.Name)
		}
	}
	for _, name := range []string{"DEFAULT_CONFIG", "MIG_STRATEGY", "FAIL_ON_INIT_ERROR", "PASS_DEVICE_SPECS", "DEVICE_LIST_STRATEGY", "DEVICE_ID_STRATEGY", "NVIDIA_DRIVER_ROOT", "NVIDIA_DEV_ROOT", "GDRCOPY_ENABLED", "GDS_ENABLED", "MOFED_ENABLED"} {
		if !slices.Contains(given, name) {
			t.Errorf("%s is not given", name)
		}
	}
}

func TestInvalidAgentValuesAreRefused(t *testing.T) {
	for option, why := range map[string]string{
		"--set=nodeselector.a=b":                                 "nodeselector",
		"--set=config.default=shared_gpu":                        "there are none",
		"--set=config.name=mine,config.map.a=version: v1":        "exclude each other",
		"--set=config.default=b,config.map.a=version: v1":        "there is a",
		"--set=serviceAccount.create=false":                      "serviceAccount.name is needed",
		"--set=deviceListStrategy=smoke":                         "deviceListStrategy",
		"--set=logLevel=loud":                                    "logLevel",
		"--set=image.repository=":                                "image.repository is required",
		"--set=metrics.port=0":                                   "port",
		"--set=failOnInitError=perhaps":                          "failOnInitError",
		"--kube-version=1.29.0":                                  "kubeVersion",
		"--set=serviceAccount.create=false,serviceAccount.name=": "serviceAccount.name is needed",
	} {
		if _, err := node.Template(t.Context(), agentImage, option); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want something about %q", option, err, why)
		}
	}
}
