package catalog

// Driver is what NVIDIA's driver reports about the GPUs of a model.
type Driver struct {
	// Product is the name of the product, or "" if drivers and machines differ.
	Product string
	// Major and Minor are the CUDA compute capability (https://developer.nvidia.com/cuda-gpus).
	Major, Minor int
	// Display reports whether the GPU may be a display controller, depending on the machine.
	Display bool
}

// drivers has the models of EC2 by the cloud's name. If a name is sold with two sizes of memory, the product of each is in products.
var drivers = map[string]Driver{
	"m60": {"Tesla M60", 5, 2, true}, "p100": {"", 6, 0, false}, "p4": {"Tesla P4", 6, 1, false}, "v100": {"", 7, 0, false},
	"t4": {"Tesla T4", 7, 5, false}, "t4g": {"NVIDIA T4G", 7, 5, false}, "a100": {"", 8, 0, false}, "a10": {"NVIDIA A10", 8, 6, false},
	"a10g": {"NVIDIA A10G", 8, 6, false}, "l4": {"NVIDIA L4", 8, 9, false}, "l40s": {"NVIDIA L40S", 8, 9, false},
	"h100": {"NVIDIA H100 80GB HBM3", 9, 0, false}, "h200": {"NVIDIA H200", 9, 0, false}, "b200": {"NVIDIA B200", 10, 0, false},
	"b300": {"", 10, 3, false}, "rtx-pro-server-6000": {"NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, true},
	"rtx-pro-4500": {"NVIDIA RTX PRO 4500 Blackwell Server Edition", 12, 0, true},
}

var products = map[model]string{
	{"v100", 16384}: "Tesla V100-SXM2-16GB", {"v100", 32768}: "Tesla V100-SXM2-32GB",
	{"a100", 40960}: "NVIDIA A100-SXM4-40GB", {"a100", 81920}: "NVIDIA A100-SXM4-80GB",
}

// Driver returns what the driver reports about the GPU. It returns false for a model that is not known here.
func (g GPU) Driver() (Driver, bool) {
	d, ok := drivers[g.Name]
	if product, sized := products[model{g.Name, g.MemoryMiB}]; sized {
		d.Product = product
	}
	return d, ok
}

// ReportedMiB returns bounds of the device memory of each GPU that the driver reports, in MiB. Versions of the driver differ: some leave out what they
// reserve. Both are 0 if they are unknown.
func (g GPU) ReportedMiB() (lowest, highest int64) {
	if g.MemoryMiB <= 0 {
		return 0, 0
	}
	lowest = g.MemoryMiB / 16 * 14
	if g.UsableKnown() {
		lowest = g.UsableMiB()
	}
	return lowest, g.MemoryMiB / 16 * 17
}
