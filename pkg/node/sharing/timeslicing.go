package sharing

import "karve.sh/karve/pkg/node/labels"

// timeSlicing has the pods on a GPU take turns. The driver does that by itself: a replica is no more than a name, and the pods share the memory freely.
var timeSlicing = strategy{
	key:   "timeSlicing",
	label: labels.TimeSlicing,
	part:  func(s *Sharing) **Replicated { return &s.TimeSlicing },
}
