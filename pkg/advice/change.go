package advice

import "slices"

// Kind is the kind of a change.
type Kind string

// Kinds of changes.
const (
	// Requests lowers what a workload requests of CPU and memory.
	Requests Kind = "Requests"
	// DeviceMemory lowers the device memory that a workload states.
	DeviceMemory Kind = "DeviceMemory"
	// Replicas raises the number of replicas of a GPU.
	Replicas Kind = "Replicas"
	// Sharing shares GPUs that pods have for themselves.
	Sharing Kind = "Sharing"
	// Fewer lowers the number of replicas that a workload requests.
	Fewer Kind = "Fewer"
	// Merge moves the workloads of a NodePool to another.
	Merge Kind = "Merge"
	// Types allows a NodePool more instance types.
	Types Kind = "Types"
	// Share moves a workload whose pods have whole GPUs to a NodePool that shares them.
	Share Kind = "Share"
	// Headroom keeps fewer replicas free.
	Headroom Kind = "Headroom"
	// Expiry lets machines live longer.
	Expiry Kind = "Expiry"
)

// Change is a change to make.
type Change struct {
	Kind Kind `json:"kind"`
	// Object is what to change, and Do how.
	Object string `json:"object"`
	Do     string `json:"do"`
	// Evidence is what was measured. Risks are what may become worse.
	Evidence []string `json:"evidence"`
	Risks    []string `json:"risks,omitempty"`
	Patches  []Patch  `json:"patches,omitempty"`
	// Namespace is that of the workload, or "" for a change that concerns several.
	Namespace string `json:"namespace,omitempty"`
}

// Patch is a patch as kubectl takes it.
type Patch struct {
	// Command is the command that reads the patch from its standard input. It is "" if the object cannot be patched: then the patch is for the manifest of which it is made.
	Command string `json:"command,omitempty"`
	YAML    string `json:"yaml"`
}

type change struct {
	Change
	apply func(*scenario)
	// withFewer is the same change with a smaller number of replicas, which risks less. It is nil if there is none. maxReplicas is the number of the change, and
	// minReplicas the smallest that is one.
	withFewer                func(replicas int64) change
	minReplicas, maxReplicas int64
}

// grouped joins changes of a kind to one: those that are alone too small to measure.
func grouped(all []change) change {
	one := change{Change: Change{Kind: all[0].Kind, Object: all[0].Object, Do: all[0].Do}}
	for i := range all {
		c := &all[i]
		for _, text := range c.Evidence {
			one.Evidence = append(one.Evidence, c.Object+": "+text)
		}
		for _, risk := range c.Risks {
			if !slices.Contains(one.Risks, risk) {
				one.Risks = append(one.Risks, risk)
			}
		}
		one.Patches = append(one.Patches, c.Patches...)
	}
	one.apply = func(sc *scenario) {
		for i := range all {
			all[i].apply(sc)
		}
	}
	return one
}
