package prometheus

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	sigsyaml "sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	nodemetrics "karve.sh/karve/pkg/node/metrics"
)

// agentWithProcesses serves the metrics of the agent on a machine whose GPU a pod of examples/deployment.yaml uses, and returns its address. It is the agent's exporter alone: a test cannot put
// processes into the cgroups of pods, so what the agent reads of them are files.
func agentWithProcesses(t *testing.T) string {
	t.Helper()
	const pid, uid = 4711, "1f0e3dad-9990-4c1b-8b7d-0b61a4ad2c57"
	container := strings.Repeat("c", 64)
	dir := t.TempDir()
	process := filepath.Join(dir, "proc", fmt.Sprint(pid))
	for _, folder := range []string{process, filepath.Join(dir, "log/pods/default_inference-6d4b75cb6d-x2k4p_"+uid+"/inference")} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(process, "cgroup"), []byte("0::/kubepods/burstable/pod"+uid+"/"+container+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	device := gputest.H100s(1)[0] // The other agent has T4s.
	divided := gputest.Divided(2, 2, "3g.20gb", 19968)[1]
	library := gputest.New(device, divided)
	if _, err := library.Init(); err != nil {
		t.Fatal(err)
	}
	library.SetUsage(device.UUID, gpu.Usage{GPUPercent: 40, Processes: []gpu.Process{{PID: pid, MemoryMiB: 1000, SMPercent: 29}}})
	replicas := map[string]nodemetrics.Replicas{}
	for _, instance := range divided.Instances {
		replicas[instance.UUID] = nodemetrics.Replicas{Total: 3, Allocated: 1}
		library.SetUsage(instance.UUID, gpu.Usage{MemoryUsedMiB: 800, GPUPercent: -1})
	}
	s := httptest.NewServer(nodemetrics.New(nodemetrics.Config{
		Library: library, Pods: nodemetrics.LogFolders{Root: filepath.Join(dir, "log")}, Proc: filepath.Join(dir, "proc"),
		Replicas: func() map[string]nodemetrics.Replicas { return replicas },
	}))
	t.Cleanup(s.Close)
	return host(s.URL)
}

// kedaScalesByWhatPodsUse asks what KEDA asks with the trigger of the example, of which no field may be unknown.
func (s *server) kedaScalesByWhatPodsUse(t *testing.T) {
	var object struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			ScaleTargetRef struct {
				Name string `json:"name"`
			} `json:"scaleTargetRef"`
			MinReplicaCount int32 `json:"minReplicaCount"`
			MaxReplicaCount int32 `json:"maxReplicaCount"`
			Triggers        []struct {
				Type     string `json:"type"`
				Metadata struct {
					ServerAddress string `json:"serverAddress"`
					Query         string `json:"query"`
					Threshold     string `json:"threshold"` // KEDA refuses numbers.
				} `json:"metadata"`
			} `json:"triggers"`
		} `json:"spec"`
	}
	text := must[[]byte](t)(os.ReadFile(filepath.Join(root(t), "examples/integrations/keda.yaml")))
	if err := sigsyaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatal(err)
	}
	if object.APIVersion != "keda.sh/v1alpha1" || object.Kind != "ScaledObject" || len(object.Spec.Triggers) != 1 || object.Spec.Triggers[0].Type != "prometheus" {
		t.Fatalf("the example is a %s %s with %v", object.APIVersion, object.Kind, object.Spec.Triggers)
	}
	trigger := object.Spec.Triggers[0].Metadata
	if _, err := quantity.ParseQuantity(trigger.Threshold); err != nil {
		t.Errorf("the threshold %s: %v", trigger.Threshold, err)
	}
	answer, err := s.query(trigger.Query)
	if err != nil || len(answer) != 1 || number(answer[0].Value) != 0.29 {
		t.Errorf("%s is %v (%v), want one pod with 0.29", trigger.Query, answer, err)
	}
}
