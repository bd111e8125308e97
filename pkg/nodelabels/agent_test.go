package nodelabels_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/labels"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/nodecontract/mig"
	"karve.sh/karve/pkg/nodelabels"
)

// driverReports has what nvidia-smi shows of the models of EC2: product, memory in MiB by old and new drivers, and compute capability.
var driverReports = map[string]struct {
	product  string
	mib      []int64
	cc       [2]int
	graphics bool
}{
	"t4-16384": {"Tesla T4", []int64{15109, 15360}, [2]int{7, 5}, false}, "t4g-16384": {"NVIDIA T4G", []int64{15109, 15360}, [2]int{7, 5}, false},
	"a10g-22888": {"NVIDIA A10G", []int64{22731, 23028}, [2]int{8, 6}, false}, "l4-22888": {"NVIDIA L4", []int64{22491, 23034}, [2]int{8, 9}, false},
	"l40s-45776": {"NVIDIA L40S", []int64{45488, 46068}, [2]int{8, 9}, false}, "v100-16384": {"Tesla V100-SXM2-16GB", []int64{16160, 16384}, [2]int{7, 0}, false},
	"v100-32768": {"Tesla V100-SXM2-32GB", []int64{32510, 32768}, [2]int{7, 0}, false}, "a100-40960": {"NVIDIA A100-SXM4-40GB", []int64{40536, 40960}, [2]int{8, 0}, false},
	"a100-81920": {"NVIDIA A100-SXM4-80GB", []int64{81251, 81920}, [2]int{8, 0}, false}, "h100-81920": {"NVIDIA H100 80GB HBM3", []int64{81559}, [2]int{9, 0}, false},
	"h200-144384": {"NVIDIA H200", []int64{143771}, [2]int{9, 0}, false}, "b200-183359": {"NVIDIA B200", []int64{183359}, [2]int{10, 0}, false},
	"b300-275040": {"NVIDIA B300 SXM6 AC", []int64{275040}, [2]int{10, 3}, false}, "rtx-pro-server-6000-98304": {"NVIDIA RTX PRO 6000 Blackwell Server Edition", []int64{97887}, [2]int{12, 0}, true},
	"rtx-pro-4500-32768": {"NVIDIA RTX PRO 4500 Blackwell Server Edition", []int64{32623}, [2]int{12, 0}, true},
}

// shared returns the ways in which a GPUNodeClass can share GPUs, by name.
func ways(g catalog.GPU) map[string]v1alpha1.Sharing {
	all := map[string]v1alpha1.Sharing{
		"whole":                           {Strategy: v1alpha1.StrategyNone},
		"slices":                          {Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10))},
		"unnamed":                         {Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(4)), ResourceName: v1alpha1.ResourceGPU},
		"mps":                             {Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(4))},
		"mps as whole GPUs":               {Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(4)), ResourceName: v1alpha1.ResourceGPU},
		"DRA":                             {Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(10)), Backend: v1alpha1.BackendDRA},
		"a range":                         {Strategy: v1alpha1.StrategyTimeSlicing, Replicas: new(int32(4)), MaxReplicas: new(int32(8))},
		"a range from one, as whole GPUs": {Strategy: v1alpha1.StrategyMPS, Replicas: new(int32(1)), MaxReplicas: new(int32(8)), ResourceName: v1alpha1.ResourceGPU},
		"slots":                           {Strategy: v1alpha1.StrategyMemorySlots, Memory: &v1alpha1.MemorySharing{Sizes: []string{"2Gi", "4Gi"}}},
	}
	for _, m := range mig.Models(g.Name, g.MemoryMiB) {
		for _, kind := range m.Kinds {
			layouts := &v1alpha1.MIGSharing{Layouts: []v1alpha1.MIGLayout{{GPUName: g.Name, Profile: kind.Profile}}}
			for _, naming := range []v1alpha1.MIGNaming{v1alpha1.MIGNamingMixed, v1alpha1.MIGNamingSingle} {
				layouts := *layouts
				layouts.Naming = naming
				all[fmt.Sprint(kind.Profile, naming)] = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &layouts}
				all[fmt.Sprint(kind.Profile, naming, " sliced")] = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &layouts, Replicas: new(int32(3))}
			}
		}
	}
	if g.Name == "a100" && g.Count == 8 {
		small, large := mig.Models(g.Name, g.MemoryMiB)[0].Kinds[0].Profile, mig.Models(g.Name, g.MemoryMiB)[0].Kinds[3].Profile
		several := []v1alpha1.MIGInstances{{Profile: small, Count: 3}, {Profile: large, Count: 2}}
		layouts := []v1alpha1.MIGLayout{
			{GPUName: g.Name, Instances: several},
			{GPUName: g.Name, Groups: []v1alpha1.MIGGroup{{GPUs: 3, Instances: several}, {GPUs: 5, Instances: []v1alpha1.MIGInstances{{Profile: small, Count: 5}}}}},
		}
		all["several profiles"] = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: layouts}}
		all["several profiles, sliced"] = v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: layouts}, Replicas: new(int32(3))}
	}
	return all
}

