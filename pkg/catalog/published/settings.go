package published

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/prices"
)

// Settings are the settings of the controller that decide what others say about its nodes.
type Settings struct {
	SettleDuration  metav1.Duration `json:"settleDuration"`
	ReplicasTimeout metav1.Duration `json:"replicasTimeout"`
	NotReadyTimeout metav1.Duration `json:"notReadyTimeout"`
	GPUFaultTimeout metav1.Duration `json:"gpuFaultTimeout"`
	// PriorityCutoff is the lowest priority of pods for which machines are launched. It is nil if they are launched for all.
	PriorityCutoff *int32        `json:"priorityCutoff,omitempty"`
	Prices         []prices.Rule `json:"prices,omitempty"`
	Reads          Reads         `json:"reads"`
}

// Reads are the kinds that the controller reads if the API server serves them. A controller that does not publish them may read them all.
type Reads struct {
	DRA                  bool `json:"dra"`
	CapacityBuffers      bool `json:"capacityBuffers"`
	ProvisioningRequests bool `json:"provisioningRequests"`
}

// DefaultSettings returns the defaults of the controller's flags.
func DefaultSettings() Settings {
	of := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	return Settings{
		SettleDuration: of(10 * time.Second), ReplicasTimeout: of(10 * time.Minute), NotReadyTimeout: of(30 * time.Minute), GPUFaultTimeout: of(10 * time.Minute),
		Reads: Reads{DRA: true, CapacityBuffers: true, ProvisioningRequests: true},
	}
}

// SettingsIn returns the settings in a ConfigMap. It returns the defaults and false if the controller that wrote the ConfigMap did not publish them, or not
// all of them.
func SettingsIn(m *corev1.ConfigMap) (Settings, bool) {
	s := Settings{Reads: DefaultSettings().Reads}
	if err := json.Unmarshal([]byte(m.Data[settingsKey]), &s); err != nil {
		return DefaultSettings(), false
	}
	if min(s.SettleDuration.Duration, s.ReplicasTimeout.Duration, s.NotReadyTimeout.Duration, s.GPUFaultTimeout.Duration) <= 0 {
		return DefaultSettings(), false
	}
	return s, true
}
