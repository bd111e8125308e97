// Package cluster runs a Kubernetes cluster on one machine, as plain processes on loopback: etcd, kube-apiserver, kube-scheduler,
// kube-controller-manager, Karpenter's real AWS controller on a local AWS, and kwok, which keeps the nodes of its instances alive. There are no
// containers, and the processes do not outlive the one that started them.
//
// `make cluster-bin` builds the binaries from Go modules into _output/bin. Tests call Require first. It skips the test and names that command if
// binaries are missing.
//
// A package that needs only an API server calls RunWithAPIServer in TestMain. A test that needs pods on nodes calls ForTest with Components:
// cluster.Everything().
package cluster
