package snapshot

import (
	"karve.sh/karve/pkg/snapshot/facts"
)

// setAside returns why decisions are made without the pool or its class, or "" if they are not.
func (p *Pool) setAside() string {
	if why := facts.SetAsideWhy(p.NodePool); why != "" || p.Class == nil {
		return why
	}
	return facts.SetAsideWhy(p.Class)
}
