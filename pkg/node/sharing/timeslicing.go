package sharing

import "karve.sh/karve/pkg/node/labels"

// timeSlicing lets the pods on a GPU take turns, which the driver does without configuration. A replica is only a name, and the pods share the memory
// without limits.
var timeSlicing = strategy{
	key:   "timeSlicing",
	label: labels.TimeSlicing,
	part:  func(s *Sharing) **Replicated { return &s.TimeSlicing },
	most:  MaxReplicas,
}
