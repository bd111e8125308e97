// Package pack has the packing problem: a snapshot without constraints between machines, in which pods that are alike are one shape. It knows which loads a
// machine holds, to the GPU that each pod is on, and says why a pod has no place.
package pack
