package node

import (
	"strconv"
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/nodecontract"
)

const small = "nvidia.com/mig-1g.5gb"

// promised writes a promise of MIG instances to the Node.
func promised(api *apiServer, resource, perGPU, mig string) {
	api.annotations[nodecontract.ResourceAnnotation] = resource
	api.annotations[nodecontract.ReplicasPerGPUAnnotation] = perGPU
	api.annotations[nodecontract.MIGAnnotation] = mig
}

func (m *machine) listed(resource string, n int) func() bool {
	return func() bool { return m.kubelet.Allocatable(resource) == n }
}

func TestPromisedInstancesAreServed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		resource, perGPU, naming string
		listed                   int
		labels                   map[string]string
	}{
		"mixed": {small, "7", "Mixed", 14, map[string]string{
			"mig.strategy": "mixed", "mig-1g.5gb.count": "14", "mig-1g.5gb.replicas": "1", "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "gpu.product": "NVIDIA-A100-SXM4-40GB", "gpu.count": "2",
		}},
		"mixed, and shared": {small + ".shared", "28", "Mixed", 56, map[string]string{
			"mig-1g.5gb.replicas": "4", "mig-1g.5gb.sharing-strategy": "time-slicing", "mig-1g.5gb.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
		}},
		"single": {"nvidia.com/gpu", "7", "Single", 14, map[string]string{
			"mig.strategy": "single", "gpu.count": "14", "gpu.memory": "4864", "gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "gpu.slices.gi": "1",
		}},
		"single, and shared without another name": {"nvidia.com/gpu", "14", "Single", 28, map[string]string{
			"gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "gpu.replicas": "2",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var api *apiServer
			m := start(t, func(m *machine) {
				m.library.SetDevices(gputest.Divided(2, 7, "1g.5gb", 4864)...)
				api = m.withNode()
				promised(api, c.resource, c.perGPU, `{"profile":"1g.5gb","count":7,"naming":"`+c.naming+`"}`)
			})
			m.eventually("the instances", m.listed(c.resource, c.listed))
			m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
			for key, want := range c.labels {
				m.eventually("the label "+key+"="+want, func() bool { return api.label(nodecontract.NVIDIAPrefix+key) == want })
			}
			grant, err := m.kubelet.Admit(t.Context(), "pod", c.resource, 1)
			if err != nil || !strings.HasPrefix(grant.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"], "MIG-") {
				t.Errorf("a pod gets %v, %v", grant.Response, err)
			}
			m.eventually("the Node says which instance it holds", func() bool {
				report, _, err := nodecontract.ParseHolders(api.annotation(nodecontract.HoldersAnnotation))
				held := 0
				for _, g := range report.GPUs {
					if g.Profile != "1g.5gb" || g.Instance == nil || g.MemoryMiB != 4864 {
						return false
					}
					held += g.Held
				}
				return err == nil && len(report.GPUs) == 14 && held == 1
			})
		})
	}
}

func TestPromisedInstancesOfSeveralProfilesAreServed(t *testing.T) {
	t.Parallel()
	const middle = "nvidia.com/mig-2g.10gb"
	for name, c := range map[string]struct {
		mig, suffix string
		each        int
	}{
		"for one pod each": {`{"groups":[{"instances":[{"profile":"1g.5gb","count":3},{"profile":"2g.10gb","count":2}]}],"naming":"Mixed"}`, "", 1},
		"for four each":    {`{"groups":[{"gpus":2,"instances":[{"profile":"1g.5gb","count":3},{"profile":"2g.10gb","count":2}]}],"replicas":4,"naming":"Mixed"}`, ".shared", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var api *apiServer
			m := start(t, func(m *machine) {
				m.library.SetDevices(gputest.DividedInto(2, gputest.Instances{Count: 3, Profile: "1g.5gb", MemoryMiB: 4864}, gputest.Instances{Count: 2, Profile: "2g.10gb", MemoryMiB: 9856})...)
				api = m.withNode()
				promised(api, small+c.suffix, "5", c.mig)
			})
			m.eventually("the small instances", m.listed(small+c.suffix, 6*c.each))
			m.eventually("the middle instances", m.listed(middle+c.suffix, 4*c.each))
			m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
			for key, want := range map[string]string{
				"mig.strategy": "mixed", "gpu.count": "2", "mig-1g.5gb.count": "6", "mig-2g.10gb.count": "4", "mig-1g.5gb.replicas": strconv.Itoa(c.each),
				"mig-2g.10gb.memory": "9856", "mig-2g.10gb.product": "NVIDIA-A100-SXM4-40GB-MIG-2g.10gb",
			} {
				m.eventually("the label "+key+"="+want, func() bool { return api.label(nodecontract.NVIDIAPrefix+key) == want })
			}
			for i, resource := range []string{small + c.suffix, middle + c.suffix} {
				grant, err := m.kubelet.Admit(t.Context(), "pod-"+strconv.Itoa(i), resource, 1)
				if err != nil || !strings.HasPrefix(grant.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"], "MIG-") {
					t.Errorf("a pod gets %v, %v", grant.Response, err)
				}
			}
			m.eventually("the Node says which instances they hold", func() bool {
				report, _, err := nodecontract.ParseHolders(api.annotation(nodecontract.HoldersAnnotation))
				held := map[string]int{}
				for _, g := range report.GPUs {
					held[g.Profile] += g.Held
				}
				return err == nil && len(report.GPUs) == 10 && held["1g.5gb"] == 1 && held["2g.10gb"] == 1
			})
		})
	}
}

