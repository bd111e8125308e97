package search

import (
	"karve.sh/karve/pkg/planner/internal/amount"
	"karve.sh/karve/pkg/planner/internal/pack"
)

// primal is the search for a plan of several shapes. It runs in rounds, each with a larger budget than the one before: column generation, dives, improvement,
// and in parallel a proof. What a round does depends only on the rounds before, so a search that is cut short is the beginning of a longer one. More effort
// never gives a more expensive plan.
type primal struct {
	state        state
	ready        bool // column generation has ended
	neighborhood *neighborhood
	dual         *dual
}

// state is the part of the state of which the primal and the dual search have separate copies, because they run in parallel. They exchange results
// between rounds.
type state struct {
	ctx   *Context
	base  *Solution // with the nodes filled that no relaxation decides about, and nothing launched
	best  *Solution
	g     *Master
	bound int64
	cuts  []cardinality // the cuts of the proof
	pool  *columnPool   // what dives found, for composing plans; nil if it is not kept
}

// closed reports whether the plan is proven optimal.
func (h *state) closed() bool {
	return h.best.Left.Empty() && h.best.cost(h.ctx.Problem).Price <= h.bound
}

// few reports whether the plan has so few machines that branching does the proof, because a single bound for all plans is less useful.
func (h *state) few() bool { return h.best.cost(h.ctx.Problem).Machines <= fewMachines }

// fewest reports whether the plan has at most half of the machines that count as few.
func (h *state) fewest() bool { return h.best.cost(h.ctx.Problem).Machines <= fewMachines/2 }

// many reports whether the plan has too many machines for branching.
func (h *state) many() bool { return h.best.cost(h.ctx.Problem).Machines > branchMachines }

// values returns the worths of pods for choices.
func (h *state) values() []int64 {
	if h.g == nil {
		return h.ctx.alone
	}
	return h.ctx.ChoiceValues(h.g.Values)
}

func (h *state) hasManyShapes() bool { return len(h.ctx.Problem.Shapes) > manyShapes }

// fewMachines is the number of machines up to which plans are proven by branching and by whole numbers of machines.
const fewMachines = 60

// dual is the dual search, which computes lower bounds on the price. It also finds loads and plans.
type dual struct {
	state     state
	proof     *proof
	benders   benders
	branching *branching // nil if there is none yet
}

// ended reports whether only branching is left to try.
func (h *dual) ended() bool {
	return h.state.few() || h.proof != nil && h.proof.level == len(proofLevels)
}

// proof raises the bound. A pricing search that ends early leaves a mixture whose worth may exceed the price of its machine. The relaxation of the
// proof takes such mixtures as columns, so that its duals move to where the searches can prove that no load is worth more than its machine.
type proof struct {
	g      *Master
	demand pack.Load // the pods that the relaxation is for
	// launched is the minimum number of pods that launched machines hold in any plan.
	launched pack.Load
	placed   pack.Load // the pods that are placed
	level    int
	groups   []group
	cuts     []cardinality
}

// group is the offers that serve a shape, with all shapes that no other offers serve.
type group struct {
	serves []bool
	shapes []int
	tried  int64 // the largest number of machines that was tried
	// cut requires a minimum number of whole machines of the offers, because no other offers serve the shapes. The relaxation launches fractions of these machines,
	// which causes most of its gap if the machines are expensive.
	cut cardinality
}

// benders bounds plans by the cheapest whole numbers of machines that satisfy all known covers. If the pods do not fit on these machines, not even
// fractionally, the duals of a master that is restricted to these numbers give a cover that the numbers violate (a Benders cut).
type benders struct {
	placed pack.Load
	// resources are covers by the pods' requests of each resource. drawn are the last covers that relaxations gave.
	resources, drawn []cover
	// duals are those of the stocks with the last drawn cover.
	duals []int64
	// reach is how far above the bound the search for numbers goes. It is 0 if unknown.
	reach int64
	// fresh reports whether a cover was added since the last search for numbers, and ended whether there is nothing more to find.
	fresh, ended bool
}

// branching is a branch and bound over the number of machines of each offer. The relaxation launches fractions of machines, which causes most of the
// gap for plans with few machines. The branch with the lowest bound is split first, on the offer with the most expensive fraction.
type branching struct {
	proof proof
	whole *Master // the relaxation of all plans
	// open are the branches that may be split, the lowest bound first. closed is the lowest bound of all other unsplit branches.
	open   []*branch
	closed int64
	grown  int
}

// columnPool holds the loads that dives found for the pods that other machines left. They cost too much for a relaxation of all pods, but are also used
// to compose plans. A nil pool keeps nothing.
type columnPool struct {
	columns []column
	known   map[string]bool
}

// neighborhood is the state of ruin and recreate.
type neighborhood struct {
	ctx    *Context
	s      *Solution
	values []int64
	noisy  []int64
	limits pack.Limits
	seq    Sequence
	room   []amount.Vector // what is left of each machine of s
	some   []int           // scratch: the shapes that wait
}

// branchMachines: with more machines in a plan, branching starts only when nothing else is left to prove.
const branchMachines = 200

// manyShapes is the number of shapes above which most of a short search goes to the relaxation.
const manyShapes = 60
