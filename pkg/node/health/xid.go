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
	Class Class
	// Means is a short description.
	Means string
}

// Look returns the catalog entry of an XID.
func Look(number int) XID {
	for _, of := range catalog {
		if slices.Contains(of.xids, number) {
			return XID{of.class, of.means}
		}
	}
	return XID{ClassUnknown, "not in NVIDIA's catalog as this agent knows it"}
}

// ignored are the XIDs that NVIDIA's device plugin treats as application errors (internal/rm/health.go in k8s-device-plugin).
var ignored = []int{13, 31, 43, 45, 68, 109}

// catalog follows the immediate actions in NVIDIA's XID catalog, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, which ends with 172.
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
var catalog = []struct {
	class Class
	means string
	xids  []int
}{
	{ClassApplication, "graphics engine exception", []int{13}},
	{ClassApplication, "GPU memory page fault", []int{31}},
	{ClassApplication, "GPU stopped processing", []int{8, 43}},
	{ClassApplication, "preemptive cleanup after an earlier error", []int{45}},
	{ClassApplication, "video decoder exception", []int{68}},
	{ClassApplication, "context switch timeout", []int{109}},
	{ClassApplication, "invalid or corrupted push buffer stream", []int{11, 32}},
	{ClassApplication, "invalid or illegal push buffer stream", []int{25}},
	{ClassApplication, "copy engine exception", []int{39, 40, 41}},
	{ClassApplication, "video processor exception", []int{60}},
	{ClassApplication, "graphics engine class error", []int{69}},
	{ClassApplication, "copy engine error", []int{70, 71, 72, 75, 76, 77, 85, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135}},
	{ClassApplication, "corrupted data sent to the GPU", []int{80}},
	{ClassApplication, "JPEG engine error", []int{82, 99, 100, 101, 102, 103, 104, 105}},
	{ClassApplication, "video decoder error", []int{83, 84, 88, 89, 96, 97, 98}},
	{ClassApplication, "optical flow engine exception", []int{86}},
	{ClassApplication, "optical flow engine error", []int{139}},
	{ClassApplication, "a program was ended to reset its channel", []int{174}},

	{ClassInformation, "driver firmware error", []int{37, 38}},
	{ClassInformation, "graphics engine fault during a context switch", []int{44}},
	{ClassInformation, "illegal access by the driver", []int{66, 67}},
	{ClassInformation, "high rate of corrected memory errors", []int{92}},
	{ClassInformation, "the GPU's configuration memory is written often", []int{93}},
	{ClassInformation, "test message", []int{106, 107}},
	{ClassInformation, "remote NVLink translation error", []int{108}},
	{ClassInformation, "error on the link between CPU and GPU", []int{121}},
	{ClassInformation, "NVLink privilege error", []int{137}},
	{ClassInformation, "CUDA fast path error", []int{141}},
	{ClassInformation, "deep learning accelerator memory error", []int{152}},
	{ClassInformation, "deep learning accelerator timeout", []int{153}},
	{ClassInformation, "the driver's advice about an earlier XID changed", []int{154}},
	{ClassInformation, "a virtual GPU did not start", []int{78}},
	{ClassInformation, "a resource could not be retired", []int{157}},
	{ClassInformation, "a channel was retired", []int{160}},
	{ClassInformation, "a channel could not be retired", []int{161}},
	{ClassInformation, "power smoothing is available again", []int{162}},
	{ClassInformation, "power smoothing is not available", []int{163}},
	{ClassInformation, "the parts for power smoothing are almost worn out", []int{164}},
	{ClassInformation, "the parts for power smoothing are worn out", []int{165}},

	{ClassReset, "GPU stopped processing and did not recover", []int{46}},
	{ClassReset, "uncorrectable double bit memory error", []int{48}},
	{ClassReset, "internal micro-controller halted", []int{62}},
	{ClassReset, "bad memory found, and taken out of use at the next reset", []int{63}},
	{ClassReset, "bad memory found that could not be taken out of use", []int{64}},
	{ClassReset, "uncorrectable memory error that hit one application", []int{94}},
	{ClassReset, "uncorrectable memory error that may have hit any application", []int{95}},
	{ClassReset, "security fault", []int{110}},
	{ClassReset, "the GPU's system processor does not answer", []int{119}},
	{ClassReset, "the GPU's system processor reported an error", []int{120}},
	{ClassReset, "NVLink training failed", []int{136}},
	{ClassReset, "unrecovered memory error", []int{140}},
	{ClassReset, "GPU initialization error", []int{143}},
	{ClassReset, "NVLink error found by software", []int{155}},
	{ClassReset, "a resource was retired, for good at the next reset", []int{156}},
	{ClassReset, "fatal timeout", []int{158}},
	{ClassReset, "fatal timeout on PCIe", []int{167}},
	{ClassReset, "less memory than the GPU should have, because of errors in a protected part of it", []int{168}},
	{ClassReset, "internal security micro-controller halted", []int{169}},
	{ClassReset, "uncorrectable error in the GPU's memory", []int{171}},
	{ClassReset, "uncorrectable error in an internal memory of the GPU", []int{172}},

	{ClassReplace, "auxiliary power is not connected", []int{54}},
	{ClassReplace, "NVLink error", []int{74}},
	{ClassReplace, "GPU has fallen off the bus", []int{79}},
	{ClassReplace, "key rotation error", []int{151}},
	{ClassReplace, "the link between CPU and GPU is lost", []int{173}},

	{ClassUnknown, "NVLink error (SAW)", []int{144}},
	{ClassUnknown, "NVLink error (RLW)", []int{145}},
	{ClassUnknown, "NVLink error (TLW)", []int{146}},
	{ClassUnknown, "NVLink error (TREX)", []int{147}},
	{ClassUnknown, "NVLink error (NVLPW)", []int{148}},
	{ClassUnknown, "NVLink error (NETIR)", []int{149}},
	{ClassUnknown, "NVLink error (MSE)", []int{150}},
	{ClassUnknown, "video encoder error", []int{142}},
	{ClassUnknown, "error on the link between CPU and GPU", []int{159}},
	{ClassUnknown, "NVLink was used before its encryption was configured", []int{166}},
	{ClassUnknown, "NVLink error in confidential computing", []int{170}},
	{ClassUnknown, "error in the memory subsystem", []int{175}},
	{ClassUnknown, "many corrected errors on PCIe", []int{176}},
	{ClassUnknown, "unused according to NVIDIA's catalog", []int{
		1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 33, 34, 35, 36, 42, 47, 49, 50, 51, 52, 53, 55, 56, 57, 58, 59,
		61, 65, 73, 81, 87, 90, 91, 111, 112, 113, 114, 115, 116, 117, 118, 122, 123, 124, 125, 138,
	}},
}
