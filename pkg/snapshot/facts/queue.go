package facts

// ClassQueue is the queue of classes with terms if there are too many for one plan. It maps each namespace and class to a number. The smallest number
// is first.
type ClassQueue map[string]int64

// Place returns the position of a class in the queue. New classes come last.
func (t ClassQueue) Place(key string) int64 {
	if place, ok := t[key]; ok {
		return place
	}
	return t.Last() + 1
}

func (t ClassQueue) Last() int64 {
	last := int64(0)
	for _, place := range t {
		last = max(last, place)
	}
	return last
}
