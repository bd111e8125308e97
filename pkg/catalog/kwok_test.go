package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// awsGPULabels are the labels with which Karpenter's AWS provider describes GPUs.
var awsGPULabels = GPULabels{
	Name: "karpenter.k8s.aws/instance-gpu-name", Count: "karpenter.k8s.aws/instance-gpu-count", Memory: "karpenter.k8s.aws/instance-gpu-memory",
}

func requirement(key, operator string, values ...string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf(`{"key":%q,"operator":%q,"values":[%s]}`, key, operator, strings.Join(quoted, ","))
}

// offering returns an offering of an instance type as JSON.
func offering(price, zone, capacityType string, more ...string) string {
	requirements := slices.Concat([]string{requirement(labelZone, "In", zone), requirement(labelCapacityType, "In", capacityType)}, more)
	return fmt.Sprintf(`{"Price":%s,"Available":true,"Requirements":[%s]}`, price, strings.Join(requirements, ","))
}

func instanceType(name, resources string, offerings ...string) string {
	return fmt.Sprintf(`{"name":%q,"architecture":"amd64","operatingSystems":["linux"],"resources":{%s},"offerings":[%s]}`,
		name, resources, strings.Join(offerings, ","))
}

const (
	cpuOnly = `"cpu":"4","memory":"16Gi"`
	oneGPU  = `"cpu":"4","memory":"16Gi","ephemeral-storage":"100Gi","nvidia.com/gpu":"1","pods":"29"`
)

func TestReadKWOKReadsTypesOfTestCluster(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../../test/harness/cluster/instance-types.json")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the file is not there")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	types, err := ReadKWOK(f, awsGPULabels)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(types, func(it InstanceType) bool { return it.Name == "g4dn.12xlarge" })
	if i < 0 {
		t.Fatal("g4dn.12xlarge is missing")
	}
	if diff := cmp.Diff(GPU{Name: "t4", Count: 4, MemoryMiB: 16384}, types[i].GPU); diff != "" {
		t.Errorf("GPUs of g4dn.12xlarge (-want +got):\n%s", diff)
	}
	wantSound(t, types)
}

