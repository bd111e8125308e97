// Package mig describes Multi-Instance GPU: the profiles of instances, the GPUs that have them, and where instances fit on a GPU. The controller plans
// with it, and the agent creates instances with it.
package mig

import (
	"fmt"
	"regexp"
	"slices"
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

// Profiles returns the profile of each instance.
func Profiles(instances []nodecontract.MIGInstances) []string {
	var all []string
	for _, of := range instances {
		all = append(all, slices.Repeat([]string{of.Profile}, int(max(0, min(of.Count, nodecontract.MaxMIGInstances))))...)
	}
	return all
}

// Offer is what a machine has of a resource.
type Offer struct {
	Resource string
	// Replicas is the number of replicas of all instances of the resource.
	Replicas int64
	// MemoryMiB is the device memory in MiB of an instance, and PerInstance the number of its replicas.
	MemoryMiB, PerInstance int64
}

// Offers returns what a machine with a number of GPUs has of each resource, sorted by profile. The GPUs have [nodecontract.MIG.Groups].
func Offers(m nodecontract.MIG, gpus int64) []Offer {
	all := m.Instances(gpus)
	offers := make([]Offer, 0, len(all))
	for _, of := range all {
		offers = append(offers, Offer{SharedResource(of.Profile, m.PerInstance()), of.Count * m.PerInstance(), of.MemoryMiB, m.PerInstance()})
	}
	return offers
}

// SharedResource returns the resource of the replicas of instances of a profile with the naming Mixed, for example "nvidia.com/mig-1g.5gb.shared".
func SharedResource(profile string, replicas int64) string {
	if replicas > 1 {
		return Resource(profile) + SharedSuffix
	}
	return Resource(profile)
}

// SharedSuffix is what NVIDIA's device plugin adds to the names of resources whose replicas are renamed.
const SharedSuffix = ".shared"

// IsResource reports whether a resource is that of instances of a profile, shared or not.
func IsResource(name string) bool { return strings.HasPrefix(name, resourcePrefix) }
