package health

// Class is the class of an XID.
type Class string

// Classes, the least severe first.
const (
	// ClassInformation is not a fault.
	ClassInformation Class = "Information"
	// ClassApplication is a fault of a program, or a fault that ended a program and left the GPU working.
	ClassApplication Class = "Application"
	// ClassDrain is a fault after which work that spans several GPUs must end. Only the driver reports it.
	ClassDrain Class = "Drain"
	// ClassReset is a fault after which the GPU needs a reset.
	ClassReset Class = "Reset"
	// ClassReplace is a fault after which the machine must be replaced or at least rebooted, because the GPU or its links are lost.
	ClassReplace Class = "Replace"
	// ClassUnknown is for XIDs that are not in the catalog. They count as faults that a reset may repair, unless the driver asks for nothing.
	ClassUnknown Class = "Unknown"
)

// XID is an entry of the catalog.
type XID struct {
	Number int
	Class  Class
	// Means is a short description.
	Means string
}

// Look returns the catalog entry of an XID.
func Look(number int) XID {
	if x, ok := known[number]; ok {
		x.Number = number
		return x
	}
	return XID{Number: number, Class: ClassUnknown, Means: "not in NVIDIA's catalog as this agent knows it"}
}

// ignored are the XIDs that NVIDIA's device plugin treats as application errors (internal/rm/health.go in k8s-device-plugin).
var ignored = []int{13, 31, 43, 45, 68, 109}

