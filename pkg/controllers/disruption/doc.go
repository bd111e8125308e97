// Package disruption deletes machines that are idle and replaces those that have a reason to go. One pass of its controller goes in this order:
//
//	observe   read the cluster; make a record of each machine and pool; have the reasons name candidates   observe.go, reason/
//	decide    the next step of each machine, as commands                                                  decide.go, idle.go, replace.go, handover.go, steer.go
//	execute   do what the commands say, and look once more, live, before a NodeClaim is deleted           execute.go, force.go
//	report    metrics                                                                                     report.go
//
// To decide is a function of a [pass], which holds plain values. Each reason to disrupt machines is a file of package reason. What follows from a reason is the same for
// all: a machine goes in small steps, of which each but the last can be undone. An idle one is annotated, tainted, watched for the settle time and deleted
// (idle.go). One that is replaced is marked first, which makes its pods demand that is planned for; when all of them have a place on machines that have started it is
// tainted, watched and deleted (replace.go). Its pods are evicted in groups where they go to several machines (handover.go).
//
// Some words mean one thing here:
//
//   - A candidate is why a machine is to be disrupted: a [reason.Candidate].
//   - A command is the next step of one machine.
//   - The mark of a machine is the annotation on its NodeClaim that says that it is being replaced. Its Node says whether it is disrupting: tainted, and about to go.
//   - A budget is one of a NodePool's disruption budgets (budget.go). PodDisruptionBudgets are named so.
//   - A layout is which machines run, and which pods on which. A proposal is a step to a cheaper one (layout.go, search.go).
//
// What the controller remembers from pass to pass is in memory.go, with what each of it is for and when it is forgotten. All else is on the objects.
//
// Unlike Karpenter, whose disruption methods each compute commands from all candidates, a reason here only judges machines. The steps of a machine last
// for several passes, in which the machine can get another reason, and so the steps are the controller's and not the reason's.
package disruption
