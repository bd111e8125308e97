// Package nodecontract holds what the controller and the node agent tell each other: the annotations, labels, conditions and resource names on a Node that one of
// them writes and the other reads. Both import it. It imports the standard library only, so that the agent does not carry the API types of Kubernetes with it.
//
// What users write, and what only the controller writes and reads, is in pkg/apis/v1alpha1: people who use the API from Go import that package.
package nodecontract
