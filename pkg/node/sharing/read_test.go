package sharing_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/sharing"
)

// The two named configurations of the common setup with one pool of whole GPUs and one of shared GPUs.
const (
	recipeDefault = `version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: envvar
    deviceIDStrategy: uuid`
	recipeShared = recipeDefault + `
sharing:
  timeSlicing:
    renameByDefault: false
    resources:
    - name: nvidia.com/gpu
      replicas: 10`
)

func uuid(i int) string { return "GPU-00000000-0000-0000-0000-00000000000" + string(rune('0'+i)) }

func gpus(n int) []gpu.Device {
	var out []gpu.Device
	for i := range n {
		out = append(out, gpu.Device{UUID: uuid(i), Index: i, Product: "Tesla T4", MemoryMiB: 15360})
	}
	return out
}

// counts returns the replicas of each GPU by resource.
func counts(rs []sharing.Resource) map[string]map[string]int {
	out := map[string]map[string]int{}
	for _, r := range rs {
		out[r.Name] = map[string]int{}
		for _, g := range r.GPUs {
			out[r.Name][g.UUID] = g.Replicas
		}
	}
	return out
}

type byName = map[string]map[string]int

func TestConfigurationsBecomeResources(t *testing.T) {
	t.Parallel()
	sliced := func(lines ...string) string {
		return "sharing:\n  timeSlicing:\n    " + strings.Join(lines, "\n    ")
	}
	for name, c := range map[string]struct {
		yaml string
		want byName
	}{
		"an empty file":                          {"", byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 1}}},
		"only the version":                       {"version: v1", byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 1}}},
		"an empty version":                       {`version: ""`, byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 1}}},
		"the recipe's default":                   {recipeDefault, byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 1}}},
		"the recipe's shared_gpu":                {recipeShared, byName{"nvidia.com/gpu": {uuid(0): 10, uuid(1): 10}}},
		"renamed by default":                     {sliced("renameByDefault: true", "resources: [{name: nvidia.com/gpu, replicas: 4}]"), byName{"nvidia.com/gpu.shared": {uuid(0): 4, uuid(1): 4}}},
		"the prefix is added":                    {sliced("resources: [{name: gpu, replicas: 4}]"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 4}}},
		"a custom name":                          {sliced("resources: [{name: gpu, replicas: 4, rename: small}]"), byName{"nvidia.com/small": {uuid(0): 4, uuid(1): 4}}},
		"the first GPU":                          {sliced("resources: [{name: gpu, replicas: 4, devices: 1}]"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 1}}},
		"all devices explicitly":                 {sliced("resources: [{name: gpu, replicas: 4, devices: all}]"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 4}}},
		"by index":                               {sliced("resources: [{name: gpu, replicas: 4, devices: [1]}]"), byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 4}}},
		"by index as a string":                   {sliced(`resources: [{name: gpu, replicas: 4, devices: ["1"]}]`), byName{"nvidia.com/gpu": {uuid(0): 1, uuid(1): 4}}},
		"by UUID":                                {sliced("resources: [{name: gpu, replicas: 4, devices: [" + uuid(0) + "]}]"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 1}}},
		"renamed for some GPUs":                  {sliced("resources: [{name: gpu, replicas: 4, devices: [1], rename: gpu.small}]"), byName{"nvidia.com/gpu": {uuid(0): 1}, "nvidia.com/gpu.small": {uuid(1): 4}}},
		"different numbers per GPU":              {sliced("resources:", "- {name: gpu, replicas: 4, devices: [0]}", "- {name: gpu, replicas: 8, devices: [1]}"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 8}}},
		"resources for missing GPUs are ignored": {sliced("resources:", "- {name: gpu, replicas: 4}", "- {name: mig-1g.5gb, replicas: 8}"), byName{"nvidia.com/gpu": {uuid(0): 4, uuid(1): 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, _, err := sharing.Read([]byte(c.yaml), false)
			if err != nil {
				t.Fatal(err)
			}
			rs, err := config.Resources(gpus(2))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, counts(rs)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInvalidConfigurationIsRefusedByPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, want string }{
		"no YAML":                  {"a: b: c", "not YAML"},
		"a list":                   {"[]", "the document: is [], and must be a mapping"},
		"an unknown version":       {"version: v2", `version: is "v2", and only "v1" is known`},
		"empty time-slicing":       {"sharing: {timeSlicing: {}}", "sharing.timeSlicing: no resources specified"},
		"null time-slicing":        {"sharing: {timeSlicing: }", "sharing.timeSlicing: no resources specified"},
		"no name":                  {"sharing: {timeSlicing: {resources: [{replicas: 2}]}}", "sharing.timeSlicing.resources[0].name: no resource name specified"},
		"no replicas":              {"sharing: {timeSlicing: {resources: [{name: gpu}]}}", "resources[0].replicas: no replicas specified"},
		"one replica":              {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}", "number of replicas must be >= 2"},
		"too many replicas":        {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2000000000}]}}", "at most 4096"},
		"replicas as text":         {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: ten}]}}", `is "ten", and must be a whole number`},
		"a long name":              {"sharing: {timeSlicing: {resources: [{replicas: 2, name: " + strings.Repeat("a", 53) + "}]}}", "longer than the 63"},
		"a foreign domain":         {"sharing: {timeSlicing: {resources: [{replicas: 2, name: example.com/gpu}]}}", "cannot be a resource name"},
		"upper case":               {"sharing: {timeSlicing: {resources: [{replicas: 2, name: GPU}]}}", "cannot be a resource name"},
		"devices as text":          {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: some}]}}", `the only text it can be is "all"`},
		"null devices":             {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: }]}}", "devices: is null"},
		"an empty device list":     {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 0}]}}", "must be > 0"},
		"an invalid device":        {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [first]}]}}", "devices[0]: is \"first\""},
		"a flag of the wrong type": {"flags: {failOnInitError: maybe}", `flags.failOnInitError: is "maybe", and must be true or false`},
		"an alias bomb":            {"a: &a " + strings.Repeat("a", 100_000) + "\nb: [" + strings.Repeat("*a,", 1000) + "]", "with its aliases expanded, the YAML is larger than 8 MiB"},
		"too many resources":       {"sharing: {timeSlicing: {resources: [" + strings.Repeat("{name: gpu, replicas: 2},", 1025) + "]}}", "sharing.timeSlicing.resources: has 1025 items, and can have at most 1024"},
		"too many devices":         {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [" + strings.Repeat("0,", 1025) + "]}]}}", "devices: has 1025 items"},
		"too many errors":          {"sharing: {timeSlicing: {resources: [" + strings.Repeat("{name: gpu},", 100) + "]}}", "there are more errors"},
		"an invalid duration":      {"flags: {gfd: {sleepInterval: soon}}", "flags.gfd.sleepInterval"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := sharing.Read([]byte(c.yaml), false)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 10_000 {
				t.Errorf("got %.1000v, want %q in it", err, c.want)
			}
		})
	}
}

func TestConfigurationForOtherMachinesIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, want string }{
		"MPS on a partitioned GPU":        {"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}", "MPS over MIG is not supported"},
		"MPS on an old GPU":               {"sharing: {mps: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}", "compute capability 6.1"},
		"more clients than MPS can have":  {"sharing: {mps: {resources: [{name: gpu, replicas: 49, devices: [0]}]}}", "is 49, and must be from 2 to 48"},
		"IMEX":                            {"imex: {channelIDs: [2]}", "imex.channelIDs: is [2], and can be [] or [0]"},
		"a MIG device":                    {`sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: ["0:1"]}]}}`, `there is no nvidia.com/gpu "0:1"`},
		"an unknown GPU":                  {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [7]}]}}", `there is no nvidia.com/gpu "7"`},
		"more GPUs than exist":            {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 7}]}}", "7 of nvidia.com/gpu are to be shared, and there are 2"},
		"a GPU twice":                     {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}, {name: gpu, replicas: 3, devices: [1]}]}}", "both share GPU 1"},
		"a MIG strategy":                  {"flags: {migStrategy: single}", "or the other way round"},
		"an unknown device list strategy": {"flags: {plugin: {deviceListStrategy: [envvar, smoke]}}", `deviceListStrategy: is "smoke"`},
		"an unknown policy":               {"flags: {plugin: {sharedDevicesAllocationPolicy: random}}", "can be distributed, packed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, _, err := sharing.Read([]byte(c.yaml), false)
			if err != nil {
				t.Fatal(err)
			}
			devices := gpus(2)
			devices[0].ComputeMajor, devices[0].ComputeMinor, devices[1].ComputeMajor, devices[1].MIG = 6, 1, 7, true
			if strings.HasPrefix(name, "MPS on a partitioned") {
				devices[0].ComputeMajor = 7
			}
			if _, err = config.Resources(devices); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func TestIgnoredSettingsAreWarnedAboutByPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		yaml, want string
		strict     bool // whether strict reading rejects it
	}{
		"at the root":             {"sharin: {}", "sharin: unknown key", true},
		"in a nested key":         {"sharing: {timeSlicing: {foo: 1, resources: [{name: gpu, replicas: 2}]}}", "sharing.timeSlicing.foo: unknown key", true},
		"in a list":               {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, memory: 4}]}}", "sharing.timeSlicing.resources[0].memory: unknown key", true},
		"in the wrong case":       {"Flags: {migstrategy: none}", "flags.migstrategy: is read as migStrategy", true},
		"a duplicate key":         {"version: v1\nversion: v1", "version", true},
		"in a second document":    {"version: v1\n---\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}", "only the first document of the file counts", true},
		"after an empty document": {"---\n---\nversion: v1", "only the first document of the file counts", true},
		"a broken document":       {"version: v1\n---\n{", "only the first document of the file counts", true},
		"names by product":        {"resources: {gpus: [{pattern: '*', name: gpu}]}", "names by product are ignored", false},
		"some devices":            {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: [0]}]}}", "resources[0].devices: takes effect, unlike in NVIDIA's plugin", false},
		"a custom name":           {"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, rename: gpu.shared}]}}", "resources[0].rename: takes effect, unlike in NVIDIA's plugin", false},
		"a resource without GPUs": {"sharing: {timeSlicing: {resources: [{name: fpga, replicas: 2}]}}", "no GPU is nvidia.com/fpga", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, warnings, err := sharing.Read([]byte(c.yaml), false)
			if err != nil || !strings.Contains(strings.Join(warnings, "\n"), c.want) {
				t.Errorf("got %q and %v, want %q", warnings, err, c.want)
			}
			if _, _, err := sharing.Read([]byte(c.yaml), true); (err != nil) != c.strict {
				t.Errorf("strict: got %v, want an error: %t", err, c.strict)
			}
		})
	}
}

