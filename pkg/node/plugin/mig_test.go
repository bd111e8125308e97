package plugin_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/plugin"
)

const (
	small       = "nvidia.com/mig-1g.5gb"
	smallShared = "nvidia.com/mig-1g.5gb.shared"
	mixed       = "flags: {migStrategy: mixed}\n"
)

func TestKubeletListsEveryInstance(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		devices := gputest.Divided(2, 7, "1g.5gb", 4864)
		w.must(mixed, devices)
		w.want(small, 14)
		w.want(whole, 0)
		var want []string
		for _, d := range devices {
			for _, p := range d.Instances {
				want = append(want, p.UUID)
			}
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, w.kubelet.Current(small).IDs()); diff != "" {
			t.Error(diff)
		}
		for _, d := range w.kubelet.Current(small).Devices {
			if node := d.GetTopology().GetNodes()[0].GetID(); (node == 1) != slices.ContainsFunc(devices[1].Instances, func(p gpu.Instance) bool { return p.UUID == d.GetID() }) {
				t.Errorf("%s is near NUMA node %d", d.GetID(), node)
			}
		}
		if e := w.kubelet.Requests()[0].GetEndpoint(); !strings.HasPrefix(e, "karve-mig-1g.5gb-") {
			t.Errorf("the socket is %s", e)
		}
		g, err := w.kubelet.Admit(t.Context(), "pod", small, 1)
		if err != nil || !slices.Equal(g.IDs, []string{g.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]}) || !strings.HasPrefix(g.IDs[0], "MIG-") {
			t.Errorf("a pod has %v: %v", g, err)
		}
	})
}

func TestSlicesOfInstancesAreReplicas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must(mixed+"sharing: {timeSlicing: {renameByDefault: true, resources: [{name: mig-1g.5gb, replicas: 3}]}}", gputest.Divided(2, 2, "1g.5gb", 4864))
		w.want(smallShared, 12)
		w.want(small, 0)
		// As with GPUs, pods get the instance with the most room.
		of := map[string]int{}
		for i := range 8 {
			g, err := w.kubelet.Admit(t.Context(), fmt.Sprint(i), smallShared, 1)
			if err != nil {
				t.Fatal(err)
			}
			if instance, _, _ := strings.Cut(g.IDs[0], "::"); instance != g.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"] {
				t.Errorf("%v got %v", g.IDs, g.Response.GetEnvs())
			}
			of[g.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]]++
		}
		for uuid, n := range of {
			if n != 2 {
				t.Errorf("%d pods share %s: %v", n, uuid, of)
			}
		}
		shares := w.m.Shares()
		for _, d := range gputest.Divided(2, 2, "1g.5gb", 4864) {
			for _, p := range d.Instances {
				if s := shares[p.UUID]; s.Total != 3 || s.Allocated != 2 || s.Unhealthy {
					t.Errorf("%s: %+v", p.UUID, s)
				}
			}
		}
	})
}

// TestBrokenInstanceTakesOnlyItsReplicas checks that pods no longer get an instance which has failed, or any instance of a GPU which has.
func TestBrokenInstanceTakesOnlyItsReplicas(t *testing.T) {
	t.Parallel()
	inBubble(t, func(w *world) {
		w.startKubelet()
		devices := gputest.Divided(2, 3, "2g.10gb", 9856)
		const resource = "nvidia.com/mig-2g.10gb"
		w.must(mixed, devices)
		w.want(resource, 6)
		broken := devices[0].Instances[1].UUID
		w.m.SetHealth(broken, false)
		w.settle()
		w.want(resource, 5)
		if s := w.m.Shares(); !s[broken].Unhealthy || s[devices[0].Instances[0].UUID].Unhealthy {
			w.t.Errorf("%+v", s)
		}
		w.m.SetHealth(devices[1].UUID, false)
		w.settle()
		w.want(resource, 2)
		w.m.SetHealth(devices[1].UUID, true)
		w.m.SetHealth(broken, true)
		w.settle()
		w.want(resource, 6)
	})
}

func TestContainerHasDeviceFilesOfItsInstance(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "driver", "nvidia-caps"), 0o750); err != nil {
		t.Fatal(err)
	}
	minors := "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi8/access 75\ngpu0/gi8/ci0/access 76\n"
	if err := os.WriteFile(filepath.Join(dir, "driver", "nvidia-caps", "mig-minors"), []byte(minors), 0o600); err != nil {
		t.Fatal(err)
	}
	inBubble(t, func(w *world) {
		t := w.t
		w.startKubelet()
		w.must("flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}", gputest.Divided(1, 2, "3g.20gb", 19968))
		g, err := w.kubelet.Admit(t.Context(), "pod", "nvidia.com/mig-3g.20gb", 2)
		if err != nil {
			t.Fatal(err)
		}
		var files []string
		for _, d := range g.Response.GetDevices() {
			files = append(files, d.GetContainerPath())
		}
		want := []string{"/dev/nvidia0"}
		for _, n := range []int{66, 67, 75, 76} {
			want = append(want, fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", n))
		}
		if diff := cmp.Diff(want, slices.DeleteFunc(files, func(f string) bool {
			return strings.HasPrefix(f, "/dev/nvidiactl") || strings.HasPrefix(f, "/dev/nvidia-uvm")
		})); diff != "" {
			t.Error(diff)
		}
		// A third instance would be gi9, which the driver does not know.
		err = w.apply("flags: {migStrategy: mixed, plugin: {passDeviceSpecs: true}}", gputest.Divided(1, 3, "2g.10gb", 9856))
		if err == nil || !strings.Contains(err.Error(), "the device files of MIG instance 0:2 are not known: the driver has no capability gpu0/gi9/access") {
			t.Errorf("got %v", err)
		}
	}, func(c *plugin.Config) { c.Capabilities = mig.Capabilities{Proc: dir} })
}
