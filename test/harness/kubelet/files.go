package kubelet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// snapshotter copies the image for each container. The image has two megabytes, and unlike overlayfs the native snapshotter works on every file system.
const snapshotter = "native"

// files returns the configuration of containerd, the network and the kubelet, by file name.
func (n *Node) files() map[string][]byte {
	fill := strings.NewReplacer(
		"DIR", n.dir, "BIN", n.bin(""), "IMAGE", Image, "SNAPSHOTTER", snapshotter, "CGROUP", "/"+n.cgroup(),
		"SUBNET", n.Subnet(),
		"KUBELETPORT", fmt.Sprint(n.port), "HEALTHPORT", fmt.Sprint(n.health),
		"STATUS", n.config.StatusInterval.String(), "MAXPODS", fmt.Sprint(n.config.MaxPods),
	)
	return map[string][]byte{
		"containerd.toml":   []byte(fill.Replace(containerdConfig)),
		"cni/10-karve.conf": []byte(fill.Replace(networkConfig)),
		"kubelet.yaml":      []byte(fill.Replace(kubeletConfig)),
	}
}

// restrict_oom_score_adj: lowering the score requires a capability that root in a container or a sandbox may lack. Without the option runc then fails
// with "can't get final child's PID".
const containerdConfig = `version = 3
root = "DIR/containerd/root"
state = "DIR/containerd/state"

[grpc]
  address = "DIR/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
  path = "DIR/containerd/opt"

[plugins."io.containerd.nri.v1.nri"]
  disable = true

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "SNAPSHOTTER"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "IMAGE"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  cdi_spec_dirs = ["DIR/cdi"]

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "BIN/kubelet-runc"
  SystemdCgroup = false

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["BIN"]
  conf_dir = "DIR/cni"
  use_internal_loopback = true
`

// Each pod has a pair of interfaces, which is removed with the pod. No bridge remains.
const networkConfig = `{
  "cniVersion": "0.3.1",
  "name": "karve",
  "type": "ptp",
  "ipam": {"type": "host-local", "dataDir": "DIR/addresses", "ranges": [[{"subnet": "SUBNET"}]]}
}
`

// Other processes share the machine, so the kubelet must not evict pods when they fill the disk. KubeletPort needs no password and is on loopback.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: KUBELETPORT
healthzBindAddress: 127.0.0.1
healthzPort: HEALTHPORT
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: false}
authorization: {mode: AlwaysAllow}
containerRuntimeEndpoint: unix://DIR/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: CGROUP
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
maxPods: MAXPODS
podLogsDir: DIR/pods
volumePluginDir: DIR/plugins
resolvConf: ""
nodeStatusUpdateFrequency: STATUS
nodeStatusReportFrequency: 10s
nodeLeaseDurationSeconds: 40
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
`

func joined(labels map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, key+"="+labels[key])
	}
	return strings.Join(out, ",")
}
