package main

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// scene is a cluster and what happens in it.
type scene struct {
	Nodes          []*corev1.Node
	Namespaces     []*corev1.Namespace
	PVCs           []*corev1.PersistentVolumeClaim
	PVs            []*corev1.PersistentVolume
	StorageClasses []*storagev1.StorageClass
	CSINodes       []*storagev1.CSINode
	// Pods are the bound pods.
	Pods []*corev1.Pod
	// Daemons are daemon pods. One runs on each node of New and Fresh whose labels and taints admit it.
	Daemons []*corev1.Pod
	// New names the nodes that were launched for the pods of Place.
	New []string
	// Place are pods with their planned node.
	Place []placement
	// Fresh are nodes that are launched after all pods of Place are bound. Cordoned ones only add topology domains.
	Fresh []*corev1.Node
	// Refused are pods that no node of Judged or Fresh should then admit.
	Refused []*corev1.Pod
	Judged  []string
}

type placement struct {
	Pod  *corev1.Pod
	Node string
}

// findings are the results of the filters.
type findings struct {
	Error string `json:",omitempty"`
	// Daemons are daemon pods that a new or fresh node rejects although its labels and taints admit them.
	Daemons []verdict `json:",omitempty"`
	// Stuck are pods that could not be placed as planned, in any order.
	Stuck []verdict `json:",omitempty"`
	// Taken are the refused pods that a node would admit.
	Taken []verdict `json:",omitempty"`
}

// verdict is a filter's rejection of a pod on a node.
type verdict struct {
	Pod     string
	Node    string
	Plugin  string `json:",omitempty"`
	Reasons string `json:",omitempty"`
}
