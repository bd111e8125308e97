package planning

import (
	"reflect"
	"time"
)

// again is how long the same search is not repeated after it ran out of time. The processor may have been busy.
const again = 5 * time.Second

// answers has the last question of a search and its answer. Questions are plain values: an equal question has the same answer, whenever and whoever
// asks.
type answers[Q, A any] struct {
	question Q
	answer   *A
	// until is when the answer expires. It is zero for an answer that more time would not change.
	until time.Time
}

// to returns the answer to a question, or nil if it is unknown.
func (a *answers[Q, A]) to(question Q, now time.Time) *A {
	if a.answer == nil || !a.until.IsZero() && !now.Before(a.until) || !reflect.DeepEqual(a.question, question) {
		return nil
	}
	return a.answer
}

// keep remembers an answer. cut reports whether the search ran out of time.
func (a *answers[Q, A]) keep(question Q, answer A, now time.Time, cut bool) {
	*a = answers[Q, A]{question: question, answer: &answer}
	if cut {
		a.until = now.Add(again)
	}
}
