package sharing_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// shared returns resources as "name: replicas of GPU 0, of GPU 1, …; of its instances in parentheses".
func shared(rs []sharing.Resource) []string {
	var out []string
	for _, r := range rs {
		var each []string
		for _, g := range r.GPUs {
			unit := fmt.Sprint(g.Index)
			if g.Instance != nil {
				unit = fmt.Sprintf("%d:%d", g.Index, g.Instance.Index)
			}
			each = append(each, fmt.Sprintf("%s×%d", unit, g.Replicas))
		}
		out = append(out, r.Name+" "+strings.Join(each, " "))
	}
	return out
}

// halves are two A100s: one with two instances of 3g.20gb, and one with one of 3g.20gb and four of 1g.5gb, as the mixed examples of NVIDIA's MIG manager.
func halves() []gpu.Device {
	out := gputest.Divided(2, 2, "3g.20gb", 19968)
	out[1].Instances[1].UUID = "MIG-00000000-51ba-5c7e-9f2d-000000000001"
	small := gputest.Divided(2, 6, "1g.5gb", 4864)[1].Instances[2:]
	out[1].Instances = append(out[1].Instances[:1], small...)
	for i := range out[1].Instances {
		out[1].Instances[i].Index = i
	}
	return out
}

func TestInstancesBecomeResources(t *testing.T) {
	t.Parallel()
	one := gputest.Divided(1, 2, "1g.5gb+me", 4864)
	mixed := append(gputest.Divided(1, 2, "1g.5gb", 4864), gputest.T4s(2)[1])
	for name, c := range map[string]struct {
		yaml    string
		devices []gpu.Device
		want    []string // nil for an error
		err     string
	}{
		"without a strategy, GPUs are whole": {"version: v1", gputest.Divided(1, 2, "1g.5gb", 4864), []string{"nvidia.com/gpu 0×1"}, ""},
		"mixed": {"flags: {migStrategy: mixed}", halves(), []string{
			"nvidia.com/mig-1g.5gb 1:1×1 1:2×1 1:3×1 1:4×1", "nvidia.com/mig-3g.20gb 0:0×1 0:1×1 1:0×1",
		}, ""},
		"mixed, with whole GPUs":       {"flags: {migStrategy: mixed}", mixed, []string{"nvidia.com/gpu 1×1", "nvidia.com/mig-1g.5gb 0:0×1 0:1×1"}, ""},
		"mixed, with media extensions": {"flags: {migStrategy: mixed}", one, []string{"nvidia.com/mig-1g.5gb.me 0:0×1 0:1×1"}, ""},
		"mixed, in slices": {
			"flags: {migStrategy: mixed}\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/mig-1g.5gb, replicas: 3}]}}", halves(),
			[]string{"nvidia.com/mig-1g.5gb.shared 1:1×3 1:2×3 1:3×3 1:4×3", "nvidia.com/mig-3g.20gb 0:0×1 0:1×1 1:0×1"},
			"",
		},
		"mixed, some instances in slices": {
			`{flags: {migStrategy: mixed}, sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 3, devices: ["1:2", "MIG-` + halves()[1].UUID + `/13/0"]}]}}}`, halves(), nil, `there is no nvidia.com/mig-1g.5gb "MIG-`,
		},
		"mixed, an instance by index": {
			`{flags: {migStrategy: mixed}, sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 3, devices: ["1:2"]}]}}}`, halves(),
			[]string{"nvidia.com/mig-1g.5gb 1:1×1 1:2×3 1:3×1 1:4×1", "nvidia.com/mig-3g.20gb 0:0×1 0:1×1 1:0×1"},
			"",
		},
		"mixed, an instance by UUID": {
			`{flags: {migStrategy: mixed}, sharing: {timeSlicing: {resources: [{name: mig-3g.20gb, replicas: 3, devices: [` + halves()[0].Instances[1].UUID + `]}]}}}`, halves(),
			[]string{"nvidia.com/mig-1g.5gb 1:1×1 1:2×1 1:3×1 1:4×1", "nvidia.com/mig-3g.20gb 0:0×1 0:1×3 1:0×1"},
			"",
		},
		"an instance of another profile": {
			`{flags: {migStrategy: mixed}, sharing: {timeSlicing: {resources: [{name: mig-1g.5gb, replicas: 3, devices: ["0:1"]}]}}}`, halves(), nil, `there is no nvidia.com/mig-1g.5gb "0:1"`,
		},
		"single":                  {"flags: {migStrategy: single}", gputest.Divided(2, 2, "3g.20gb", 19968), []string{"nvidia.com/gpu 0:0×1 0:1×1 1:0×1 1:1×1"}, ""},
		"single, in slices":       {"{flags: {migStrategy: single}, sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}}", gputest.Divided(1, 2, "3g.20gb", 19968), []string{"nvidia.com/gpu.shared 0:0×4 0:1×4"}, ""},
		"single, without MIG":     {"flags: {migStrategy: single}", gputest.T4s(2), []string{"nvidia.com/gpu 0×1 1×1"}, ""},
		"single, two profiles":    {"flags: {migStrategy: single}", halves(), nil, "there are instances 3g.20gb and 1g.5gb"},
		"single, with whole GPUs": {"flags: {migStrategy: single}", mixed, nil, "GPU 0 is divided and GPU 1 is not"},
		"single, and empty":       {"flags: {migStrategy: single}", gputest.Divided(1, 0, "", 0), nil, "GPU 0 is divided and has no MIG instances"},
		"mixed, and empty":        {"flags: {migStrategy: mixed}", gputest.Divided(1, 0, "", 0), nil, "there are no MIG instances"},
		"an unknown strategy":     {"flags: {migStrategy: some}", gputest.T4s(1), nil, `flags.migStrategy: is "some"`},
		"MPS over instances":      {"{flags: {migStrategy: mixed}, sharing: {mps: {resources: [{name: mig-1g.5gb, replicas: 2}]}}}", gputest.Divided(1, 2, "1g.5gb", 4864), nil, "MPS over MIG"},
	} {
		config, _, err := sharing.Read([]byte(c.yaml), false)
		var rs []sharing.Resource
		if err == nil {
			rs, err = config.Resources(c.devices)
		}
		if (err != nil) != (c.want == nil) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, shared(rs)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestPromiseOfInstances(t *testing.T) {
	t.Parallel()
	of := func(naming string) nodecontract.MIG {
		return nodecontract.MIG{Profile: "1g.5gb", Count: 7, Naming: naming}
	}
	const mixed, single = nodecontract.MIGMixed, nodecontract.MIGSingle
	for name, c := range map[string]struct {
		promise     sharing.Promise
		each        int // replicas of an instance
		replication string
		renamed     bool
		err         string
	}{
		"mixed":                      {sharing.Promise{Resource: "nvidia.com/mig-1g.5gb", Replicas: 7, MIG: of(mixed)}, 1, "nvidia.com/mig-1g.5gb", false, ""},
		"mixed, in slices":           {sharing.Promise{Resource: "nvidia.com/mig-1g.5gb", Replicas: 21, MIG: of(mixed)}, 3, "nvidia.com/mig-1g.5gb", false, ""},
		"mixed, renamed":             {sharing.Promise{Resource: "nvidia.com/mig-1g.5gb.shared", Replicas: 14, MIG: of(mixed)}, 2, "nvidia.com/mig-1g.5gb", true, ""},
		"single":                     {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 7, MIG: of(single)}, 1, "nvidia.com/gpu", false, ""},
		"single, renamed":            {sharing.Promise{Resource: "nvidia.com/gpu.shared", Replicas: 28, MIG: of(single)}, 4, "nvidia.com/gpu", true, ""},
		"unequal instances":          {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 10, MIG: of(single)}, 0, "", false, "10 replicas on 7 MIG instances"},
		"fewer than instances":       {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 1, MIG: of(single)}, 0, "", false, "1 replicas on 7 MIG instances"},
		"the name of another":        {sharing.Promise{Resource: "nvidia.com/mig-2g.10gb", Replicas: 7, MIG: of(mixed)}, 0, "", false, "a MIG instance that is not shared is nvidia.com/mig-1g.5gb"},
		"GPUs for mixed":             {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 7, MIG: of(mixed)}, 0, "", false, "a MIG instance that is not shared is nvidia.com/mig-1g.5gb"},
		"shared, and not in slices":  {sharing.Promise{Resource: "nvidia.com/gpu.shared", Replicas: 7, MIG: of(single)}, 0, "", false, "a MIG instance that is not shared is nvidia.com/gpu"},
		"with MPS":                   {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 14, MIG: of(single), MPS: nodecontract.DefaultMPS}, 0, "", false, "MPS over MIG instances is not supported"},
		"more replicas than allowed": {sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 7 * 5000, MIG: of(single)}, 0, "", false, "5000 replicas"},
	} {
		config, err := sharing.FromPromise(c.promise)
		if (err != nil) != (c.each == 0) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if got, ok := config.Promise(); !ok || !got.Equal(c.promise) {
			t.Errorf("%s: promises %v, %t", name, got, ok)
		}
		rs, err := config.Resources(gputest.Divided(2, 7, "1g.5gb", 4864))
		if err != nil || len(rs) != 1 || rs[0].Name != c.promise.Resource || rs[0].Count() != 2*c.promise.Replicas || rs[0].GPUs[0].Replicas != c.each {
			t.Errorf("%s: %v, %v", name, shared(rs), err)
		}
		if n, renamed := config.Replication(c.replication); n != c.each || renamed != c.renamed {
			t.Errorf("%s: instances are replicated %d times, renamed %t", name, n, renamed)
		}
		for what, devices := range map[string][]gpu.Device{
			"MIG is off": gputest.H100s(1), "2 of 7 are there": gputest.Divided(1, 2, "1g.5gb", 4864), "another profile": gputest.Divided(1, 7, "1g.10gb", 9728),
			"one GPU of two is divided": append(gputest.Divided(1, 7, "1g.5gb", 4864), gputest.H100s(2)[1]),
		} {
			if rs, err := config.Resources(devices); err == nil || !strings.Contains(err.Error(), "delete the agent's pod on this node") {
				t.Errorf("%s: %s: %v, %v", name, what, shared(rs), err)
			}
		}
	}
}