func TestRecipeConfigurationsGiveNoWarning(t *testing.T) {
	t.Parallel()
	for _, text := range []string{recipeDefault, recipeShared, "---\n" + recipeShared, recipeShared + "\n---\n", recipeShared + "\n---\n# " + recipeDefault[:11]} {
		if _, warnings, err := sharing.Read([]byte(text), true); err != nil || len(warnings) > 0 {
			t.Errorf("got %q, %v", warnings, err)
		}
	}
}

func TestRequestsGreaterThanOneAreAllowedByDefault(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string]bool{
		"sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}":                                   false,
		"sharing: {timeSlicing: {failRequestsGreaterThanOne: true, resources: [{name: gpu, replicas: 2}]}}": true,
	} {
		config, _, err := sharing.Read([]byte(yaml), true)
		if err != nil {
			t.Fatal(err)
		}
		rs, err := config.Resources(gpus(1))
		if err != nil || rs[0].FailRequestsGreaterThanOne != want {
			t.Errorf("%s: got %v, %v", yaml, rs, err)
		}
	}
}

func TestFlagsOverrideEnvironmentAndFile(t *testing.T) {
	t.Parallel()
	config, _, err := sharing.Read([]byte("flags: {nvidiaDriverRoot: /file, plugin: {deviceIDStrategy: index, deviceListStrategy: cdi-cri}}"), true)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(m map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
	}
	got, err := config.Override(
		lookup(map[string]string{"driver-root": "/flag"}),
		lookup(map[string]string{"NVIDIA_DRIVER_ROOT": "/env", "DEVICE_LIST_STRATEGY": "envvar,cdi-annotations", "DEVICE_ID_STRATEGY": "", "PASS_DEVICE_SPECS": "true"}))
	if err != nil {
		t.Fatal(err)
	}
	s, err := got.Settings()
	if err != nil {
		t.Fatal(err)
	}
	want := sharing.Settings{
		MIGStrategy: "none", DriverRoot: "/flag", DevRoot: "/flag", ContainerDriverRoot: "/driver-root", PassDeviceSpecs: true,
		DeviceLists: []string{"envvar", "cdi-annotations"}, DeviceIDStrategy: "index", CDIAnnotationPrefix: "cdi.k8s.io/", AllocationPolicy: "distributed",
		Timestamp: true, MachineTypeFile: "/sys/class/dmi/id/product_name",
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	if before, _ := config.Settings(); before.PassDeviceSpecs {
		t.Error("the configuration that was overridden has changed")
	}
	if _, err := config.Override(lookup(nil), lookup(map[string]string{"FAIL_ON_INIT_ERROR": "often"})); err == nil || !strings.Contains(err.Error(), "FAIL_ON_INIT_ERROR") {
		t.Errorf("got %v", err)
	}
}

func TestFeaturesThatConflictWithEFADefaultToOff(t *testing.T) {
	t.Parallel()
	for yaml, want := range map[string][3]bool{
		"version: v1": {},
		"flags: {gdrcopyEnabled: false, gdsEnabled: false, mofedEnabled: false}": {},
		"flags: {gdrcopyEnabled: true}":                                          {true, false, false},
		"flags: {gdsEnabled: true}":                                              {false, true, false},
		"flags: {mofedEnabled: true}":                                            {false, false, true},
	} {
		config, _, err := sharing.Read([]byte(yaml), true)
		if err != nil {
			t.Fatal(err)
		}
		s, err := config.Settings()
		if got := [3]bool{s.GDRCopy, s.GDS, s.MOFED}; err != nil || got != want {
			t.Errorf("%s: GDRCopy, GDS and MOFED are %v, %v", yaml, got, err)
		}
	}
}

func TestPromised(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		resource string
		replicas int
		want     map[string]int // of one GPU, by resource
	}{
		{"nvidia.com/gpu", 1, map[string]int{"nvidia.com/gpu": 1}},
		{"nvidia.com/gpu", 10, map[string]int{"nvidia.com/gpu": 10}},
		{"nvidia.com/gpu.shared", 4, map[string]int{"nvidia.com/gpu.shared": 4}},
		{"nvidia.com/slice", 4, map[string]int{"nvidia.com/slice": 4}},
		{"nvidia.com/gpu.shared", 1, nil},
		{"nvidia.com/gpu", 0, nil},
		{"nvidia.com/gpu", 5000, nil},
		{"example.com/gpu", 2, nil},
		{"gpu", 2, nil},
	} {
		config, err := sharing.FromPromise(sharing.Promise{Resource: c.resource, Replicas: c.replicas})
		if (err != nil) != (c.want == nil) {
			t.Errorf("%v: %v", c, err)
		}
		if err != nil {
			continue
		}
		if p, ok := config.Promise(); !ok || !p.Equal(sharing.Promise{Resource: c.resource, Replicas: c.replicas}) {
			t.Errorf("%v: promises %v, %t", c, p, ok)
		}
		rs, err := config.Resources(gpus(1))
		if err != nil || len(rs) != 1 || c.want[rs[0].Name] != rs[0].Count() {
			t.Errorf("%v: got %v, %v", c, rs, err)
		}
	}
}
