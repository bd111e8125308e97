package gather

import "sync"

// maxShared is the number of values in one generation of shared values, and sharedBytes the length of their keys. Values take up to twenty times as much.
const maxShared, sharedBytes = 1 << 13, 1 << 20

// shared deduplicates recently used values. It has two generations: a value that nobody uses while one generation fills up is dropped with the previous
// one. It is safe for concurrent use.
type shared[T any] struct {
	mu         sync.Mutex
	young, old map[string]T
	// bytes is the length of the keys in young.
	bytes int
}

func newShared[T any]() *shared[T] { return &shared[T]{young: map[string]T{}} }

// shareValue returns the value that was first passed with the key. Keys must be equal only for equal values.
func (s *shared[T]) shareValue(key string, value T) T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.young[key]; ok {
		return known
	}
	if known, ok := s.old[key]; ok {
		value = known
	}
	if len(s.young) >= maxShared || s.bytes >= sharedBytes {
		s.young, s.old, s.bytes = map[string]T{}, s.young, 0
	}
	s.young[key] = value
	s.bytes += len(key)
	return value
}
