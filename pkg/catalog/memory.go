package catalog

// model identifies GPUs for which drivers report the same memory. Some model names are sold with two sizes of memory.
type model struct {
	name      string
	memoryMiB int64
}

// usableMiB is the device memory that programs can use, in MiB, for models for which it is less than the cloud's API reports: the driver reserves some
// of it, and error correction takes a sixteenth of GDDR memory. The values are the total capacities in CUDA's out-of-memory messages that users have
// posted (A10G 21.99 GiB, L4 21.95, A100 79.14, H100 79.10 …). Drivers differ by a few MiB.
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

// UsableMiB returns the device memory of each GPU that programs can use, in MiB, or 0 if unknown. The labels of a started node may be more accurate.
func (g GPU) UsableMiB() int64 {
	if usable, ok := usableMiB[model{g.Name, g.MemoryMiB}]; ok {
		return usable
	}
	return g.MemoryMiB
}

// UsableKnown reports whether UsableMiB is the memory that programs can use, which is less than nodes report. For other models it is the cloud's
// amount, which may be more.
func (g GPU) UsableKnown() bool {
	_, ok := usableMiB[model{g.Name, g.MemoryMiB}]
	return ok
}
