package dra_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

const small = "nvidia.com/mig-1g.5gb"

// divided returns the configuration for GPUs that are divided into seven instances 1g.5gb with a number of replicas each, as a resource.
func divided(t *testing.T, resource, naming string, replicas int) sharing.Config {
	t.Helper()
	c, err := sharing.FromPromise(sharing.Promise{
		Resource: resource, Replicas: 7 * replicas, MIG: nodecontract.MIG{Profile: "1g.5gb", Count: 7, Naming: naming}, Backend: nodecontract.BackendDRA,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// a100s returns GPUs that are divided into seven instances 1g.5gb.
func a100s(n int) []gpu.Device { return gputest.Divided(n, 7, "1g.5gb", 4864) }

func TestSliceHasEachInstanceWithItsProfileAndGPU(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := a100s(2)
	w.apply(divided(t, small, nodecontract.MIGMixed, 1), gpus...)
	s := w.slice("published", ready(14))
	for i := range s.Spec.Devices {
		if want := deviceOf(gpus[i/7].Instances[i%7].UUID); s.Spec.Devices[i].Name != want {
			t.Errorf("device %d is %s, want %s", i, s.Spec.Devices[i].Name, want)
		}
	}
	device, err := json.Marshal(s.Spec.Devices[8])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"mig-71000001-51ba-5c7e-9f2d-00000000bef0","attributes":{"architecture":{"string":"ampere"},"cudaComputeCapability":{"version":"8.0.0"},` +
		`"cudaDriverVersion":{"version":"13.0.0"},"driverVersion":{"version":"580.65.6"},"index":{"int":1},"parentUUID":{"string":"GPU-5e000001-7c11-4f0e-8a3b-00000000f00e"},` +
		`"productName":{"string":"NVIDIA A100-SXM4-40GB"},"profile":{"string":"1g.5gb"},"resource":{"string":"nvidia.com/mig-1g.5gb"},"uuid":{"string":"MIG-71000001-51ba-5c7e-9f2d-00000000bef0"}},` +
		`"capacity":{"memory":{"value":"4864Mi","requestPolicy":{"default":"0","validRange":{"min":"0","step":"1Mi"}}},` +
		`"replicas":{"value":"1","requestPolicy":{"default":"1","validRange":{"min":"1"}}}},"allowMultipleAllocations":true}`
	if string(device) != want {
		t.Errorf("the device is\n%s\nwant\n%s", device, want)
	}
}

func TestSliceHasInstancesOfSeveralProfiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, err := sharing.FromPromise(sharing.Promise{
		Resource: small, Replicas: 5, Backend: nodecontract.BackendDRA,
		MIG: nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: []nodecontract.MIGInstances{{Profile: "1g.5gb", Count: 3}, {Profile: "2g.10gb", Count: 2}}}}, 1),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.apply(c, gputest.DividedInto(2, gputest.Instances{Count: 3, Profile: "1g.5gb", MemoryMiB: 4864}, gputest.Instances{Count: 2, Profile: "2g.10gb", MemoryMiB: 9856})...)
	s, got := w.slice("published", ready(10)), map[string]int{}
	for _, d := range s.Spec.Devices {
		got[*d.Attributes[nodecontract.DRAResource].String+" "+*d.Attributes[nodecontract.DRAProfile].String+" "+d.Capacity[nodecontract.DRAMemory].Value]++
	}
	if len(got) != 2 || got[small+" 1g.5gb 4864Mi"] != 6 || got["nvidia.com/mig-2g.10gb 2g.10gb 9856Mi"] != 4 {
		t.Errorf("the devices are %v", got)
	}
}

func TestPodsTakeTurnsOnInstancesWithReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := a100s(1)
	w.apply(divided(t, nodecontract.ResourceGPUShared, nodecontract.MIGSingle, 3), gpus...)
	s := w.slice("published", ready(7))
	if d := s.Spec.Devices[0]; *d.Attributes[nodecontract.DRAResource].String != nodecontract.ResourceGPUShared || d.Capacity[nodecontract.DRAReplicas].Value != "3" {
		t.Errorf("the device is %+v", d)
	}
	uuid := gpus[0].Instances[2].UUID
	for i := range 2 {
		if r := w.prepare(w.allocate(fmt.Sprint(i), "r="+deviceOf(uuid))); r.GetError() != "" {
			t.Fatal(r.GetError())
		}
	}
	if got, want := w.driver.IDs("team", "1", deviceOf(uuid), "1-share-0"), []string{uuid + "::1"}; !slices.Equal(got, want) {
		t.Errorf("the second pod holds %v, want %v", got, want)
	}
	if got, want := w.driver.Shares()[uuid], (plugin.Share{Total: 3, Allocated: 2}); !equalShares(got, want) {
		t.Errorf("the share is %+v, want %+v", got, want)
	}
}

func equalShares(a, b plugin.Share) bool {
	return a.Total == b.Total && a.Allocated == b.Allocated && a.Unhealthy == b.Unhealthy && a.Cordoned == b.Cordoned
}

// With each way to tell the container runtime, a container gets what the device plugin gives it.
func TestContainerGetsItsInstances(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "driver", "nvidia-caps"), 0o750); err != nil {
		t.Fatal(err)
	}
	var minors strings.Builder
	for i := 7; i < 14; i++ {
		fmt.Fprintf(&minors, "gpu0/gi%d/access %d\ngpu0/gi%d/ci0/access %d\n", i, 100+i, i, 200+i)
	}
	if err := os.WriteFile(filepath.Join(dir, "driver", "nvidia-caps", "mig-minors"), []byte(minors.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	gpus := a100s(1)
	first, second := gpus[0].Instances[0].UUID, gpus[0].Instances[1].UUID
	for lists, want := range map[string]struct{ edits, names []string }{
		"envvar": {edits: []string{
			"NVIDIA_VISIBLE_DEVICES=" + first + "," + second, "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap107", "/dev/nvidia-caps/nvidia-cap207", "/dev/nvidia-caps/nvidia-cap108", "/dev/nvidia-caps/nvidia-cap208",
		}},
		"cdi-cri": {edits: []string{"NVIDIA_VISIBLE_DEVICES=void"}, names: []string{"nvidia.com/gpu=" + first, "nvidia.com/gpu=" + second}},
	} {
		t.Run(lists, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *dra.Config) { c.Capabilities = mig.Capabilities{Proc: dir} })
			c := divided(t, small, nodecontract.MIGMixed, 1)
			c.Given = map[string][]string{sharing.KeyDeviceLists: {lists}, "flags.plugin.passDeviceSpecs": {"true"}}
			w.apply(c, gpus...)
			r := w.prepare(w.allocate("a", "r="+deviceOf(first), "r="+deviceOf(second)))
			if r.GetError() != "" || len(r.GetDevices()) != 2 {
				t.Fatalf("got %v", r)
			}
			ids := r.GetDevices()[0].GetCdiDeviceIds()
			edits := slices.DeleteFunc(w.specs()[ids[0]], func(e string) bool {
				return strings.HasPrefix(e, "/dev/nvidiactl") || strings.HasPrefix(e, "/dev/nvidia-uvm")
			})
			if !slices.Equal(edits, want.edits) || !slices.Equal(ids[1:], want.names) {
				t.Errorf("edits are %v and CDI devices %v, want %v and %v", edits, ids[1:], want.edits, want.names)
			}
		})
	}
}

// An instance is one device to whoever reads which pod holds it. The record survives the agent, and what divides GPUs reads it before the agent runs.
func TestUnsharedInstanceIsHeldByItsUUID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := a100s(1)
	uuid := gpus[0].Instances[4].UUID
	w.apply(divided(t, small, nodecontract.MIGMixed, 1), gpus...)
	w.prepare(w.allocate("a", "r="+deviceOf(uuid)))
	w.stop()
	if got := dra.Recorded(w.config.Specs)(nodecontract.DRADriver, "team", "a", deviceOf(uuid), "a-share-0"); len(got) != 1 || !strings.HasPrefix(got[0], uuid) {
		t.Errorf("the record says that the pod holds %v", got)
	}
	w.start()
	w.register()
	w.apply(divided(t, small, nodecontract.MIGMixed, 1), gpus...)
	if got := w.driver.IDs("team", "a", deviceOf(uuid), "a-share-0"); !slices.Equal(got, []string{uuid}) {
		t.Errorf("the pod holds %v", got)
	}
	if share := w.driver.Shares()[uuid]; share.Total != 1 || share.Allocated != 1 {
		t.Errorf("the share is %+v", share)
	}
}

func TestBrokenInstanceHasATaintAndSoHaveAllOfABrokenGPU(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := a100s(2)
	w.apply(divided(t, small, nodecontract.MIGMixed, 1), gpus...)
	w.driver.SetHealth(gpus[0].Instances[1].UUID, false)
	s := w.slice("without an instance", ready(13))
	if d := s.Spec.Devices[1]; len(d.Taints) != 1 || d.Taints[0].Key != nodecontract.DRAUnhealthyTaint {
		t.Errorf("the device is %+v", d)
	}
	if r := w.prepare(w.allocate("a", "r="+deviceOf(gpus[0].Instances[1].UUID))); !strings.Contains(r.GetError(), "MIG instance 0:1 (") || !strings.Contains(r.GetError(), "out of service") {
		t.Errorf("preparing it says %q", r.GetError())
	}
	w.driver.SetCordoned(map[string]bool{gpus[1].UUID: true})
	s = w.slice("without a GPU", ready(6))
	if d := s.Spec.Devices[7]; len(d.Taints) != 1 || d.Taints[0].Key != nodecontract.DRACordonedTaint {
		t.Errorf("the device is %+v", d)
	}
	if shares := w.driver.Shares(); !shares[gpus[1].Instances[3].UUID].Cordoned || shares[gpus[0].Instances[3].UUID].Cordoned || !shares[gpus[0].Instances[1].UUID].Unhealthy {
		t.Errorf("the shares are %+v", shares)
	}
}

// The API server takes at most 64 devices in a slice with taints, and 128 without.
func TestManyInstancesFitIntoASlice(t *testing.T) {
	t.Parallel()
	for gpus, want := range map[int]int{8: 56, 10: 69, 18: 125, 19: 0} {
		var devices []dra.Device
		for _, g := range a100s(gpus) {
			for i := range g.Instances {
				devices = append(devices, dra.Device{GPU: sharing.GPU{Device: g, Instance: &g.Instances[i], Replicas: 1}, Resource: small})
			}
		}
		devices[3].Unhealthy = true
		s, err := dra.SliceOf(nodeapi.Metadata{Name: "n"}, gpu.Driver{}, devices)
		if (err != nil) != (want == 0) || len(s.Spec.Devices) != want {
			t.Errorf("%d GPUs: %d devices, %v", gpus, len(s.Spec.Devices), err)
		}
	}
}