func TestReadKWOKDescribesType(t *testing.T) {
	t.Parallel()
	gpu := []string{
		requirement(awsGPULabels.Name, "In", "t4"), requirement(awsGPULabels.Count, "In", "1"), requirement(awsGPULabels.Memory, "In", "16384"),
	}
	got, err := ReadKWOK(strings.NewReader("["+instanceType("g4dn.xlarge", oneGPU,
		offering("0.526", "a", "on-demand", append(gpu, requirement("example.com/rack", "In", "1"))...),
		offering("0.1578", "b", "spot", append(gpu, requirement("example.com/rack", "In", "2"))...),
		offering("0.2", "b", "on-demand", gpu...),
	)+","+instanceType("c5.xlarge", cpuOnly, offering("0.17", "a", "on-demand"))+"]"), awsGPULabels)
	if err != nil {
		t.Fatal(err)
	}
	want := []InstanceType{{
		Name: "c5.xlarge",
		// The zone and the capacity type stay with the offering, even if there is only one offering.
		Labels:      map[string]string{labelInstanceType: "c5.xlarge", labelArch: "amd64", labelOS: "linux"},
		Capacity:    Resources{MilliCPU: 4000, MemoryBytes: 16 << 30, Pods: 110},
		Allocatable: Resources{MilliCPU: 3900, MemoryBytes: 16<<30 - 10<<20, Pods: 110},
		Offerings: []Offering{{
			Zone: "a", CapacityType: "on-demand", MicroUSDPerHour: 170_000, Labels: map[string]string{labelZone: "a", labelCapacityType: "on-demand"},
		}},
	}, {
		Name: "g4dn.xlarge",
		Labels: map[string]string{
			labelInstanceType: "g4dn.xlarge", labelArch: "amd64", labelOS: "linux",
			awsGPULabels.Name: "t4", awsGPULabels.Count: "1", awsGPULabels.Memory: "16384",
		},
		Capacity:    Resources{MilliCPU: 4000, MemoryBytes: 16 << 30, EphemeralBytes: 100 << 30, Pods: 29},
		Allocatable: Resources{MilliCPU: 3900, MemoryBytes: 16<<30 - 10<<20, EphemeralBytes: 100 << 30, Pods: 29},
		GPU:         GPU{Name: "t4", Count: 1, MemoryMiB: 16384},
		Offerings: []Offering{
			{Zone: "a", CapacityType: "on-demand", MicroUSDPerHour: 526_000, Labels: map[string]string{labelZone: "a", labelCapacityType: "on-demand", "example.com/rack": "1"}},
			{Zone: "b", CapacityType: "spot", MicroUSDPerHour: 157_800, Labels: map[string]string{labelZone: "b", labelCapacityType: "spot", "example.com/rack": "2"}},
			{Zone: "b", CapacityType: "on-demand", MicroUSDPerHour: 200_000, Labels: map[string]string{labelZone: "b", labelCapacityType: "on-demand"}},
		},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
}

func TestReadKWOKKeepsExtendedResources(t *testing.T) {
	t.Parallel()
	got, err := ReadKWOK(strings.NewReader("["+instanceType("p4d.24xlarge", oneGPU+`,"vpc.amazonaws.com/efa":"4","hugepages-2Mi":"1Gi","example.com/none":"0"`,
		offering("1", "a", "spot"))+"]"), awsGPULabels)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int64{"vpc.amazonaws.com/efa": 4, "hugepages-2Mi": 1 << 30}, got[0].Extended); diff != "" {
		t.Errorf("extended (-want +got):\n%s", diff)
	}
}

func TestReadKWOKReportsErrors(t *testing.T) {
	t.Parallel()
	good := offering("1", "a", "spot")
	gpuOffering := func(key, value string) string { return offering("1", "a", "spot", requirement(key, "In", value)) }
	for name, tc := range map[string]struct {
		file string
		want []string
	}{
		"no JSON":                      {"", []string{"reading instance types: EOF"}},
		"no list":                      {"{}", []string{"reading instance types: json: cannot unmarshal object"}},
		"trailing data":                {"[] []", []string{"reading instance types: there is something after the list"}},
		"a trailing bracket":           {"[] ]", []string{"there is something after the list"}},
		"no name":                      {"[" + instanceType("", cpuOnly, good) + "]", []string{`instance type "": it has no name`}},
		"no architecture":              {`[{"name":"x","resources":{"cpu":"1","memory":"1Gi"},"offerings":[` + good + `]}]`, []string{`instance type "x": it has no architecture`}},
		"the same name":                {"[" + instanceType("x", cpuOnly, good) + "," + instanceType("x", cpuOnly, good) + "]", []string{`instance type "x": the name occurs twice`}},
		"no CPU":                       {"[" + instanceType("x", `"memory":"1Gi"`, good) + "]", []string{"cpu, memory and pods must be above zero, ephemeral-storage and nvidia.com/gpu not below"}},
		"no pods":                      {"[" + instanceType("x", cpuOnly+`,"pods":"0"`, good) + "]", []string{"cpu, memory and pods must be above zero"}},
		"negative GPUs":                {"[" + instanceType("x", cpuOnly+`,"nvidia.com/gpu":"-1"`, good) + "]", []string{"nvidia.com/gpu not below"}},
		"an overflow":                  {"[" + instanceType("x", `"cpu":"9E","memory":"1Gi"`, good) + "]", []string{"an amount of its resources is beyond that of any machine"}},
		"no offerings":                 {"[" + instanceType("x", cpuOnly) + "]", []string{"it has no offerings"}},
		"an unsupported operator":      {"[" + instanceType("x", cpuOnly, offering("1", "a", "spot", requirement("k", "Exists"))) + "]", []string{`offering 0: requirement "k" must be In with one value`}},
		"two values":                   {"[" + instanceType("x", cpuOnly, offering("1", "a", "spot", requirement("k", "In", "1", "2"))) + "]", []string{`offering 0: requirement "k" must be In with one value`}},
		"contradicting requirements":   {"[" + instanceType("x", cpuOnly, offering("1", "a", "spot", requirement(labelArch, "In", "arm64"))) + "]", []string{`offering 0: requirement "kubernetes.io/arch" is "arm64", but the machine has "amd64"`}},
		"two zones":                    {"[" + instanceType("x", cpuOnly, offering("1", "a", "spot", requirement(labelZone, "In", "b"))) + "]", []string{`requirement "topology.kubernetes.io/zone" is "b", but the machine has "a"`}},
		"no zone":                      {"[" + instanceType("x", cpuOnly, good, `{"Price":1,"Requirements":[`+requirement(labelCapacityType, "In", "spot")+`]}`) + "]", []string{"offering 1: it needs requirements for topology.kubernetes.io/zone and karpenter.sh/capacity-type"}},
		"no price":                     {"[" + instanceType("x", cpuOnly, offering("0", "a", "spot")) + "]", []string{"offering 0: the price 0 is not between 0 and a million dollars an hour"}},
		"a negative price":             {"[" + instanceType("x", cpuOnly, offering("-1", "a", "spot")) + "]", []string{"offering 0: the price -1 is not between"}},
		"an enormous price":            {"[" + instanceType("x", cpuOnly, offering("1e300", "a", "spot")) + "]", []string{"offering 0: the price 1e+300 is not between"}},
		"GPU memory is not an integer": {"[" + instanceType("x", oneGPU, gpuOffering(awsGPULabels.Memory, "lots")) + "]", []string{`label karpenter.k8s.aws/instance-gpu-memory: strconv.ParseInt: parsing "lots"`}},
		"no GPU memory":                {"[" + instanceType("x", oneGPU, gpuOffering(awsGPULabels.Memory, "0")) + "]", []string{"label karpenter.k8s.aws/instance-gpu-memory: 0 MiB is not above zero"}},
		"contradicting GPU counts":     {"[" + instanceType("x", oneGPU, gpuOffering(awsGPULabels.Count, "2")) + "]", []string{"label karpenter.k8s.aws/instance-gpu-count is 2, but the machine has 1 nvidia.com/gpu"}},
		"several errors":               {"[" + instanceType("x", cpuOnly) + "," + instanceType("y", cpuOnly, offering("0", "", "spot")) + "]", []string{`instance type "x": it has no offerings`, "offering 0: it needs requirements", "offering 0: the price 0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadKWOK(strings.NewReader(tc.file), awsGPULabels)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

func TestReadKWOKKeepsOfferingLabelsOnOfferings(t *testing.T) {
	t.Parallel()
	types, err := ReadKWOK(strings.NewReader("["+instanceType("x", cpuOnly,
		offering("1", "a", "spot", requirement("k", "In", "")), offering("1", "b", "spot"))+"]"), awsGPULabels)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := types[0].Labels["k"]; ok {
		t.Error("the type has the label that only its first offering has, which is empty")
	}
}

// wantSound fails the test unless the types meet the planner's assumptions.
func wantSound(t *testing.T, types []InstanceType) {
	t.Helper()
	if !slices.IsSortedFunc(types, func(a, b InstanceType) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the types are not sorted by name")
	}
	for _, it := range types {
		a, c := it.Allocatable, it.Capacity
		if c.MilliCPU <= 0 || c.MemoryBytes <= 0 || c.Pods <= 0 || c.EphemeralBytes < 0 || it.GPU.Count < 0 || it.GPU.MemoryMiB < 0 {
			t.Errorf("%s: capacity %+v, GPU %+v", it.Name, c, it.GPU)
		}
		if a.MilliCPU < 0 || a.MilliCPU > c.MilliCPU || a.MemoryBytes < 0 || a.MemoryBytes > c.MemoryBytes || a.Pods > c.Pods {
			t.Errorf("%s: allocatable %+v of capacity %+v", it.Name, a, c)
		}
		if len(it.Offerings) == 0 || it.Labels[labelInstanceType] != it.Name {
			t.Errorf("%s: %d offerings, labels %v", it.Name, len(it.Offerings), it.Labels)
		}
		for _, o := range it.Offerings {
			if o.MicroUSDPerHour <= 0 || o.Zone == "" || o.CapacityType == "" || o.Labels[labelZone] != o.Zone || o.Labels[labelCapacityType] != o.CapacityType {
				t.Errorf("%s: offering %+v", it.Name, o)
			}
		}
	}
}

func FuzzReadKWOK(f *testing.F) {
	f.Add([]byte("[" + instanceType("x", oneGPU, offering("1", "a", "spot", requirement(awsGPULabels.Memory, "In", "1"))) + "]"))
	f.Add([]byte("[" + instanceType("x", `"cpu":"9223372036854775807","memory":"1e30","pods":"-1"`, offering("1e-9", "a", "spot")) + "]"))
	f.Add([]byte(`null`))
	f.Add([]byte(`[null]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		types, err := ReadKWOK(bytes.NewReader(data), awsGPULabels)
		if err != nil {
			return
		}
		wantSound(t, types)
	})
}
