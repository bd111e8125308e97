package planner

// share is how a shape belongs to a rule that keeps pods apart on machines: its pods ask for it, are counted by it, or both.
type share struct {
	rule    int
	asks    bool
	counted bool
}

// ledger is what filling a machine keeps account of beside the amounts of a vec: what is left of quotas, and how many pods are
// there that ask to be apart, or that others ask to be apart from.
type ledger struct {
	quotas  []int64
	asking  []int32
	counted []int32
}

func newLedger(p *problem) ledger {
	return ledger{make([]int64, len(p.quotas)), make([]int32, p.aparts), make([]int32, p.aparts)}
}

// open begins with an empty machine.
func (l *ledger) open(c *capacity) {
	copy(l.quotas, c.quotas)
	clear(l.asking)
	clear(l.counted)
}

// fit returns how many pods of a shape may join, at most most.
func (l *ledger) fit(s *shape, most int32) int32 {
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

// take lets n pods join, or leave where n is negative.
func (l *ledger) take(s *shape, n int32) {
	for _, x := range s.quotas {
		if l.quotas[x.Quota] != Unlimited {
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

// plain reports whether a shape has nothing to do with a ledger.
func (s *shape) plain() bool { return len(s.quotas)+len(s.apart) == 0 }
