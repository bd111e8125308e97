// Package disruption carries out what package fleet/disruption decides: it reads the cluster, has one round decided, checks each machine against the API server
// before its NodeClaim is deleted, writes, and reports metrics. It decides nothing itself.
//
//	controller.go   which events start a pass, and a pass: read, decide, execute, search for a cheaper layout, execute, report
//	execute.go      carry out the commands; force.go those that Karve cannot take back
//	report.go       events, logs and metrics
//	watch.go        the predicates of the watches
package disruption
