package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
)

// Environment variables of NVIDIA's device plugin.
const (
	DisableEnv = "DP_DISABLE_HEALTHCHECKS"
	EnableEnv  = "DP_ENABLE_HEALTHCHECKS"
)

// Policy decides which XIDs take a GPU out of service. By default, XIDs that NVIDIA's device plugin ignores do not, nor those for which NVIDIA's catalog
// only asks to restart the application. NVIDIA's plugin treats the latter as fatal, so that the error of one program takes a shared GPU away from all
// others.
type Policy struct {
	disableAll, enableAll bool
	disabled, enabled     []int
}

// ParsePolicy parses the two variables as NVIDIA's plugin does. Each is "all", its synonym "xids", or a comma-separated list of XIDs. Enabled XIDs take
// precedence over disabled ones, and both over the default. A single XID takes precedence over "all" in the other list. problems are unknown words,
// which are ignored.
func ParsePolicy(disable, enable string) (p Policy, problems []string) {
	p.disableAll, p.disabled, problems = parseList(DisableEnv, disable)
	var more []string
	p.enableAll, p.enabled, more = parseList(EnableEnv, enable)
	return p, append(problems, more...)
}

func parseList(name, value string) (all bool, xids []int, problems []string) {
	for word := range strings.SplitSeq(strings.ToLower(value), ",") {
		word = strings.TrimSpace(word)
		if word == "" {
			continue
		}
		if word == "all" || word == "xids" {
			return true, nil, problems
		}
		xid, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %q is neither an XID nor \"all\" nor \"xids\"; it is ignored", name, word))
			continue
		}
		// NVIDIA's plugin represents "all" as XID 0, so a 0 in the list also means "all".
		if xid == 0 {
			return true, nil, problems
		}
		xids = append(xids, int(xid))
	}
	return false, xids, problems
}

// Off reports whether no event takes a GPU out of service, so that there is no need to wait for events.
func (p Policy) Off() bool { return p.disableAll && !p.enableAll && len(p.enabled) == 0 }

// Counts reports whether an XID takes a GPU out of service.
func (p Policy) Counts(xid int) bool {
	switch {
	case p.enableAll, slices.Contains(p.enabled, xid):
		return true
	case p.disableAll, slices.Contains(p.disabled, xid), slices.Contains(ignored, xid):
		return false
	}
	switch Look(xid).Class {
	case ClassInformation, ClassApplication:
		return false
	default:
		return true
	}
}

// recoveryChanged is the XID with which the driver reports that it asks for something else than before.
const recoveryChanged = 154

// trustsDriver reports whether the driver's answers count. XID 154 in the list of disabled ones turns that off.
func (p Policy) trustsDriver() bool {
	return p.enableAll || slices.Contains(p.enabled, recoveryChanged) || !p.disableAll && !slices.Contains(p.disabled, recoveryChanged)
}

// CountsRecovery reports whether a GPU is out of service while the driver asks for this.
func (p Policy) CountsRecovery(r gpu.Recovery) bool {
	return p.trustsDriver() && recoveryClass(r) != ClassInformation
}

// Doubtful reports whether the driver should be asked at once what a GPU needs after an XID.
func (p Policy) Doubtful(xid int) bool {
	return p.trustsDriver() && (xid == recoveryChanged || p.Counts(xid))
}

// yields reports whether an XID does not count if the driver asks for nothing: it is not in the catalog, and nobody has enabled it.
func (p Policy) yields(xid int) bool {
	return !p.enableAll && !slices.Contains(p.enabled, xid) && Look(xid).Class == ClassUnknown
}

// CountsLost reports whether a GPU that no longer answers is out of service. That corresponds to XID 79.
func (p Policy) CountsLost() bool { return p.Counts(79) }

// recoveries has the class of what the driver asks for, and a phrase for it. RecoveryIMEXDomain concerns memory that machines share over NVLink, which no
// shared GPU uses.
var recoveries = map[gpu.Recovery]struct {
	class  Class
	phrase string
}{
	gpu.RecoveryReset:         {ClassReset, "must be reset"},
	gpu.RecoveryRebootNode:    {ClassReplace, "needs a reboot of the machine"},
	gpu.RecoveryDrainP2P:      {ClassDrain, "must be drained of work that spans GPUs"},
	gpu.RecoveryDrainAndReset: {ClassReset, "must be drained and reset"},
	gpu.RecoveryIMEXDomain:    {ClassInformation, "needs its IMEX domain recovered"},
	gpu.RecoveryResetBus:      {ClassReplace, "needs a reset of its PCIe bus"},
	gpu.RecoveryRebootSystem:  {ClassReplace, "needs a reboot of the system"},
}

// recoveryClass returns the class of what the driver asks for. It is ClassInformation if the GPU can stay in service.
func recoveryClass(r gpu.Recovery) Class {
	if known, ok := recoveries[r]; ok {
		return known.class
	}
	if r > gpu.RecoveryNone {
		return ClassUnknown
	}
	return ClassInformation
}
