package pricing

import "math/bits"

// podWords is how many words the numbers of pods have.
const podWords = 3

// pods are numbers of pods of shapes that have few, each in a field of its own, in which there is room for twice as many as there are.
type pods [podWords]uint64

func (p *pods) add(o *pods) {
	for w := range p {
		p[w] += o[w]
	}
}

// scarce knows the fields. The highest bit of each is its guard: it is set where a number with its bias is more than there are.
type scarce struct {
	used         [podWords]int
	bias, guards pods
}

func (s *scarce) begin() { *s = scarce{} }

func (s *scarce) any() bool { return s.used[0] > 0 }

// add makes a field for so many pods and returns one of them; where there is no room for another field, nothing.
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

// has reports whether there are as many pods as two together take.
func (s *scarce) has(a, b *pods) bool {
	var over uint64
	for w := range a {
		over |= (a[w] + b[w] + s.bias[w]) & s.guards[w]
	}
	return over == 0
}

// under reports whether a takes no more pods of any shape than b does.
func (s *scarce) under(a, b *pods) bool {
	for w := range a {
		if ((b[w]|s.guards[w])-a[w])&s.guards[w] != s.guards[w] {
			return false
		}
	}
	return true
}
