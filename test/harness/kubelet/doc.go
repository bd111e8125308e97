// Package kubelet adds a node with a real kubelet, a real containerd and real containers to a local cluster. It tests what no simulation shows: how the
// kubelet registers, admits, allocates, checkpoints and restarts.
//
// It needs Linux, root that can run containers, and the binaries of `make kubelet-bin`. Tests call Require first, which skips and says what is missing.
// The node does not touch the machine: containerd has its own folders and socket, everything runs in PID and mount namespaces of the node, and the
// kubelet sets copies of the sysctls. However the test ends, the node ends with it and leaves no process, mount, cgroup, network interface or changed
// setting behind.
//
// Each node has one image, of a static program that prints its environment (cmd/pod). Tests add others. Nothing is pulled.
package kubelet
