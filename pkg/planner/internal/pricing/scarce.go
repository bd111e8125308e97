package pricing

import "math/bits"

// podWords is the number of words in which the numbers of pods are stored.
const podWords = 3

// pods are numbers of pods of scarce shapes. Each is in its own bit field, which has room for twice the demand.
type pods [podWords]uint64

func (p *pods) add(o *pods) {
	for w := range p {
		p[w] += o[w]
	}
}

// scarce describes the fields. The highest bit of each field is its guard: it is set if a number plus its bias exceeds the demand.
type scarce struct {
	used         [podWords]int
	bias, guards pods
}

func (s *scarce) begin() { *s = scarce{} }

func (s *scarce) any() bool { return s.used[0] > 0 }

// add makes a field for a demand and returns the value of one pod in it. If no word has room for the field, it returns zero.
func (s *scarce) add(most int32) (one pods) {
	width := bits.Len32(uint32(most)) + 1
	for w := range s.used {
		if at := s.used[w]; at+width <= 64 {
			s.used[w] += width
			guard := uint64(1) << (at + width - 1)
			s.guards[w] |= guard
			s.bias[w] |= guard - uint64(most)<<at - 1<<at
			one[w] = 1 << at
			return one
		}
	}
	return one
}

// has reports whether the demand allows the sum of both.
func (s *scarce) has(a, b *pods) bool {
	var over uint64
	for w := range a {
		over |= (a[w] + b[w] + s.bias[w]) & s.guards[w]
	}
	return over == 0
}

// under reports whether a has at most as many pods of each scarce shape as b.
func (s *scarce) under(a, b *pods) bool {
	for w := range a {
		if ((b[w]|s.guards[w])-a[w])&s.guards[w] != s.guards[w] {
			return false
		}
	}
	return true
}
