package health

import "slices"

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
	// ClassUnknown is for XIDs that are not in the catalog, and for those about which it leaves the decision to the driver, says nothing, or says that
	// drivers do not report them. They count as faults that a reset may repair, unless the driver asks for nothing.
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
	if slices.Contains(unused, number) {
		return XID{Number: number, Class: ClassUnknown, Means: "unused according to NVIDIA's catalog"}
	}
	return XID{Number: number, Class: ClassUnknown, Means: "not in NVIDIA's catalog as this agent knows it"}
}

// ignored are the XIDs that NVIDIA's device plugin treats as application errors (internal/rm/health.go in k8s-device-plugin).
var ignored = []int{13, 31, 43, 45, 68, 109}

// unused are the XIDs that NVIDIA's catalog lists as unused.
var unused = []int{
	1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 33, 34, 35, 36, 42, 47, 49, 50, 51, 52, 53, 55, 56, 57, 58, 59,
	61, 65, 73, 81, 87, 90, 91, 111, 112, 113, 114, 115, 116, 117, 118, 122, 123, 124, 125, 138,
}

// known follows the immediate actions in NVIDIA's XID catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, which ends with 172.
// IGNORE and RESTART_APP leave the GPU in service. RESET_GPU takes it out of service. RESTART_BM, RESTART_VM, CHECK_MECHANICALS and the workflow of
// XID 74, which ends at the vendor of the machine, require another machine, which takes a minute in a cloud. UPDATE_SWFW concerns the start of a virtual
// GPU. The differences are:
//   - 109 is RESET_GPU in NVIDIA's catalog, but NVIDIA's device plugin ignores it. A timeout in the context of one program should not take the GPU away
//     from nine others.
//   - 48 has a workflow in NVIDIA's catalog that ends with a reset in most cases.
//   - 63 and 94 are IGNORE and RESTART_APP in NVIDIA's catalog, with a reset at the next opportunity, because the bad memory stays in use until then (and
//     page retirement on Turing and older needs a reload of the driver). Another program that reads this memory fails again, so new pods must not use the
//     GPU. Running pods stay.
//   - 144 to 150 and 159 have workflows that depend on details of the message, which NVML does not report, and on what the driver asks for. The driver
//     decides. All drivers that report them answer.
//   - 162 to 165 have no action but comments: power smoothing was turned on or off, or its parts wear out, and the GPU works.
//   - 166 to 172 have no action. 171 and 172 add details to 48. 167 and 169 are like 158 and 62. 168 asks for another start of the GPU. 166 and 170 only
//     occur in confidential computing, and the driver decides.
//   - 173 to 176 are not in the catalog but in the header nverror.h of NVIDIA's open kernel modules 595. 173 is the loss of a link. After 174, a program
//     was ended. For 175 and 176, the driver decides.
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
	174: {Class: ClassApplication, Means: "a program was ended to reset its channel"},

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
	78:  {Class: ClassInformation, Means: "a virtual GPU did not start"},
	157: {Class: ClassInformation, Means: "a resource could not be retired"},
	160: {Class: ClassInformation, Means: "a channel was retired"},
	161: {Class: ClassInformation, Means: "a channel could not be retired"},
	162: {Class: ClassInformation, Means: "power smoothing is available again"},
	163: {Class: ClassInformation, Means: "power smoothing is not available"},
	164: {Class: ClassInformation, Means: "the parts for power smoothing are almost worn out"},
	165: {Class: ClassInformation, Means: "the parts for power smoothing are worn out"},

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
	167: {Class: ClassReset, Means: "fatal timeout on PCIe"},
	168: {Class: ClassReset, Means: "less memory than the GPU should have, because of errors in a protected part of it"},
	169: {Class: ClassReset, Means: "internal security micro-controller halted"},
	171: {Class: ClassReset, Means: "uncorrectable error in the GPU's memory"},
	172: {Class: ClassReset, Means: "uncorrectable error in an internal memory of the GPU"},

	54:  {Class: ClassReplace, Means: "auxiliary power is not connected"},
	74:  {Class: ClassReplace, Means: "NVLink error"},
	79:  {Class: ClassReplace, Means: "GPU has fallen off the bus"},
	151: {Class: ClassReplace, Means: "key rotation error"},
	173: {Class: ClassReplace, Means: "the link between CPU and GPU is lost"},

	144: {Class: ClassUnknown, Means: "NVLink error (SAW)"},
	145: {Class: ClassUnknown, Means: "NVLink error (RLW)"},
	146: {Class: ClassUnknown, Means: "NVLink error (TLW)"},
	147: {Class: ClassUnknown, Means: "NVLink error (TREX)"},
	148: {Class: ClassUnknown, Means: "NVLink error (NVLPW)"},
	149: {Class: ClassUnknown, Means: "NVLink error (NETIR)"},
	150: {Class: ClassUnknown, Means: "NVLink error (MSE)"},
	142: {Class: ClassUnknown, Means: "video encoder error"},
	159: {Class: ClassUnknown, Means: "error on the link between CPU and GPU"},
	166: {Class: ClassUnknown, Means: "NVLink was used before its encryption was configured"},
	170: {Class: ClassUnknown, Means: "NVLink error in confidential computing"},
	175: {Class: ClassUnknown, Means: "error in the memory subsystem"},
	176: {Class: ClassUnknown, Means: "many corrected errors on PCIe"},
}