// TestEachProfileHasResource checks that each profile that a machine can be planned with has a valid resource, whose instances the agent finds.
func TestEachProfileHasResource(t *testing.T) {
	t.Parallel()
	for _, name := range mig.ModelNames() {
		for _, model := range mig.Models(name, 0) {
			for _, k := range model.Kinds {
				for naming, resource := range map[string]string{nodecontract.MIGMixed: mig.Resource(k.Profile), nodecontract.MIGSingle: nodecontract.ResourceGPU} {
					promise := sharing.Promise{Resource: resource, Replicas: 1, MIG: nodecontract.MIG{Profile: k.Profile, Count: 1, Naming: naming}}
					config, err := sharing.FromPromise(promise)
					if err != nil {
						t.Errorf("%s: %v", k.Profile, err)
						continue
					}
					if rs, err := config.Resources(gputest.Divided(1, 1, k.Profile, 1)); err != nil || len(rs) != 1 || rs[0].Name != resource {
						t.Errorf("%s: %v, %v", k.Profile, shared(rs), err)
					}
				}
			}
		}
	}
}

func TestPromiseOfSeveralProfiles(t *testing.T) {
	t.Parallel()
	each := []nodecontract.MIGInstances{{Profile: "1g.5gb", Count: 3}, {Profile: "2g.10gb", Count: 2}}
	devices := gputest.DividedInto(2, gputest.Instances{Count: 3, Profile: "1g.5gb", MemoryMiB: 4864}, gputest.Instances{Count: 2, Profile: "2g.10gb", MemoryMiB: 9856})
	others := gputest.Divided(2, 2, "3g.20gb", 19968)
	for name, c := range map[string]struct {
		groups   []nodecontract.MIGGroup
		replicas int64
		devices  []gpu.Device
		want     map[string]int
		err      string
	}{
		"alike":         {[]nodecontract.MIGGroup{{Instances: each}}, 1, devices, map[string]int{"nvidia.com/mig-1g.5gb": 6, "nvidia.com/mig-2g.10gb": 4}, ""},
		"in slices":     {[]nodecontract.MIGGroup{{Instances: each}}, 3, devices, map[string]int{"nvidia.com/mig-1g.5gb.shared": 18, "nvidia.com/mig-2g.10gb.shared": 12}, ""},
		"different":     {[]nodecontract.MIGGroup{{GPUs: 1, Instances: each}, {GPUs: 1, Instances: []nodecontract.MIGInstances{{Profile: "3g.20gb", Count: 2}}}}, 1, append(others[:1:1], devices[1]), map[string]int{"nvidia.com/mig-1g.5gb": 3, "nvidia.com/mig-2g.10gb": 2, "nvidia.com/mig-3g.20gb": 2}, ""},
		"another count": {[]nodecontract.MIGGroup{{Instances: each[:1]}}, 1, devices, nil, "has 3 instances 1g.5gb, 2 instances 2g.10gb, and 3 MIG instances 1g.5gb were promised; when no pod holds it, delete the agent's pod"},
		"fewer GPUs":    {[]nodecontract.MIGGroup{{GPUs: 1, Instances: each}}, 1, devices, nil, "there are 2 GPUs, and 3 MIG instances 1g.5gb and 2 of 2g.10gb on 1 GPU were promised"},
	} {
		promise := sharing.Promise{Resource: "nvidia.com/mig-1g.5gb", Replicas: 5, MIG: nodecontract.MIGOf(c.groups, c.replicas)}
		config, err := sharing.FromPromise(promise)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := config.Promise(); !ok || !got.Equal(promise) {
			t.Errorf("%s: promises %v, %t", name, got, ok)
		}
		rs, err := config.Resources(c.devices)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		got := map[string]int{}
		for _, r := range rs {
			got[r.Name] = r.Count()
		}
		if len(c.want) != len(got) || !maps.Equal(c.want, got) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	for want, p := range map[string]sharing.Promise{
		"MPS over MIG instances":                       {MPS: nodecontract.DefaultMPS, MIG: nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: each}}, 1)},
		"does not share instances of several profiles": {Replicas: 10, Backend: nodecontract.BackendDRA, MIG: nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: each}}, 2)},
	} {
		if _, err := sharing.FromPromise(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := sharing.FromPromise(sharing.Promise{Replicas: 5, Backend: nodecontract.BackendDRA, MIG: nodecontract.MIGOf([]nodecontract.MIGGroup{{Instances: each}}, 1)}); err != nil {
		t.Error(err)
	}
}
