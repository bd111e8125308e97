package sharing_test

import (
	"testing"

	"karve.sh/karve/pkg/node/sharing"
)

// FuzzRead checks that no input makes Read panic, and that each GPU is in a resource.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", "version: v1", recipeDefault, recipeShared, "[", "a: &a [*a]", "sharing: {timeSlicing: }",
		"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2, devices: [0, '1:2', GPU-00000000-0000-0000-0000-000000000000]}]}}",
		"sharing: {mps: {failRequestsGreaterThanOne: false, resources: [{name: gpu, replicas: 2, devices: 3, rename: x}]}}",
		"flags: {gfd: {sleepInterval: infinite, oneshot: true}, plugin: {deviceListStrategy: [envvar, cdi-cri]}}\nimex: {channelIDs: [0], required: true}",
		"sharing: {memorySlots: {slots: [{sizeMiB: 2048, count: 3}, {sizeMiB: 4096, count: 1}], reserveMiB: 512, enforcement: None}}",
		"resources: {gpus: [{pattern: '*', name: gpu}], mig: [{pattern: 1g, name: mig-1g}]}", "flags: {gfd: {sleepInterval: 1000}, plugin: {}}",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, strict bool) {
		config, _, err := sharing.Read(data, strict)
		if err != nil {
			return
		}
		rs, err := config.Resources(gpus(3))
		if err != nil {
			return
		}
		seen, sizes := 0, max(1, len(config.Sharing.Slots.SizesMiB))
		for _, r := range rs {
			seen += len(r.GPUs)
		}
		if seen != 3*sizes {
			t.Fatalf("3 GPUs are in resources %d times: %v", seen, rs)
		}
	})
}
