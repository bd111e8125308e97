package sharing

import "karve.sh/karve/pkg/node/labels"

// mps lets the pods on a GPU run at the same time, with NVIDIA's MPS daemon.
var mps = strategy{
	key:            "mps",
	label:          labels.MPS,
	part:           func(s *Sharing) **Replicated { return &s.MPS },
	emptyIsAbsent:  true,
	refuseAboveOne: true,
	unsupported:    "sharing with MPS is not supported yet; use sharing.timeSlicing",
}
