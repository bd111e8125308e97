package dra_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

func (w *world) apply(c sharing.Config, gpus ...gpu.Device) {
	w.t.Helper()
	if err := w.driver.Apply(c, gpu.Driver{Version: "580.65.06", CUDAMajor: 13}, gpus); err != nil {
		w.t.Fatal(err)
	}
}

func ready(n int) func(nodeapi.ResourceSlice) bool {
	return func(s nodeapi.ResourceSlice) bool {
		free := 0
		for _, d := range s.Spec.Devices {
			if len(d.Taints) == 0 {
				free++
			}
		}
		return free == n
	}
}

func deviceOf(uuid string) string { return strings.ToLower(uuid) }

func TestSliceHasEachGPUWithItsReplicasAndMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(2)...)
	s := w.slice("published", ready(2))
	if s.Metadata.Name != "gpu.karve.sh-n" || s.Spec.Driver != "gpu.karve.sh" || s.Spec.NodeName != "n" || s.Spec.Pool != (nodeapi.SlicePool{Name: "n", Generation: 1, ResourceSliceCount: 1}) {
		t.Errorf("it is %+v", s)
	}
	if o := s.Metadata.OwnerReferences; len(o) != 1 || o[0] != (nodeapi.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n", UID: "node-uid"}) {
		t.Errorf("its owners are %v", o)
	}
	device, err := json.Marshal(s.Spec.Devices[0])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"name":"gpu-11111111-2222-3333-4444-555555555555","attributes":{"architecture":{"string":"turing"},"cudaComputeCapability":{"version":"7.5.0"},` +
		`"cudaDriverVersion":{"version":"13.0.0"},"driverVersion":{"version":"580.65.6"},"index":{"int":0},"productName":{"string":"Tesla T4"},` +
		`"resource":{"string":"nvidia.com/gpu.shared"},"resource.kubernetes.io/pcieRoot":{"string":"pci0000:00"},"uuid":{"string":"GPU-11111111-2222-3333-4444-555555555555"}},` +
		`"capacity":{"memory":{"value":"15Gi","requestPolicy":{"default":"0","validRange":{"min":"0","step":"1Mi"}}},` +
		`"replicas":{"value":"10","requestPolicy":{"default":"1","validRange":{"min":"1","step":"1"}}}},"allowMultipleAllocations":true}`
	if string(device) != want {
		t.Errorf("the device is\n%s\nwant\n%s", device, want)
	}
}

func TestSliceIsWrittenAgainOnlyWhenItDiffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.api.mu.Lock()
	w.api.put(nodeapi.ResourceSlice{Metadata: nodeapi.SliceMetadata{Name: "left-by-another-version"}, Spec: nodeapi.SliceSpec{Pool: nodeapi.SlicePool{Generation: 7}}})
	w.api.mu.Unlock()
	w.apply(tenEach(t), t4s(1)...)
	first := w.slice("alone", ready(1))
	if first.Spec.Pool.Generation != 8 {
		t.Errorf("the generation is %d, want more than that of the slice that was there", first.Spec.Pool.Generation)
	}
	// The same again changes nothing, and neither do the times that the API server adds to taints.
	w.driver.SetHealth(t4, false)
	tainted := w.slice("tainted", ready(0))
	writes := w.api.count()
	for range 3 {
		for len(w.published) > 0 {
			<-w.published
		}
		w.apply(tenEach(t), t4s(1)...)
		<-w.published
	}
	if now := w.api.count(); now != writes {
		t.Errorf("%d writes without a change", now-writes)
	}
	if got := tainted.Spec.Devices[0].Taints; len(got) != 1 || got[0].Key != nodecontract.DRAUnhealthyTaint || got[0].Effect != "NoSchedule" {
		t.Errorf("taints are %v", got)
	}
	w.driver.SetHealth(t4, true)
	w.driver.SetCordoned(map[string]bool{t4: true})
	cordoned := w.slice("cordoned", func(s nodeapi.ResourceSlice) bool {
		return len(s.Spec.Devices[0].Taints) == 1 && s.Spec.Devices[0].Taints[0].Key == nodecontract.DRACordonedTaint
	})
	if cordoned.Spec.Pool.Generation <= tainted.Spec.Pool.Generation {
		t.Errorf("the generation went from %d to %d", tainted.Spec.Pool.Generation, cordoned.Spec.Pool.Generation)
	}
	w.driver.SetCordoned(nil)
	w.slice("free", ready(1))
}

// The scheduler would find no GPU for a moment, and the controller would see replicas missing.
func TestSliceStaysWhileTheAgentRestarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	before := w.slice("published", ready(1))
	w.prepare(w.allocate("a", "r="+deviceOf(t4)))
	w.stop()
	w.start()
	w.slice("still there", func(s nodeapi.ResourceSlice) bool {
		return s.Metadata.ResourceVersion == before.Metadata.ResourceVersion
	})
	w.register()
	w.apply(tenEach(t), t4s(1)...)
	for len(w.published) > 0 {
		<-w.published
	}
	w.apply(tenEach(t), t4s(1)...)
	<-w.published
	if now := w.slice("the same", ready(1)); now.Metadata.ResourceVersion != before.Metadata.ResourceVersion {
		t.Errorf("it was written: %+v, then %+v", before, now)
	}
}

func (s *apiServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

// The kubelet deletes the slices of its node when it starts.
func TestSliceComesBackWhenItIsDeletedOrChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	s := w.slice("published", ready(1))
	w.api.mu.Lock()
	delete(w.api.slices, s.Metadata.Name)
	w.api.bump()
	w.api.mu.Unlock()
	s = w.slice("published again", ready(1))
	// Somebody writes between the driver's reading and its writing.
	w.api.mu.Lock()
	w.api.foreign = func(a *apiServer) {
		other := s
		other.Spec.Pool.Generation = 40
		a.put(other)
	}
	w.api.mu.Unlock()
	w.apply(tenEach(t), t4s(2)...)
	if now := w.slice("of two GPUs", ready(2)); now.Spec.Pool.Generation <= 40 {
		t.Errorf("the generation is %d, and somebody has written 40", now.Spec.Pool.Generation)
	}
}

func TestNothingIsPublishedWhileOthersServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	w.slice("published", ready(1))
	claim := w.allocate("a", "container-0-request-0="+deviceOf(t4))
	if r := w.prepare(claim); r.GetError() != "" {
		t.Fatal(r.GetError())
	}
	w.driver.StandBack("NVIDIA's driver serves them")
	w.eventually(func() error { return w.api.none() })
	if got := w.driver.Claims(); !slices.Equal(got, []string{"team/a"}) {
		t.Errorf("claims are %v: what pods hold stays", got)
	}
	w.driver.StandBack("")
	w.slice("published again", ready(1))
	w.driver.Retire()
	w.eventually(func() error { return w.api.none() })
}

func (s *apiServer) none() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slices) > 0 {
		return fmt.Errorf("there are slices: %v", s.slices)
	}
	return nil
}

func TestDevicesWithTaintsAreLeftOutIfTheAPIServerDropsTaints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.api.drop = func(s *nodeapi.ResourceSlice) {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints = nil
		}
	}
	gpus := t4s(2)
	w.driver.SetHealth(gpus[1].UUID, false)
	w.apply(tenEach(t), gpus...)
	s := w.slice("without the GPU that is out of service", func(s nodeapi.ResourceSlice) bool { return len(s.Spec.Devices) == 1 })
	if s.Spec.Devices[0].Name != deviceOf(gpus[0].UUID) {
		t.Errorf("it has %s", s.Spec.Devices[0].Name)
	}
}

func TestNothingIsPublishedIfTheAPIServerLetsNobodyShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.api.drop = func(s *nodeapi.ResourceSlice) {
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].AllowMultipleAllocations = false
		}
	}
	w.apply(tenEach(t), t4s(1)...)
	var err error
	for err == nil {
		err = <-w.published
	}
	if !strings.Contains(err.Error(), "DRAConsumableCapacity") {
		t.Errorf("it says %v", err)
	}
	w.eventually(func() error { return w.api.none() })
}

// spec is what a container runtime reads.
type spec struct {
	CDIVersion string `json:"cdiVersion"`
	Kind       string `json:"kind"`
	Devices    []struct {
		Name           string `json:"name"`
		ContainerEdits struct {
			Env         []string `json:"env"`
			DeviceNodes []struct{ Path, HostPath, Permissions string }
			Mounts      []struct{ HostPath, ContainerPath string }
		} `json:"containerEdits"`
	} `json:"devices"`
}

// specs returns what the CDI device of each request of a claim does, by its qualified name.
func (w *world) specs() map[string][]string {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.config.Specs, "*.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	out := map[string][]string{}
	for _, path := range paths {
		var s spec
		data, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(data, &s)
		}
		if err != nil {
			w.t.Fatal(err)
		}
		for _, d := range s.Devices {
			does := slices.Clone(d.ContainerEdits.Env)
			for _, n := range d.ContainerEdits.DeviceNodes {
				does = append(does, n.Path)
			}
			for _, m := range d.ContainerEdits.Mounts {
				does = append(does, m.HostPath+":"+m.ContainerPath)
			}
			out[s.Kind+"="+d.Name] = does
		}
	}
	return out
}

func TestEachContainerSeesTheGPUsOfItsRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := t4s(3)
	w.apply(tenEach(t), gpus...)
	r := w.prepare(w.allocate("a", "one="+deviceOf(gpus[0].UUID), "two="+deviceOf(gpus[1].UUID), "two="+deviceOf(gpus[2].UUID), "same="+deviceOf(gpus[0].UUID)))
	if r.GetError() != "" || len(r.GetDevices()) != 5 {
		t.Fatalf("got %v", r)
	}
	for i, gpu := range []int{0, 1, 2, 0} {
		if d := r.GetDevices()[i]; d.GetPoolName() != "n" || d.GetDeviceName() != deviceOf(gpus[gpu].UUID) || d.GetShareId() != fmt.Sprintf("a-share-%d", i) || len(d.GetRequestNames()) != 1 {
			t.Errorf("device %d is %v", i, d)
		}
	}
	for request, want := range map[string][]int{"one": {0}, "two": {1, 2}, "same": {0}, "": {0, 1, 2}} {
		var uuids []string
		for _, i := range want {
			uuids = append(uuids, gpus[i].UUID)
		}
		if got := w.visible(r, request); got != strings.Join(uuids, ",") {
			t.Errorf("a container that refers to request %q sees %s, want GPUs %v", request, got, want)
		}
	}
}

// visible returns the NVIDIA_VISIBLE_DEVICES of a container that refers to a request, or to the whole claim if it is "". The kubelet names the CDI devices in the
// order of the answer, and the runtime keeps the last value of a variable.
func (w *world) visible(r *drapb.NodePrepareResourceResponse, request string) string {
	specs, value := w.specs(), ""
	for _, d := range r.GetDevices() {
		if request != "" && !slices.Contains(d.GetRequestNames(), request) {
			continue
		}
		for _, id := range d.GetCdiDeviceIds() {
			for _, edit := range specs[id] {
				value = strings.TrimPrefix(edit, "NVIDIA_VISIBLE_DEVICES=")
			}
		}
	}
	return value
}

func TestRequestsOnOneGPUNeedNoDeviceOfTheWholeClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	if r := w.prepare(w.allocate("a", "one="+deviceOf(t4), "two="+deviceOf(t4)+"*2")); len(r.GetDevices()) != 2 || w.visible(r, "") != t4 {
		t.Errorf("got %v", r)
	}
}

// With each way to tell the container runtime, the edits are what the device plugin answers.
func TestContainersGetWhatTheDevicePluginGivesThem(t *testing.T) {
	t.Parallel()
	for lists, want := range map[string]struct{ edits, names []string }{
		"envvar":          {edits: []string{"NVIDIA_VISIBLE_DEVICES=" + t4}},
		"volume-mounts":   {edits: []string{"NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices", "/dev/null:/var/run/nvidia-container-devices/" + t4}},
		"cdi-cri":         {edits: []string{"NVIDIA_VISIBLE_DEVICES=void"}, names: []string{"nvidia.com/gpu=" + t4}},
		"cdi-annotations": {edits: []string{"NVIDIA_VISIBLE_DEVICES=void"}, names: []string{"nvidia.com/gpu=" + t4}},
	} {
		t.Run(lists, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			c := tenEach(t)
			c.Given = map[string][]string{sharing.KeyDeviceLists: {lists}}
			w.apply(c, t4s(1)...)
			r := w.prepare(w.allocate("a", "r="+deviceOf(t4)))
			if r.GetError() != "" || len(r.GetDevices()) != 1 {
				t.Fatalf("got %v", r)
			}
			ids := r.GetDevices()[0].GetCdiDeviceIds()
			if got := w.specs()[ids[0]]; !slices.Equal(got, want.edits) {
				t.Errorf("edits are %v, want %v", got, want.edits)
			}
			if !slices.Equal(ids[1:], want.names) {
				t.Errorf("other CDI devices are %v, want %v", ids[1:], want.names)
			}
		})
	}
}

func TestClaimsStayAsTheyArePreparedAcrossRestartsAndReboots(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	claim := w.allocate("a", "r="+deviceOf(t4)+"*3")
	first := w.prepare(claim)
	specs := w.specs()
	ids := w.driver.IDs("team", "a", deviceOf(t4), "a-share-0")
	if want := []string{t4 + "::0", t4 + "::1", t4 + "::2"}; !slices.Equal(ids, want) {
		t.Errorf("it holds %v, want %v", ids, want)
	}
	again := func(why string) {
		t.Helper()
		w.start()
		w.register()
		w.apply(tenEach(t), t4s(1)...)
		second := w.prepare(claim)
		if fmt.Sprint(second) != fmt.Sprint(first) || first.GetError() != "" {
			t.Errorf("%s: first %v, then %v", why, first, second)
		}
		if now := w.specs(); !maps.EqualFunc(specs, now, slices.Equal[[]string]) {
			t.Errorf("%s: specs were %v and are %v", why, specs, now)
		}
		if share := w.driver.Shares()[t4]; share.Total != 10 || share.Allocated != 3 {
			t.Errorf("%s: the GPU's share is %+v", why, share)
		}
		w.stop()
	}
	w.stop()
	w.api.mu.Lock()
	w.api.away = true
	w.api.mu.Unlock()
	again("the agent restarts while the API server is away")
	w.api.mu.Lock()
	w.api.away = false
	w.api.mu.Unlock()
	if err := os.RemoveAll(w.config.Specs); err != nil {
		t.Fatal(err)
	}
	again("a reboot empties the runtime's folder")
	w.start()
	w.register()
	w.unprepare(claim)
	w.unprepare(claim)
	if got := w.specs(); len(got) > 0 || len(w.driver.Claims()) > 0 || w.driver.Shares()[t4].Allocated != 0 {
		t.Errorf("%v and %v stay", got, w.driver.Claims())
	}
}

func TestReplicasOfEndedClaimsAreUsedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	var claims []*drapb.Claim
	for i := range 10 {
		claims = append(claims, w.allocate(fmt.Sprintf("c%d", i), "r="+deviceOf(t4)))
		if r := w.prepare(claims[i]); r.GetError() != "" {
			t.Fatal(r.GetError())
		}
	}
	w.unprepare(claims[4])
	w.prepare(w.allocate("late", "r="+deviceOf(t4)))
	if got := w.driver.IDs("team", "late", deviceOf(t4), "late-share-0"); !slices.Equal(got, []string{t4 + "::4"}) {
		t.Errorf("it holds %v", got)
	}
}

func TestClaimsThatCannotBePreparedSayWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gpus := t4s(2)
	w.driver.SetHealth(gpus[1].UUID, false)
	w.apply(tenEach(t), gpus...)
	sick, healthy := deviceOf(gpus[1].UUID), deviceOf(gpus[0].UUID)
	other := w.allocate("again", "r="+healthy)
	other.Uid = "another-uid"
	for _, c := range []struct {
		claim *drapb.Claim
		want  string
	}{
		{w.allocate("sick", "r="+sick), "out of service"},
		{w.allocate("gone", "r=gpu-of-another-node"), "has no GPU gpu-of-another-node now"},
		{w.allocate("none"), "has no device of driver gpu.karve.sh"},
		{other, "deleted and created again"},
		{&drapb.Claim{Namespace: "team", Name: "never", Uid: "u"}, "404"},
		{&drapb.Claim{Namespace: "team", Name: "never", Uid: "../../etc/passwd"}, "cannot be in the name of a file"},
	} {
		if r := w.prepare(c.claim); !strings.Contains(r.GetError(), c.want) {
			t.Errorf("%s says %q, want %q", c.claim.GetName(), r.GetError(), c.want)
		}
	}
	if got := w.driver.Claims(); len(got) > 0 {
		t.Errorf("%v are recorded", got)
	}
}

func TestUnreadableSpecsKeepOtherClaims(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	claim, half := w.allocate("a", "r="+deviceOf(t4)+"*2"), w.allocate("half", "r="+deviceOf(t4))
	first := w.prepare(claim)
	w.prepare(half)
	w.stop()
	file := func(uid string) string { return filepath.Join(w.config.Specs, "gpu.karve.sh-claim_"+uid+".json") }
	of := func(uid string) string {
		return fmt.Sprintf(`{"annotations":{"gpu.karve.sh/claim":"{\"uid\":\"%s\",\"namespace\":\"team\",\"name\":\"b\"}"}}`, uid)
	}
	damages := map[string]struct{ content, want string }{
		half.GetUid(): {"{", "unexpected end of JSON input"}, "x": {of("../x"), `it is of the claim "../x"`}, "-x": {of("-x"), `it is of the claim "-x"`},
	}
	for uid, damage := range damages {
		if err := os.WriteFile(file(uid), []byte(damage.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	driver, err := dra.New(w.config)
	for uid, damage := range damages {
		if want := file(uid) + ": " + damage.want; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("it says %v, want %s", err, want)
		}
	}
	w.run(driver)
	w.register()
	w.apply(tenEach(t), t4s(1)...)
	if got := w.driver.Shares()[t4].Allocated; got != 2 {
		t.Errorf("%d replicas are held, want 2", got)
	}
	if again := w.prepare(claim); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("first %v, then %v", first, again)
	}
	if r := w.prepare(half); r.GetError() != "" {
		t.Error(r.GetError())
	}
	if err := errors.Join(os.Remove(file("x")), os.Remove(file("-x"))); err != nil {
		t.Fatal(err)
	}
	if driver, err := dra.New(w.config); err != nil || len(driver.Claims()) != 2 {
		t.Errorf("a spec was not made again: %v, %v", driver.Claims(), err)
	}
}

// A driver of Karve 0.1 knows no claims without the file, and reads the CDI specs if it does not know the version in it.
func TestFormerRecordHasVersionThatFormerDriversDoNotKnow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.eventually(func() error {
		text, err := os.ReadFile(filepath.Join(w.config.State, "dra-claims.json"))
		if err == nil && string(text) != `{"version":2}` {
			err = fmt.Errorf("it says %s", text)
		}
		return err
	})
}

// The kubelet may lose its own record, for instance with its folder.
func TestClaimsThatAreGoneAreForgottenAtStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.apply(tenEach(t), t4s(1)...)
	for _, name := range []string{"stays", "deleted", "replaced"} {
		if r := w.prepare(w.allocate(name, "r="+deviceOf(t4))); r.GetError() != "" {
			t.Fatal(r.GetError())
		}
	}
	w.stop()
	w.api.mu.Lock()
	delete(w.api.claims, "deleted")
	w.api.claims["replaced"] = `{"metadata":{"name":"replaced","uid":"another"}}`
	w.api.mu.Unlock()
	w.start()
	w.eventually(func() error {
		if got := w.driver.Claims(); !slices.Equal(got, []string{"team/stays"}) {
			return fmt.Errorf("claims are %v", got)
		}
		return nil
	})
}

func TestGPUsThatCannotBeServedAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	divided := t4s(1)
	divided[0].MIG, divided[0].Instances = true, []gpu.Instance{{UUID: "MIG-1", Profile: "1g.5gb"}}
	if err := w.driver.Apply(tenEach(t), gpu.Driver{}, divided); err == nil || !strings.Contains(err.Error(), "MIG instances") {
		t.Errorf("MIG instances: %v", err)
	}
	c := tenEach(t)
	c.Given = map[string][]string{sharing.KeyDeviceLists: {"cdi-cri"}}
	missing := w.config
	missing.CDIMissing = func(devices []string) error { return fmt.Errorf("no CDI spec defines %s", strings.Join(devices, ",")) }
	driver, err := dra.New(missing)
	if err != nil {
		t.Fatal(err)
	}
	if err := driver.Apply(c, gpu.Driver{}, t4s(1)); err == nil || !strings.Contains(err.Error(), "nvidia-ctk cdi generate") {
		t.Errorf("no CDI spec: %v", err)
	}
}
