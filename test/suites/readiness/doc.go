// Package readiness tests the controller and the agent together. The controller promises replicas for a machine and keeps pods away until they are there. The
// agent reads the promise and serves the replicas. Both are the released programs with their RBAC rights, on a real API server. The test plays Karpenter.
package readiness
