package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/kubelet/cgroup"
)

// Missing returns an error that says why a kubelet cannot run here: the user is not root, binaries are missing, or the machine does not let root run
// containers, as in many sandboxes. It checks the last by running a container, once per process.
var Missing = sync.OnceValue(func() error {
	if os.Geteuid() != 0 {
		return errors.New("a kubelet with containers needs root")
	}
	root, err := cluster.Root()
	if err != nil {
		return err
	}
	stale, err := builder.Stale(root, builder.Containers)
	if err != nil {
		return err
	}
	if len(stale) > 0 {
		return fmt.Errorf("%s is missing or stale in _output/bin; run `make kubelet-bin`", strings.Join(stale, ", "))
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	if err := runContainer(ctx, root); err != nil {
		return fmt.Errorf("this machine cannot run containers: %w", err)
	}
	return nil
})

// runContainer runs a container with runc and the network plugin only. It needs the same from the machine as a node does, so an error here is a
// limitation of the machine.
func runContainer(ctx context.Context, root string) (err error) {
	// The kubelet reads OOM events from it and does not start without it.
	kmsg, err := os.Open("/dev/kmsg")
	if err != nil {
		return err
	}
	_ = kmsg.Close()
	dir, err := os.MkdirTemp("", "karve-node-")
	if err != nil {
		return err
	}
	n := &Node{root: root, dir: dir}
	defer func() { err = errors.Join(err, n.Stop()) }()
	if err := os.Mkdir(n.path("kubelet"), 0o700); err != nil {
		return err
	}
	if err := n.writeBundle(ctx); err != nil {
		return err
	}
	if err := cgroup.Make(n.cgroup()); err != nil {
		return err
	}
	bin, err := program(ctx, root, "init")
	if err != nil {
		return err
	}
	if n.init, n.life, err = startInit(bin, dir, n.cgroup()); err != nil {
		return err
	}
	container, err := n.Run(Program{Name: "runc", Path: n.bin("runc"), Args: []string{
		"--root=" + n.path("runc"), "run", "--bundle=" + n.path("bundle"), "--pid-file=" + n.path("pid"), "able",
	}})
	if err != nil {
		return err
	}
	var pid int
	if err := n.wait(ctx, "a container runs", container, func(context.Context) error {
		if out, err := os.ReadFile(container.Log()); err != nil || !strings.HasPrefix(string(out), "{") {
			return cmp.Or(err, errors.New("it has said nothing"))
		}
		content, err := os.ReadFile(n.path("pid"))
		if err == nil {
			pid, err = strconv.Atoi(string(content))
		}
		return err
	}); err != nil {
		out, _ := os.ReadFile(container.Log())
		return fmt.Errorf("%w: %s", err, out)
	}
	return n.connect(ctx, pid)
}

// writeBundle writes an OCI bundle that runs the image's program in namespaces and a cgroup of its own.
func (n *Node) writeBundle(ctx context.Context) error {
	pod, err := program(ctx, n.root, "pod")
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(pod)
	if err != nil {
		return err
	}
	rootfs := n.path("bundle/rootfs")
	if err := os.MkdirAll(rootfs, 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(rootfs, "pod"), binary, 0o700); err != nil { //nolint:gosec // A program.
		return err
	}
	var namespaces []map[string]string
	for _, kind := range []string{"pid", "network", "ipc", "uts", "mount"} {
		namespaces = append(namespaces, map[string]string{"type": kind})
	}
	config, err := json.Marshal(map[string]any{
		"ociVersion": "1.2.0",
		"root":       map[string]any{"path": "rootfs"},
		"process":    map[string]any{"args": []string{"/pod"}, "cwd": "/", "user": map[string]int{"uid": 0, "gid": 0}},
		"mounts": []map[string]any{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
		},
		"linux": map[string]any{
			"namespaces": namespaces, "cgroupsPath": filepath.Join("/", n.cgroup(), "able"),
			"resources": map[string]any{"memory": map[string]int{"limit": 64 << 20}, "cpu": map[string]int{"shares": 100}},
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(n.path("bundle/config.json"), config, 0o600)
}

// connect adds an interface to the network namespace of a container's process.
func (n *Node) connect(ctx context.Context, pid int) error {
	if err := n.reserveNetwork(ctx); err != nil {
		return err
	}
	plugin, err := n.Run(Program{Name: "ptp", Path: n.bin("ptp"), Stdin: string(n.files()["cni/10-karve.conf"]), Env: []string{
		"CNI_COMMAND=ADD", "CNI_CONTAINERID=able", "CNI_IFNAME=eth0", "CNI_PATH=" + n.bin(""), fmt.Sprintf("CNI_NETNS=/proc/%d/ns/net", pid),
	}})
	if err != nil {
		return err
	}
	select {
	case <-plugin.Done():
	case <-time.After(10 * time.Second):
		plugin.Kill()
	case <-ctx.Done():
		plugin.Kill()
	}
	if plugin.err != nil {
		out, _ := os.ReadFile(plugin.Log())
		return fmt.Errorf("connecting a container: %w: %s", plugin.err, out)
	}
	return nil
}
