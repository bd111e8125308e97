package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The environment variables of NVIDIA's device plugin.
const (
	DisableEnv = "DP_DISABLE_HEALTHCHECKS"
	EnableEnv  = "DP_ENABLE_HEALTHCHECKS"
)

// Policy says which XIDs take a GPU out of service. The zero value is the default: those that NVIDIA's device plugin ignores do not, and
// neither do those whose catalogue entry asks for nothing but another start of the application. NVIDIA's plugin takes the latter for
// fatal; on a shared GPU that lets one program's mistake take the GPU from all others.
type Policy struct {
	disableAll, enableAll bool
	disabled, enabled     []int
}

// ParsePolicy reads the two variables as NVIDIA's plugin does: each is "all", "xids" (the same), or a list of XIDs with commas. What is
// enabled wins over what is disabled, and both over the default; a single XID wins over "all" of the other list. problems are
// words that mean nothing and are ignored.
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
		// NVIDIA's plugin keeps "all" as the XID 0, so that a 0 in the list is "all" too.
		if xid == 0 {
			return true, nil, problems
		}
		xids = append(xids, int(xid))
	}
	return false, xids, problems
}

// Off says that no event changes anything, so that none need be waited for.
func (p Policy) Off() bool { return p.disableAll && !p.enableAll && len(p.enabled) == 0 }

// Counts says whether an XID takes a GPU out of service.
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

// CountsLost says whether a GPU that does not answer any more is out of service. That is what XID 79 says.
func (p Policy) CountsLost() bool { return p.Counts(79) }
