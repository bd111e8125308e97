// Package nodelabels says what is known, before a node exists, about the labels that others than Karpenter write on it: Karve's agent, NVIDIA's GPU feature
// discovery, the kubelet, the cloud, storage drivers and Node Feature Discovery. The package is pure.
//
// [Table] is the only place with this knowledge. [Of] returns the labels that a node will have. A label that may get one of several values is a [Doubt]:
// no node is launched for a pod that depends on the value.
package nodelabels
