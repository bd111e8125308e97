package pack

import "karve.sh/karve/pkg/planner"

// share is the relation of a shape to a rule that keeps pods apart on machines: the rule constrains its pods, counts them, or both.
type share struct {
	rule    int
	asks    bool
	counted bool
}

// Ledger tracks, while a machine is filled, what an amount.Vector lacks: the remaining quotas, and the numbers of pods that each rule to keep pods
// apart constrains and counts.
type Ledger struct {
	quotas  []int64
	asking  []int32
	counted []int32
}

// NewLedger returns a ledger for the machines of a problem, without a machine.
func NewLedger(p *Problem) Ledger {
	return Ledger{make([]int64, len(p.quotas)), make([]int32, p.aparts), make([]int32, p.aparts)}
}

// Open starts with an empty machine.
func (l *Ledger) Open(c *Capacity) {
	copy(l.quotas, c.Quotas)
	clear(l.asking)
	clear(l.counted)
}

// Fit returns how many pods of a shape may be added, up to most.
func (l *Ledger) Fit(s *Shape, most int32) int32 {
	for _, x := range s.quotas {
		if left := l.quotas[x.Quota]; left < x.Count*int64(most) {
			most = int32(max(0, left) / x.Count)
		}
	}
	for _, x := range s.apart {
		switch {
		case x.asks && l.counted[x.rule] > 0, x.counted && l.asking[x.rule] > 0:
			return 0
		case x.asks && x.counted:
			most = min(most, 1)
		}
	}
	return most
}

// Take adds n pods, or removes them if n is negative.
func (l *Ledger) Take(s *Shape, n int32) {
	for _, x := range s.quotas {
		if l.quotas[x.Quota] != planner.Unlimited {
			l.quotas[x.Quota] -= x.Count * int64(n)
		}
	}
	for _, x := range s.apart {
		if x.asks {
			l.asking[x.rule] += n
		}
		if x.counted {
			l.counted[x.rule] += n
		}
	}
}

// Plain reports whether the shape uses no quotas and no rules of a ledger.
func (s *Shape) Plain() bool { return len(s.quotas)+len(s.apart) == 0 }
