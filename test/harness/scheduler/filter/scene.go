package main

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// scene is a cluster and what is to happen in it.
type scene struct {
	Nodes          []*corev1.Node
	Namespaces     []*corev1.Namespace
	PVCs           []*corev1.PersistentVolumeClaim
	PVs            []*corev1.PersistentVolume
	StorageClasses []*storagev1.StorageClass
	CSINodes       []*storagev1.CSINode
	// Pods are those that are bound.
	Pods []*corev1.Pod
	// Daemons are pods that run on each of the nodes New and Fresh whose labels and taints admit them.
	Daemons []*corev1.Pod
	// New names the nodes that have come for Place.
	New []string
	// Place are pods with the node that each is meant for.
	Place []placement
	// Fresh are nodes that come after all pods of Place have theirs. Those that are cordoned only make domains.
	Fresh []*corev1.Node
	// Refused are pods that no node of Judged or Fresh should take then.
	Refused []*corev1.Pod
	Judged  []string
}

type placement struct {
	Pod  *corev1.Pod
	Node string
}

// findings are what the filters said.
type findings struct {
	Error string `json:",omitempty"`
	// Daemons are those that a new or fresh node does not hold although its labels and taints admit them.
	Daemons []verdict `json:",omitempty"`
	// Stuck are pods that could not be placed where they were meant to be, whatever came first.
	Stuck []verdict `json:",omitempty"`
	// Taken are the refused pods that a node would have taken.
	Taken []verdict `json:",omitempty"`
}

// verdict is about a pod on a node.
type verdict struct {
	Pod     string
	Node    string
	Plugin  string `json:",omitempty"`
	Reasons string `json:",omitempty"`
}
