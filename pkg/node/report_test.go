package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/metrics"
	"karve.sh/karve/pkg/node/plugin"
)

func TestReplicasAreCountedByContainerAndGPU(t *testing.T) {
	t.Parallel()
	holders := []plugin.Holder{
		{Pod: "team/a", Container: "main", Devices: []string{"GPU-0::0", "GPU-0::3", "GPU-1::1"}},
		{Pod: "team/a", Container: "sidecar", Devices: []string{"GPU-1::2"}},
		{Pod: "team/b", Container: "main", Devices: []string{"GPU-2"}},
		{Pod: "team/a", Container: "main", Devices: []string{"GPU-0::5"}}, // The successor of a pod that ends.
	}
	want := []metrics.Held{
		{Namespace: "team", Pod: "a", Container: "main", UUID: "GPU-0", Replicas: 3},
		{Namespace: "team", Pod: "a", Container: "main", UUID: "GPU-1", Replicas: 1},
		{Namespace: "team", Pod: "a", Container: "sidecar", UUID: "GPU-1", Replicas: 1},
		{Namespace: "team", Pod: "b", Container: "main", UUID: "GPU-2", Replicas: 1},
	}
	if diff := cmp.Diff(want, heldBy(holders)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
