// Package readiness tests both ends of a promise together: the controller, which promises replicas for a machine and keeps pods away until they
// are there, and the agent, which reads the promise and makes them. Both are the programs as they ship, with the rights that they have in a
// cluster, on a real API server. Karpenter's part, between them, is the test's.
package readiness
