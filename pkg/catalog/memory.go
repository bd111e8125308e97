package catalog

// model is what tells GPUs apart whose drivers report different amounts: some are sold with two sizes of memory.
type model struct {
	name      string
	memoryMiB int64
}

// usableMiB is what programs see of the device memory, in MiB, where it is less than what the cloud's API says: the driver keeps some for itself, and
// the error correction of GDDR memory takes a sixteenth. They are the total
// capacities in CUDA's out-of-memory messages, as users paste them (A10G 21.99 GiB, L4 21.95, A100 79.14, H100 79.10 …); drivers differ by some MiB.
var usableMiB = map[model]int64{
	{"t4", 16384}:    15079,
	{"t4g", 16384}:   15079,
	{"a10g", 22888}:  22517,
	{"l4", 22888}:    22478,
	{"l40s", 45776}:  45465,
	{"v100", 16384}:  16148,
	{"v100", 32768}:  32501,
	{"a100", 40960}:  40335,
	{"a100", 81920}:  81039,
	{"h100", 81920}:  80998,
	{"h200", 144384}: 143071,
}

// UsableMiB is how much device memory of each GPU programs can use, in MiB; 0 when nothing is known of it. A node that has started may say better.
func (g GPU) UsableMiB() int64 {
	if usable, ok := usableMiB[model{g.Name, g.MemoryMiB}]; ok {
		return usable
	}
	return g.MemoryMiB
}