// known follows the immediate actions in NVIDIA's XID catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. IGNORE and
// RESTART_APP leave the GPU in service. RESET_GPU takes it out of service. RESTART_BM, RESTART_VM, CHECK_MECHANICALS and the NVLink workflows, which
// end at the vendor of the machine, require another machine, which takes a minute in a cloud. The differences are:
//   - 109 is RESET_GPU in NVIDIA's catalog, but NVIDIA's device plugin ignores it. A timeout in the context of one program should not take the GPU away
//     from nine others.
//   - 48 has a workflow in NVIDIA's catalog that ends with a reset in most cases.
//   - 63 and 94 are IGNORE and RESTART_APP in NVIDIA's catalog, with a reset at the next opportunity, because the bad memory stays in use until then (and
//     page retirement on Turing and older needs a reload of the driver). Another program that reads this memory fails again, so new pods must not use the
//     GPU. Running pods stay.
var known = map[int]XID{
	13:  {Class: ClassApplication, Means: "graphics engine exception"},
	31:  {Class: ClassApplication, Means: "GPU memory page fault"},
	43:  {Class: ClassApplication, Means: "GPU stopped processing"},
	45:  {Class: ClassApplication, Means: "preemptive cleanup after an earlier error"},
	68:  {Class: ClassApplication, Means: "video decoder exception"},
	109: {Class: ClassApplication, Means: "context switch timeout"},

	8:   {Class: ClassApplication, Means: "GPU stopped processing"},
	11:  {Class: ClassApplication, Means: "invalid or corrupted push buffer stream"},
	25:  {Class: ClassApplication, Means: "invalid or illegal push buffer stream"},
	32:  {Class: ClassApplication, Means: "invalid or corrupted push buffer stream"},
	39:  {Class: ClassApplication, Means: "copy engine exception"},
	40:  {Class: ClassApplication, Means: "copy engine exception"},
	41:  {Class: ClassApplication, Means: "copy engine exception"},
	60:  {Class: ClassApplication, Means: "video processor exception"},
	69:  {Class: ClassApplication, Means: "graphics engine class error"},
	70:  {Class: ClassApplication, Means: "copy engine error"},
	71:  {Class: ClassApplication, Means: "copy engine error"},
	72:  {Class: ClassApplication, Means: "copy engine error"},
	75:  {Class: ClassApplication, Means: "copy engine error"},
	76:  {Class: ClassApplication, Means: "copy engine error"},
	77:  {Class: ClassApplication, Means: "copy engine error"},
	80:  {Class: ClassApplication, Means: "corrupted data sent to the GPU"},
	82:  {Class: ClassApplication, Means: "JPEG engine error"},
	83:  {Class: ClassApplication, Means: "video decoder error"},
	84:  {Class: ClassApplication, Means: "video decoder error"},
	85:  {Class: ClassApplication, Means: "copy engine error"},
	86:  {Class: ClassApplication, Means: "optical flow engine exception"},
	88:  {Class: ClassApplication, Means: "video decoder error"},
	89:  {Class: ClassApplication, Means: "video decoder error"},
	96:  {Class: ClassApplication, Means: "video decoder error"},
	97:  {Class: ClassApplication, Means: "video decoder error"},
	98:  {Class: ClassApplication, Means: "video decoder error"},
	99:  {Class: ClassApplication, Means: "JPEG engine error"},
	100: {Class: ClassApplication, Means: "JPEG engine error"},
	101: {Class: ClassApplication, Means: "JPEG engine error"},
	102: {Class: ClassApplication, Means: "JPEG engine error"},
	103: {Class: ClassApplication, Means: "JPEG engine error"},
	104: {Class: ClassApplication, Means: "JPEG engine error"},
	105: {Class: ClassApplication, Means: "JPEG engine error"},
	126: {Class: ClassApplication, Means: "copy engine error"},
	127: {Class: ClassApplication, Means: "copy engine error"},
	128: {Class: ClassApplication, Means: "copy engine error"},
	129: {Class: ClassApplication, Means: "copy engine error"},
	130: {Class: ClassApplication, Means: "copy engine error"},
	131: {Class: ClassApplication, Means: "copy engine error"},
	132: {Class: ClassApplication, Means: "copy engine error"},
	133: {Class: ClassApplication, Means: "copy engine error"},
	134: {Class: ClassApplication, Means: "copy engine error"},
	135: {Class: ClassApplication, Means: "copy engine error"},
	139: {Class: ClassApplication, Means: "optical flow engine error"},

	37:  {Class: ClassInformation, Means: "driver firmware error"},
	38:  {Class: ClassInformation, Means: "driver firmware error"},
	44:  {Class: ClassInformation, Means: "graphics engine fault during a context switch"},
	66:  {Class: ClassInformation, Means: "illegal access by the driver"},
	67:  {Class: ClassInformation, Means: "illegal access by the driver"},
	92:  {Class: ClassInformation, Means: "high rate of corrected memory errors"},
	93:  {Class: ClassInformation, Means: "the GPU's configuration memory is written often"},
	106: {Class: ClassInformation, Means: "test message"},
	107: {Class: ClassInformation, Means: "test message"},
	108: {Class: ClassInformation, Means: "remote NVLink translation error"},
	121: {Class: ClassInformation, Means: "error on the link between CPU and GPU"},
	137: {Class: ClassInformation, Means: "NVLink privilege error"},
	141: {Class: ClassInformation, Means: "CUDA fast path error"},
	152: {Class: ClassInformation, Means: "deep learning accelerator memory error"},
	153: {Class: ClassInformation, Means: "deep learning accelerator timeout"},
	154: {Class: ClassInformation, Means: "the driver's advice about an earlier XID changed"},
	157: {Class: ClassInformation, Means: "a resource could not be retired"},
	160: {Class: ClassInformation, Means: "a channel was retired"},
	161: {Class: ClassInformation, Means: "a channel could not be retired"},

	46:  {Class: ClassReset, Means: "GPU stopped processing and did not recover"},
	48:  {Class: ClassReset, Means: "uncorrectable double bit memory error"},
	62:  {Class: ClassReset, Means: "internal micro-controller halted"},
	63:  {Class: ClassReset, Means: "bad memory found, and taken out of use at the next reset"},
	64:  {Class: ClassReset, Means: "bad memory found that could not be taken out of use"},
	94:  {Class: ClassReset, Means: "uncorrectable memory error that hit one application"},
	95:  {Class: ClassReset, Means: "uncorrectable memory error that may have hit any application"},
	110: {Class: ClassReset, Means: "security fault"},
	119: {Class: ClassReset, Means: "the GPU's system processor does not answer"},
	120: {Class: ClassReset, Means: "the GPU's system processor reported an error"},
	136: {Class: ClassReset, Means: "NVLink training failed"},
	140: {Class: ClassReset, Means: "unrecovered memory error"},
	143: {Class: ClassReset, Means: "GPU initialization error"},
	155: {Class: ClassReset, Means: "NVLink error found by software"},
	156: {Class: ClassReset, Means: "a resource was retired, for good at the next reset"},
	158: {Class: ClassReset, Means: "fatal timeout"},

	54:  {Class: ClassReplace, Means: "auxiliary power is not connected"},
	74:  {Class: ClassReplace, Means: "NVLink error"},
	79:  {Class: ClassReplace, Means: "GPU has fallen off the bus"},
	144: {Class: ClassReplace, Means: "NVLink error (SAW)"},
	145: {Class: ClassReplace, Means: "NVLink error (RLW)"},
	146: {Class: ClassReplace, Means: "NVLink error (TLW)"},
	147: {Class: ClassReplace, Means: "NVLink error (TREX)"},
	148: {Class: ClassReplace, Means: "NVLink error (NVLPW)"},
	149: {Class: ClassReplace, Means: "NVLink error (NETIR)"},
	150: {Class: ClassReplace, Means: "NVLink error (MSE)"},
	151: {Class: ClassReplace, Means: "key rotation error"},
}
