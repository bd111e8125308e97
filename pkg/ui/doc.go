// Package ui serves a web page that shows the shared GPUs of a cluster: what they cost, which pods hold which replicas, and why a pod waits or a node
// stays. The page is in the directory web, without a build step. The server only reads. It reveals nothing about the cluster to a request that
// [Config.Admit] refuses, and nothing at all to a request for a host that is not this computer.
package ui
