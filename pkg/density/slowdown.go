package density

// AsAlone is the slowdown of a pod that has a GPU to itself, in millionths.
const AsAlone = 1_000_000

// Slowdown returns how many times as long a pod takes for the same work as if it had the GPU to itself, in millionths, if it shares it with others of its kind: pods in
// total, each of which keeps the GPU busy for busyPercent of the time when alone, 1 to 100.
//
// With D GPUs' worth of work, pods that take turns take 1.11·D times as long, and pods that run at the same time with MPS 0.45·D + 0.5 times. Both are fits to
// the mean latencies of 1 to 7 pods that nebuly-ai/nos publishes for YOLOS on an A100 (demos/gpu-sharing-comparison), with an error of at most 1 %. On an H200
// and an H100 kernels that use the whole GPU took 1.0·D times as long with time-slicing, and 0.9·D with MPS (docs/sharing-cost.md).
func Slowdown(mode Mode, pods, busyPercent int64) int64 {
	work := pods * busyPercent // In hundredths of a GPU.
	if pods <= 1 || work <= 100 {
		return AsAlone
	}
	if mode == TimeSlicing {
		return work * 11_100
	}
	return max(AsAlone, work*4_500+500_000)
}
