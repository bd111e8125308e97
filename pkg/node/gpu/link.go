package gpu

// Link is the connection of two GPUs of a machine.
type Link struct {
	// A and B are the UUIDs of the GPUs.
	A, B string
	// NVLinks is the number of NVLinks that connect the two directly. NVLinks to a switch, which connects all GPUs equally, do not count.
	NVLinks int
	// Path is the path over PCIe.
	Path Path
}

// Path is the distance of two GPUs on PCIe, with NVML's numbers.
type Path int

// Paths, from near to far.
const (
	PathSameBoard    Path = 0
	PathSingleSwitch Path = 10
	PathMultiSwitch  Path = 20
	PathHostBridge   Path = 30
	PathSameCPU      Path = 40
	PathCrossCPU     Path = 50
	// PathUnknown is a path that NVML does not report.
	PathUnknown Path = -1
)

// Score returns how well two GPUs are connected. The numbers are those of the best-effort policy of NVIDIA's go-gpuallocator: 100 for each NVLink, and
// 10 to 60 for the path over PCIe.
func (l Link) Score() int {
	score := 100 * l.NVLinks
	switch l.Path {
	case PathSameBoard:
		score += 60
	case PathSingleSwitch:
		score += 50
	case PathMultiSwitch:
		score += 40
	case PathHostBridge:
		score += 30
	case PathSameCPU:
		score += 20
	case PathCrossCPU:
		score += 10
	case PathUnknown:
	}
	return score
}
