// Package constraints plans for snapshots with constraints between machines: spread, affinity, preferences, priorities, weights of pools and minValues. It turns
// them into snapshots without such constraints, which the given solver solves.
//
//	Plan(snapshot):                                          plan.go, arranger.go, arrange.go, priority.go
//	    leave out what is blocked or can never be placed      read.go, rule.go, problem.go
//	    hint  = the plan without the rules, and its bound     bound.go, least.go
//	    for each priority if the plan is inverted, and for each domain to favor:
//	        colocate the groups, each on one machine          groups.go, colocate.go, partial.go
//	        repeat, at most maxArrangements times:            run.go, rounds.go
//	            assign cohorts to cells with a heuristic      stages.go, cells.go, capacity.go, assign.go, begin.go, census.go
//	            lower portions to classes without rules       lower.go, choice.go
//	            solve, part by part                           parts.go
//	            learn how many pods the cells hold            learn.go
//	            drop pods that lost those that they follow    complete.go, reasons.go
//	            let pods without a place give up a stage      learn.go
//	        move pods between cells while that helps          moves.go
//	    plan for the remaining pods in the remaining room     plan.go
//	    try all plans if there are few pods                   enumerate.go
//
// The words that the code uses:
//
//   - A rule constrains pods of some classes and counts pods of others. A preference is a rule, or a list of machines, that a pod can give up. given is how many
//     preferences a pod has given up.
//   - A stage of a class is a number of preferences given up and the pools whose weights allow a machine.
//   - A cohort is the pods of a class at a stage whose rules are about domains that are not machines, such as zones.
//   - A cell is the machines of a stage in the same domains of all topologies that the class's rules use.
//   - A portion is a number of pods of a class that are planned alike. It becomes a class of the lowered snapshot.
//   - A census counts pods by rule and domain, and knows how many more a rule allows.
//   - A group is the classes that rules connect to be together on one machine. A colocation is a plan for pods of a group on a candidate.
//   - The hint is the plan without the rules whose domains are not machines. It shows where pods are cheap, and its bound is valid for the rules too.
package constraints
