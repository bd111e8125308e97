// Package disruption decides which machines are deleted because they are idle, and which are replaced because they have a reason to be disrupted. [Next] is
// a function of what was seen and of what earlier rounds remember. The package has no clock and no client, writes no log and counts nothing: the controller
// reads, carries out the commands and reports them. kubectl karve explain, replays and tests call the same functions.
//
//	Look       the machines and pools of a cluster, with the plan for its pending pods                 look.go, fleet.go
//	Begin      recall what is remembered; check marks; have the reasons name candidates; decide        next.go, memory.go, verdicts.go, reason/
//	           the next step of each machine                                                           decide.go, idle.go, replace.go, handover.go
//	Search     search a slice of the machines for a cheaper layout                                     search.go, rounds.go, proposal.go
//	Cheapen    begin the steps for which the accounts pay; steer new pods                              begin.go, account.go, attempts.go, steer.go
//
// Each part of a round gets what it needs as arguments and returns what it found. What is decided for one machine depends on the machines before it, which use
// budgets and room: a [progress] has that. What-if questions are answered by plans (whatif.go). A [Judge] explains single machines.
//
// Each reason to disrupt machines is a file of package reason. What follows from a reason is the same for all of them: a machine is removed in small steps, all
// of which except the last can be undone. An idle machine is annotated, tainted, watched for the settle time and deleted. A machine that is replaced is first
// marked, so that its pods count as demand in plans. When all of them have room on machines that have started, it is tainted, watched and deleted. Its pods are
// evicted in groups if they move to several machines.
//
// Some words have a fixed meaning in this package:
//
//   - A candidate is why a machine should be disrupted: a [reason.Candidate].
//   - A command is the next step of one machine.
//   - The mark of a machine is the annotation on its NodeClaim that says that it is being replaced. A machine is disrupting if its Node is tainted and about to be deleted.
//   - A budget is one of a NodePool's disruption budgets (budget.go). PodDisruptionBudgets are always called by that name.
//   - A layout is the set of machines with the pods on each. A proposal is a step to a cheaper layout.
//
// In Karpenter, disruption methods compute commands from all candidates. Here, a reason only judges machines. The steps of a machine take several rounds, in
// which its reason may change, so the steps do not belong to the reason.
package disruption
