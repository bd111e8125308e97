// Package mig describes Multi-Instance GPU: the profiles of instances, the GPUs that have them, and where instances fit on a GPU. The controller plans
// with it, and the agent creates instances with it.
package mig

import (
	"fmt"
	"regexp"
	"strings"

	"karve.sh/karve/pkg/nodecontract"
)

// resourcePrefix precedes the profile in the name of a resource.
const resourcePrefix = nodecontract.NVIDIAPrefix + "mig-"

// profile matches the profiles of GPU instances whose compute is not divided further, for example "1g.5gb" and "1g.5gb+me".
var profile = regexp.MustCompile(`^[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z]+(\.[a-z]+)?)?$`)

// CheckProfile returns an error if the name is not a profile name in nvidia-smi's format.
func CheckProfile(name string) error {
	if !profile.MatchString(name) {
		return fmt.Errorf("%.64q is not a profile of MIG instances: write it as `nvidia-smi mig -lgip` does, for instance 1g.5gb", name)
	}
	return nil
}

// Resource returns the resource of the instances of a profile with the naming Mixed, for example "nvidia.com/mig-1g.5gb". As in NVIDIA's device plugin,
// a plus sign becomes a dot.
func Resource(profile string) string {
	return resourcePrefix + strings.ReplaceAll(profile, "+", ".")
}

// Names joins the names of the profiles, for messages.
func Names(kinds []Kind) string {
	var names []string
	for i := range kinds {
		names = append(names, kinds[i].Profile)
	}
	return strings.Join(names, ", ")
}
