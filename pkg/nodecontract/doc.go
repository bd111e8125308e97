// Package nodecontract defines the annotations, labels, conditions and resource names on a Node that the controller and the node agent exchange: one of
// them writes them and the other reads them. It imports only the standard library, so that the agent does not link the API types of Kubernetes.
//
// pkg/apis/v1alpha1, which Go clients of the API import, has what users write, and what only the controller reads and writes.
package nodecontract
