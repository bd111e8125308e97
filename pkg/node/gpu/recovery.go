package gpu

import "strconv"

// Recovery is what the driver asks for so that a GPU works again, with NVML's numbers. Newer drivers may have further ones.
type Recovery int

// Recoveries.
const (
	// RecoveryUnknown means that the driver or the GPU does not answer the question.
	RecoveryUnknown Recovery = -1
	RecoveryNone    Recovery = 0
	// RecoveryReset means that the work on the GPU has ended or must end, and that the GPU then needs a reset.
	RecoveryReset      Recovery = 1
	RecoveryRebootNode Recovery = 2
	// RecoveryDrainP2P means that all processes that exchange data with other GPUs must end. Then the driver gives another answer.
	RecoveryDrainP2P Recovery = 3
	// RecoveryDrainAndReset means that running work may end in its own time, but no new work may start before a reset.
	RecoveryDrainAndReset Recovery = 4
	// RecoveryIMEXDomain means that machines that share memory over NVLink must be connected again. The GPU itself works.
	RecoveryIMEXDomain   Recovery = 5
	RecoveryResetBus     Recovery = 6
	RecoveryRebootSystem Recovery = 7
)

var recoveryNames = map[Recovery]string{
	RecoveryUnknown: "Unknown", RecoveryNone: "None", RecoveryReset: "Reset", RecoveryRebootNode: "RebootNode", RecoveryDrainP2P: "DrainP2P",
	RecoveryDrainAndReset: "DrainAndReset", RecoveryIMEXDomain: "RecoverIMEXDomain", RecoveryResetBus: "ResetBus", RecoveryRebootSystem: "RebootSystem",
}

// String returns a word for a metric's label, or the number if there is no word.
func (r Recovery) String() string {
	if name, ok := recoveryNames[r]; ok {
		return name
	}
	return strconv.Itoa(int(r))
}
