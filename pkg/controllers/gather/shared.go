package gather

import "sync"

// mostShared is the number of values in one generation of shared values.
const mostShared = 1 << 13

// shared deduplicates recently used values. It has two generations: a value that nobody uses while one generation fills up is dropped with the previous
// one. It is safe for concurrent use.
type shared[T any] struct {
	mu         sync.Mutex
	young, old map[string]T
}

func newShared[T any]() *shared[T] { return &shared[T]{young: map[string]T{}} }

// of returns the value that was first passed with the key. Keys must be equal only for equal values.
func (s *shared[T]) of(key string, value T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.young[key]; ok {
		return known
	}
	if known, ok := s.old[key]; ok {
		value = known
	}
	if len(s.young) >= mostShared {
		s.young, s.old = make(map[string]T, mostShared), s.young
	}
	s.young[key] = value
	return value
}
