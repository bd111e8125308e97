package metrics_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/metrics"
)

const (
	uid      = "0b61a32f-6f0a-4c1e-9d6b-7f4f5a2f5f11"
	flat     = "0b61a32f_6f0a_4c1e_9d6b_7f4f5a2f5f11"
	staticID = "8f6c1d3e5b7a9c0d2e4f6a8b0c1d3e5f"
)

var id = strings.Repeat("0123456789abcdef", 4)

var cgroups = []struct {
	name, content, uid, container string
}{
	{"v2 systemd containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + flat + ".slice/cri-containerd-" + id + ".scope\n", uid, id},
	{"v2 systemd CRI-O guaranteed", "0::/kubepods.slice/kubepods-pod" + flat + ".slice/crio-" + id + ".scope\n", uid, id},
	{"v2 CRI-O with a cgroup of its own inside", "0::/kubepods.slice/kubepods-pod" + flat + ".slice/crio-" + id + ".scope/container\n", uid, id},
	{"v2 systemd Docker", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + flat + ".slice/docker-" + id + ".scope\n", uid, id},
	{"v2 cgroupfs", "0::/kubepods/burstable/pod" + uid + "/" + id + "\n", uid, id},
	{"v2 cgroupfs guaranteed", "0::/kubepods/pod" + uid + "/" + id + "\n", uid, id},
	{"v2 below kubelet's own root", "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + flat + ".slice/cri-containerd-" + id + ".scope", uid, id},
	{"v2 seen from another cgroup namespace", "0::/../../kubepods-burstable-pod" + flat + ".slice/cri-containerd-" + id + ".scope\n", uid, id},
	{"v2 seen from another namespace, cgroupfs", "0::/../../pod" + uid + "/" + id + "\n", uid, id},
	{"static pod", "0::/kubepods/burstable/pod" + staticID + "/" + id + "\n", staticID, id},
	{"in the pod but in no container", "0::/kubepods/burstable/pod" + uid + "\n", uid, ""},
	{"in the pod and something else", "0::/kubepods/burstable/pod" + uid + "/sandbox\n", uid, ""},
	{"v1 cgroupfs", "12:pids:/kubepods/besteffort/pod" + uid + "/" + id + "\n11:memory:/kubepods/besteffort/pod" + uid + "/" + id + "\n1:name=systemd:/kubepods/besteffort/pod" + uid + "/" + id + "\n", uid, id},
	{"v1 systemd", "4:cpu,cpuacct:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + flat + ".slice/cri-containerd-" + id + ".scope\n0::/\n", uid, id},
	{"v1 with a hierarchy that is not used", "13:rdma:/\n4:cpu:/kubepods/pod" + uid + "/" + id + "\n", uid, id},
	{"v1 containerd with the wrong driver", "4:cpu:/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + flat + ".slice:cri-containerd:" + id + "\n", uid, id},
}

func TestParseCgroupOfPods(t *testing.T) {
	t.Parallel()
	for _, test := range cgroups {
		pod, container, ok := metrics.ParseCgroup(test.content)
		if !ok || pod != test.uid || container != test.container {
			t.Errorf("%s: %q %q %v", test.name, pod, container, ok)
		}
	}
}

func TestParseCgroupOutsidePods(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"", "\n", "0::/", "0::/system.slice/kubelet.service\n", "0::/user.slice/user-1000.slice/session-3.scope\n",
		"0::/system.slice/docker-" + id + ".scope\n", "0::/podman/" + id, "0::/pods/" + id, "0::/kubepods/burstable/podnot-a-uid/" + id,
		"0::/kubepods.slice/kubepods-pod" + flat + "0.slice/cri-containerd-" + id + ".scope", "no colons", "::", "0::" + id,
	} {
		if pod, container, ok := metrics.ParseCgroup(content); ok || pod != "" || container != "" {
			t.Errorf("%q: %q %q %v", content, pod, container, ok)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	for _, test := range cgroups {
		f.Add(test.content)
	}
	f.Fuzz(func(t *testing.T, content string) {
		pod, container, ok := metrics.ParseCgroup(content)
		if ok != metrics.IsUID(pod) || !ok && container != "" {
			t.Errorf("%q: %q %q %v", content, pod, container, ok)
		}
		if container != "" && (len(container) != 64 || !strings.Contains(content, container)) {
			t.Errorf("%q: container %q", content, container)
		}
		if again, _, _ := metrics.ParseCgroup("0::/init.scope\n" + content); ok && again != pod {
			t.Errorf("%q: another line before changes the pod to %q", content, again)
		}
	})
}

func FuzzLogNames(f *testing.F) {
	f.Add("default_train-0_" + uid)
	f.Add("train-0_default_main-" + id + ".log")
	f.Add("__")
	f.Fuzz(func(t *testing.T, name string) {
		if pod, ok := metrics.ParsePodFolder(name); ok && pod.Namespace+"_"+pod.Name+"_"+pod.UID != name {
			t.Errorf("%q: %+v", name, pod)
		}
		if namespace, pod, container, id, ok := metrics.ParseContainerLog(name); ok && pod+"_"+namespace+"_"+container+"-"+id+".log" != name {
			t.Errorf("%q: %q %q %q %q", name, namespace, pod, container, id)
		}
	})
}

// logs creates log directories: containers by "namespace_name_uid/container", and links by name.
func logs(t *testing.T, folders, links []string) metrics.LogFolders {
	t.Helper()
	root := t.TempDir()
	for _, folder := range append([]string{""}, folders...) {
		if err := os.MkdirAll(filepath.Join(root, "pods", folder), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "containers"), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if err := os.Symlink("/nowhere", filepath.Join(root, "containers", link)); err != nil {
			t.Fatal(err)
		}
	}
	return metrics.LogFolders{Root: root}
}

func TestPodsAreReadFromLogDirs(t *testing.T) {
	t.Parallel()
	source := logs(t,
		[]string{"default_train-0_" + uid + "/main", "default_train-0_" + uid + "/sidecar", "kube-system_etcd-host_" + staticID + "/etcd", "not-a-pod"},
		[]string{"train-0_default_main-" + id + ".log", "train-0_default_main-" + strings.Repeat("f", 64) + ".log", "other.txt", "a_b_c-short.log"})
	pods, err := source.Pods()
	if err != nil {
		t.Fatal(err)
	}
	want := []metrics.Pod{
		{UID: uid, Namespace: "default", Name: "train-0", Containers: []metrics.Container{
			{Name: "main", ID: id}, {Name: "main", ID: strings.Repeat("f", 64)}, {Name: "sidecar"},
		}},
		{UID: staticID, Namespace: "kube-system", Name: "etcd-host", Containers: []metrics.Container{{Name: "etcd"}}},
	}
	if diff := cmp.Diff(want, pods); diff != "" {
		t.Error(diff)
	}
	if _, err := (metrics.LogFolders{Root: filepath.Join(source.Root, "none")}).Pods(); err == nil {
		t.Error("no error without the folder")
	}
}