func TestInstancesThatNobodyPromisedAreRefusedAndListed(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.library.SetDevices(gputest.Divided(1, 3, "2g.10gb", 9856)...)
		api = m.withNode()
		promised(api, small, "7", sevenSmall)
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False ConfigurationRefused", "has 3 instances 2g.10gb, and 7 MIG instances 1g.5gb were promised", "delete the agent's pod")
	if m.kubelet.Allocatable(small) != 0 {
		t.Error("instances are served")
	}
}

func TestNVIDIAsMIGManagerKeepsItsNode(t *testing.T) {
	t.Parallel()
	var api *apiServer
	m := start(t, func(m *machine) {
		m.library.SetDevices(gputest.Divided(1, 7, "1g.5gb", 4864)...)
		api = m.withNode()
		promised(api, small, "7", sevenSmall)
		api.labels[nodecontract.MIGConfigLabel] = "all-1g.5gb"
	})
	m.untilCondition(api, nodecontract.SharingCondition, "False MIGManagedElsewhere", "nvidia.com/mig.config=all-1g.5gb", "remove the label")
	m.eventually("one event", func() bool { return api.count(nodecontract.ReasonMIGManagedElsewhere, "MIG manager") == 1 })
	if m.kubelet.Allocatable(small) != 0 {
		t.Error("instances are served")
	}
	api.change(func() { delete(api.labels, nodecontract.MIGConfigLabel) })
	m.eventually("7 instances", m.listed(small, 7))
	m.untilCondition(api, nodecontract.SharingCondition, "True ConfigurationApplied")
}

func TestInstancesOfOthersAreServedAsConfigured(t *testing.T) {
	t.Parallel()
	m := start(t, func(m *machine) {
		devices := gputest.Divided(2, 7, "1g.5gb", 4864)
		devices[1].Instances = gputest.Divided(2, 2, "3g.20gb", 19968)[1].Instances
		m.library.SetDevices(devices...)
		m.configure("version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: [{name: nvidia.com/mig-3g.20gb, replicas: 4}]}}")
	})
	m.eventually("7 small instances and 8 replicas of large ones", func() bool {
		return m.kubelet.Allocatable(small) == 7 && m.kubelet.Allocatable("nvidia.com/mig-3g.20gb") == 8
	})
	m.configure("version: v1\nflags: {migStrategy: single}")
	m.eventually("it says that they differ", func() bool { return m.log.has("there are instances 1g.5gb and 3g.20gb") })
	if m.kubelet.Allocatable(small) != 7 {
		t.Error("the configuration in force was given up")
	}
}

func TestFaultOfAnInstanceIsItsOwn(t *testing.T) {
	t.Parallel()
	var api *apiServer
	devices := gputest.Divided(2, 7, "1g.5gb", 4864)
	m := start(t, func(m *machine) {
		m.library.SetDevices(devices...)
		api = m.withNode()
		promised(api, small+".shared", "14", sevenSmall)
	})
	shared := small + ".shared"
	m.eventually("28 replicas", m.listed(shared, 28))
	m.library.ReportOn(devices[0].UUID, devices[0].Instances[3].UUID, 94)
	m.eventually("26 replicas", m.listed(shared, 26))
	m.untilCondition(api, nodecontract.HardwareCondition, "False GPUNeedsReset", "1 of 2 GPUs out of service, in part", "MIG instance 0:3 (1g.5gb, "+devices[0].Instances[3].UUID)
	m.library.Report(devices[1].UUID, 63) // It names no instance.
	m.eventually("12 replicas", m.listed(shared, 12))
	m.untilCondition(api, nodecontract.HardwareCondition, "False GPUNeedsReset", "2 of 2 GPUs out of service, in part")

	// An agent that starts anew knows both faults.
	m.stop()
	m.run()
	m.eventually("12 replicas again", m.listed(shared, 12))

	api.annotate(nodecontract.GPUResetAnnotation, devices[0].UUID)
	m.eventually("the instance is back", m.listed(shared, 14))
	m.eventually("the annotation is handled", func() bool { return api.annotation(nodecontract.GPUResetAnnotation) == "" })
	m.library.Lose(devices[0].UUID)
	m.eventually("a GPU that is lost has no instances", m.listed(shared, 0))
}
