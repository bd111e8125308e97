package usage

import (
	"maps"
	"slices"
	"sync"

	"karve.sh/karve/pkg/node/gpu"
)

// Seen is what is known about the use of a GPU since the last look.
type Seen struct {
	// Pods are the pods that used the GPU, as namespace/name.
	Pods []string
	// Unsure reports whether the GPU was used by an unknown process, or may have been.
	Unsure bool
}

// Notes collects the GPU readings of all callers, because NVML returns each sample only once.
type Notes struct {
	mu    sync.Mutex
	notes map[string]note
}

type note struct {
	pids   map[int]bool
	unsure bool
}

// Add adds a reading.
func (n *Notes) Add(uuid string, u gpu.Usage, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes == nil {
		n.notes = map[string]note{}
	}
	had, ok := n.notes[uuid]
	if !ok {
		had.pids = map[int]bool{}
	}
	unknown := err != nil || u.GPUPercent < 0
	computed := false
	for _, p := range u.Processes {
		unknown = unknown || p.SMPercent < 0
		if p.SMPercent > 0 {
			had.pids[p.PID], computed = true, true
		}
	}
	had.unsure = had.unsure || unknown || u.GPUPercent > 0 && !computed
	n.notes[uuid] = had
}

// Take returns the result of all readings since the last call, by UUID of the GPU. owners returns the pods (namespace/name) of processes. A process
// without a pod makes the result unsure.
func (n *Notes) Take(owners func(pids []int) map[int]string) map[string]Seen {
	n.mu.Lock()
	notes := n.notes
	n.notes = nil
	n.mu.Unlock()
	out := make(map[string]Seen, len(notes))
	for uuid, note := range notes {
		s := Seen{Unsure: note.unsure}
		if len(note.pids) > 0 {
			pids := slices.Sorted(maps.Keys(note.pids))
			whose := owners(pids)
			for _, pid := range pids {
				pod, ok := whose[pid]
				if !ok {
					s.Unsure = true
				} else if !slices.Contains(s.Pods, pod) {
					s.Pods = append(s.Pods, pod)
				}
			}
		}
		out[uuid] = s
	}
	return out
}

// Library adds all readings of a library to Notes.
type Library struct {
	gpu.Library
	Notes *Notes
}

// Usage implements gpu.Library.
func (l Library) Usage(uuid string) (gpu.Usage, error) {
	u, err := l.Library.Usage(uuid)
	l.Notes.Add(uuid, u, err)
	return u, err
}
