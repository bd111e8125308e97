// Package dra tests the agent as a DRA driver with the real API server, scheduler and controllers of Kubernetes. The nodes are objects without a kubelet, whose calls
// the tests make. What the kubelet and containers do is in test/suites/kubelet.
package dra
