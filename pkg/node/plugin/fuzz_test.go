package plugin

import (
	"context"
	"slices"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/plugintest"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// FuzzAllocate checks that, whatever IDs the kubelet sends and whatever the configuration, the answer names exactly the GPUs of the IDs, each once; or there is
// an error, and no further replicas count as held.
func FuzzAllocate(f *testing.F) {
	const a, b = "GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b"
	f.Add(a, false, byte(1), false, byte(0))
	f.Add(a+"::0,"+b+"::3,"+a+"::1", true, byte(4), false, byte(1))
	f.Add(a+"::0,"+b+"::3", true, byte(4), true, byte(2))
	f.Add("::,"+a+"::-1,GPU-z", false, byte(10), false, byte(3))
	f.Add(","+a+"::9999999999999999999999", true, byte(2), false, byte(4))
	lists := [][]string{{sharing.ListEnvVar}, {sharing.ListVolumeMounts}, {sharing.ListCDICRI}, {sharing.ListCDIAnnotations, sharing.ListEnvVar}, {sharing.ListEnvVar, sharing.ListVolumeMounts, sharing.ListCDICRI}}
	f.Fuzz(func(t *testing.T, text string, renamed bool, replicas byte, failMany bool, list byte) {
		m := New(Config{KubeletSocket: "/plugins/kubelet.sock", Network: &plugintest.Memory{}, CDIMissing: func([]string) error { return nil }})
		c := sharing.Config{Given: map[string][]string{sharing.KeyDeviceLists: lists[int(list)%len(lists)]}}
		resource := nodecontract.ResourceGPU
		if replicas > 1 {
			e := sharing.Entry{Name: nodecontract.ResourceGPU, Replicas: int(replicas)}
			if renamed {
				resource += sharing.SharedSuffix
				e.Rename = resource
			}
			c.Sharing.TimeSlicing = &sharing.Replicated{FailRequestsGreaterThanOne: &failMany, Resources: []sharing.Entry{e}}
		}
		if err := m.Apply(context.Background(), c, []gpu.Device{{UUID: a, Index: 0, NUMANode: -1}, {UUID: b, Index: 1, NUMANode: -1}}); err != nil { //nolint:usetesting // A fuzz worker's T has none.
			t.Fatal(err)
		}
		ids := strings.Split(text, ",")
		known, replicasAsked := true, false
		for _, id := range ids {
			known = known && m.listed.has(resource, id)
			_, _, replica := alloc.Parse(id)
			replicasAsked = replicasAsked || replica
		}
		before := len(m.taken.by[resource])
		answer, err := m.allocate(context.Background(), resource, ids) //nolint:usetesting // As above.
		if allowed := known && (!failMany || !replicasAsked || len(ids) <= 1); allowed != (err == nil) {
			t.Fatalf("%q: %v", ids, err)
		}
		if err != nil {
			if len(m.taken.by[resource]) != before {
				t.Fatalf("%q is refused, and held: %v", ids, m.taken.by)
			}
			return
		}
		want := map[string]bool{}
		for _, id := range ids {
			want[alloc.UUID(id)] = true
		}
		for what, got := range named(answer) {
			slices.Sort(got)
			if len(got) != len(want) || len(slices.Compact(got)) != len(want) || slices.ContainsFunc(got, func(uuid string) bool { return !want[uuid] }) {
				t.Fatalf("%q: %s names %q", ids, what, got)
			}
		}
	})
}

// named returns the GPUs that an answer names, by the way in which it names them.
func named(r *pluginapi.ContainerAllocateResponse) map[string][]string {
	out := map[string][]string{}
	if v := r.GetEnvs()[visibleDevices]; v != "" && v != volumeMounts {
		out["the environment"] = strings.Split(v, ",")
	}
	for _, mount := range r.GetMounts() {
		out["the mounts"] = append(out["the mounts"], strings.TrimPrefix(mount.GetContainerPath(), volumeMounts+"/"))
	}
	for _, d := range r.GetCdiDevices() {
		out["CDI"] = append(out["CDI"], strings.TrimPrefix(d.GetName(), "nvidia.com/gpu="))
	}
	for _, v := range r.GetAnnotations() {
		out["annotations"] = strings.Split(strings.ReplaceAll(v, "nvidia.com/gpu=", ""), ",")
	}
	return out
}
