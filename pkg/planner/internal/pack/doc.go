// Package pack defines the packing problem: a snapshot without constraints between machines, in which identical pods are one shape. It decides which loads a
// machine holds, including the GPU of each pod, and explains why a pod is not placed.
package pack
