// Package disruption deletes machines that are idle and replaces those that have a reason to be disrupted. One pass of its controller has these stages:
//
//	observe   read the cluster; make a record of each machine and pool; have the reasons name candidates   observe.go, reason/
//	decide    the next step of each machine, as commands                                                  decide.go, idle.go, replace.go, handover.go, steer.go
//	execute   carry out the commands, with a check against the API server before a NodeClaim is deleted     execute.go, force.go
//	search    a slice of the machines for a cheaper layout, and begin its steps                           search.go, layout.go, rounds.go
//	report    metrics                                                                                     report.go
//
// The decide stage is a function of a [pass], which holds plain values. Each reason to disrupt machines is a file of package reason. What follows from a reason is
// the same for all of them: a machine is removed in small steps, all of which except the last can be undone. An idle machine is annotated, tainted, watched for the
// settle time and deleted (idle.go). A machine that is replaced is first marked, so that its pods count as demand in plans. When all of them have room on machines
// that have started, it is tainted, watched and deleted (replace.go). Its pods are evicted in groups if they move to several machines (handover.go).
//
// Some words have a fixed meaning in this package:
//
//   - A candidate is why a machine should be disrupted: a [reason.Candidate].
//   - A command is the next step of one machine.
//   - The mark of a machine is the annotation on its NodeClaim that says that it is being replaced. A machine is disrupting if its Node is tainted and about to be deleted.
//   - A budget is one of a NodePool's disruption budgets (budget.go). PodDisruptionBudgets are always called by that name.
//   - A layout is the set of machines with the pods on each. A proposal is a step to a cheaper layout (layout.go, search.go).
//
// memory.go has what the controller remembers between passes, with the purpose and the lifetime of each part. Everything else is stored on the objects.
//
// In Karpenter, disruption methods compute commands from all candidates. Here, a reason only judges machines. The steps of a machine take several passes, in which
// its reason may change, so the steps belong to the controller and not to the reason.
package disruption
