// Package cluster runs a Kubernetes cluster on one machine, as plain processes on loopback: etcd, kube-apiserver,
// kube-scheduler, kube-controller-manager, Karpenter's real AWS controller on a local AWS, and kwok, which keeps the nodes of
// its instances alive. There are no containers, and the processes do not outlive the one that started them.
//
// The binaries are built from Go modules by `make cluster-bin` into _output/bin. Tests call Require first, which skips
// with that command when they are missing.
//
// A package that needs an API server and nothing else calls RunWithAPIServer in TestMain; a test that needs pods on nodes
// calls ForTest with Components: cluster.Everything().
package cluster
