// Package kubelet adds a node with a real kubelet, a real containerd and real containers to a local cluster, for what no stand-in
// shows: how the kubelet registers, admits, allocates, checkpoints and restarts.
//
// It needs Linux, root that can run containers, and the binaries of `make kubelet-bin`. Tests call Require first, which skips and says
// what is missing. Nothing of the machine's own is used: containerd has its own folders and socket, and everything lives in process
// and mount namespaces of the node's, with a copy of the tunables that a kubelet sets. However the test ends, the node ends with it and
// leaves no process, mount, cgroup, network interface or changed setting behind.
//
// There is one image, made here of one static program that prints its environment (cmd/pod). Nothing is pulled.
package kubelet