// written returns the labels that the agent writes on a machine with the GPUs.
func written(t *testing.T, typeName string, g catalog.GPU, share v1alpha1.Share, s *v1alpha1.Sharing, replicas, memory int64) map[string]string {
	t.Helper()
	slots := share.Slots
	if !slots.IsZero() {
		slots.GPUs = slices.Repeat([][]int64{make([]int64, len(slots.SizesMiB))}, int(g.Count))
	}
	config, err := sharing.FromPromise(sharing.Promise{
		Resource: share.Resource, Replicas: int(replicas), MPS: s.MPSSettings(), MIG: share.MIG, Slots: slots, Backend: s.PromisedBackend(),
	})
	if err != nil {
		t.Fatal(err)
	}
	reports := driverReports[fmt.Sprint(g.Name, "-", g.MemoryMiB)]
	devices := make([]gpu.Device, g.Count)
	wanted := make([][]nodecontract.MIGInstances, g.Count)
	if !share.MIG.IsZero() {
		if wanted, err = share.MIG.Assign(len(devices), func(int) map[string]int64 { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range devices {
		d := gpu.Device{
			UUID: fmt.Sprint("GPU-", i), Index: i, Product: reports.product, MemoryMiB: memory, ComputeMajor: reports.cc[0], ComputeMinor: reports.cc[1],
			MIGCapable: len(mig.Models(g.Name, g.MemoryMiB)) > 0, MIG: !share.MIG.IsZero(),
		}
		for _, of := range wanted[i] {
			for range of.Count {
				slices := mig.Models(g.Name, g.MemoryMiB)[0].Kind(of.Profile).Slices
				d.Instances = append(d.Instances, gpu.Instance{Index: len(d.Instances), Profile: of.Profile, MemoryMiB: of.MemoryMiB + 100, GPUSlices: slices, ComputeSlices: slices, Multiprocessors: 14})
			}
		}
		devices[i] = d
	}
	settings, err := config.Settings()
	if err != nil {
		t.Fatal(err)
	}
	as := labels.Sharing{Strategy: config.Label(), Replication: config.Replication, MIGStrategy: settings.MIGStrategy}
	as.Replicas, as.Renamed = config.Replication(nodecontract.ResourceGPU)
	classes := []uint32{0x030200}
	if reports.graphics {
		classes = []uint32{0x030000}
	}
	got := labels.For(devices, gpu.Driver{Version: "580.159.03", CUDAMajor: 13}, as, labels.Machine{Type: typeName, PCIClasses: classes})
	got[nodecontract.NVIDIAPrefix+"gfd.timestamp"] = "1"
	return got
}

// The agent's own code runs on the GPUs of all machines of EC2, shared in all ways.
func TestTableHasWhatTheAgentWrites(t *testing.T) {
	t.Parallel()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	types = append(types, catalog.InstanceType{Name: "p3.2xlarge", GPU: catalog.GPU{Name: "v100", Count: 1, MemoryMiB: 16384}})
	seen := map[string]bool{}
	for i := range types {
		g := types[i].GPU
		if key := fmt.Sprint(g); seen[key] {
			continue
		}
		seen[fmt.Sprint(g)] = true
		if _, ok := driverReports[fmt.Sprint(g.Name, "-", g.MemoryMiB)]; !ok {
			t.Errorf("%s: nothing is known here of %+v", types[i].Name, g)
			continue
		}
		for name, s := range ways(g) {
			for _, share := range s.Shares(g.Name, g.MemoryMiB, g.Count) {
				node := nodelabels.Node{
					Type: types[i].Name, Nitro: true, GPU: g, Resource: share.Resource, MinReplicas: share.Least, MaxReplicas: share.Most,
					MPS: s.MPSSettings() != nodecontract.MPS{}, MIG: share.MIG, Slots: !share.Slots.IsZero(),
				}
				for _, replicas := range slices.Compact([]int64{share.Least, share.Most}) {
					for _, memory := range driverReports[fmt.Sprint(g.Name, "-", g.MemoryMiB)].mib {
						compare(t, types[i].Name+" "+name, nodelabels.Of(&node), written(t, types[i].Name, g, share, &s, replicas, memory))
					}
				}
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d kinds of machines", len(seen))
	}
}

// compare reports labels that the agent writes otherwise than foretold.
func compare(t *testing.T, of string, foretold nodelabels.Labels, got map[string]string) {
	t.Helper()
	for key, value := range got {
		known, certain := foretold.Known[key]
		doubt, doubted := foretold.Doubts.About(key)
		switch n, err := strconv.ParseInt(value, 10, 64); {
		case nodelabels.Find(key) == nil:
			t.Errorf("%s: the table lacks %s", of, key)
		case certain && known != value:
			t.Errorf("%s: %s is %q, foretold as %q", of, key, value, known)
		case !certain && !doubted:
			t.Errorf("%s: %s is %q, foretold as absent", of, key, value)
		case !certain && doubt.Max > 0 && (err != nil || n < doubt.Min || n > doubt.Max):
			t.Errorf("%s: %s is %q, foretold as %s", of, key, value, doubt)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(foretold.Known)) {
		if _, ok := got[key]; !ok {
			t.Errorf("%s: %s is not written, foretold as %q", of, key, foretold.Known[key])
		}
	}
	for key, doubt := range foretold.Doubts {
		if _, ok := got[key]; doubt.Present && !ok {
			t.Errorf("%s: %s is not written, foretold as %s", of, key, doubt)
		}
	}
}
