package kubelet_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// draWorld is a node that was promised for the backend DRA, with the DeviceClass of the chart.
type draWorld struct {
	*world
	plugin gpus.Plugin
}

// newDRAWorld returns a node with T4s that have ten replicas each.
func newDRAWorld(t *testing.T, count int) *draWorld {
	t.Helper()
	w := unpromised(t, nvmltest.T4(count))
	w.must(w.Promise(t.Context(), nodecontract.BackendDRA, 10))
	return w
}

// unpromised returns a node for which nothing has been promised yet.
func unpromised(t *testing.T, state nvmltest.State) *draWorld {
	t.Helper()
	p := build(t, gpus.Karve)
	w := &draWorld{newWorld(t, state), p}
	if w.kubeletVersion() < "v1.34" {
		t.Skip("this Kubernetes does not serve ResourceClaims in v1")
	}
	w.must(w.InCluster(t.Context()))
	w.plugin.Args = []string{"--metrics-address=127.0.0.1:0", "--state-dir=none", "--cdi-spec-dirs=" + w.specs()}
	return w
}

// specs is the folder for CDI specs of the node's containerd.
func (w *draWorld) specs() string { return filepath.Join(w.node.Dir(), "cdi") }

// run starts the agent, which does what its Node says.
func (w *draWorld) run() *kubelet.Process {
	w.t.Helper()
	process, err := w.StartUnconfigured(w.plugin)
	w.must(err)
	return process
}

// published waits until the slice of the node has as many devices that take pods, and returns it.
func (w *draWorld) published(free int) *resourcev1.ResourceSlice {
	w.t.Helper()
	var slice *resourcev1.ResourceSlice
	w.eventually(func() error {
		all, err := w.node.Client().ResourceV1().ResourceSlices().List(w.t.Context(), metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorNodeName + "=" + w.node.Name()})
		if err != nil {
			return err
		}
		if len(all.Items) != 1 {
			return fmt.Errorf("there are %d slices", len(all.Items))
		}
		slice = &all.Items[0]
		got := 0
		for i := range slice.Spec.Devices {
			if len(slice.Spec.Devices[i].Taints) == 0 {
				got++
			}
		}
		if got != free {
			return fmt.Errorf("the slice has %d devices that take pods, want %d: %+v", got, free, slice.Spec)
		}
		return nil
	})
	return slice
}

func (w *draWorld) ask(names ...string) {
	w.t.Helper()
	for _, name := range names {
		_, err := w.pods().Create(w.t.Context(), w.node.Pod(name, nodecontract.ResourceGPUShared, 1), metav1.CreateOptions{})
		w.must(err)
	}
}

// waits checks that the scheduler has found no place for a pod.
func (w *draWorld) waits(name string) {
	w.t.Helper()
	w.eventually(func() error {
		pod := w.get(name)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("%s is %s: %v", name, pod.Status.Phase, pod.Status.Conditions)
	})
}

// held returns the replicas of the claims that the agent has recorded, by pod, and checks that no two pods hold the same.
func (w *draWorld) held() (map[string]string, error) {
	claims, err := dra.ClaimsOf(w.specs())
	if err != nil {
		return nil, err
	}
	pods, err := w.pods().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := map[string]string{} // of pods by claim
	for i := range pods.Items {
		if s := pods.Items[i].Status.ExtendedResourceClaimStatus; s != nil {
			names[s.ResourceClaimName] = pods.Items[i].Name
		}
	}
	held, holder := map[string]string{}, map[string]string{}
	for _, c := range claims {
		if len(c.Devices) != 1 || len(c.Devices[0].Replicas) != 1 {
			return nil, fmt.Errorf("claim %s holds %+v, want one replica", c.Name, c.Devices)
		}
		id := alloc.ID(c.Devices[0].UUID, c.Devices[0].Replicas[0])
		if other, twice := holder[id]; twice {
			return nil, fmt.Errorf("%s and %s hold %s", other, names[c.Name], id)
		}
		holder[id], held[names[c.Name]] = names[c.Name], id
	}
	return held, nil
}

// holds waits until the claims of pods are prepared with these replicas, and no others.
func (w *draWorld) holds(want map[string]string) {
	w.t.Helper()
	w.eventually(func() error {
		got, err := w.held()
		if err == nil && !maps.Equal(got, want) {
			err = fmt.Errorf("pods hold %v, want %v", got, want)
		}
		return err
	})
}

// evict evicts a pod as a drain does.
func (w *draWorld) evict(name string) {
	w.t.Helper()
	w.must(w.pods().EvictV1(w.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: w.node.Namespace(), Name: name}}))
}

func TestTenPodsShareGPUByDRAAcrossRestarts(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newDRAWorld(t, 1)
	uuid := nvmltest.T4(1).Devices[0].UUID
	agent := w.run()
	w.published(1)
	gets := func(name string) {
		t.Helper()
		if got := w.running(name)["NVIDIA_VISIBLE_DEVICES"]; got != uuid {
			t.Errorf("%s: NVIDIA_VISIBLE_DEVICES=%q, want %s", name, got, uuid)
		}
	}
	// One after another: kube-scheduler 1.36.3 counts an allocation twice for a moment, and a pod that needs the last replica in that moment waits for minutes.
	ran := map[string]*corev1.Pod{}
	for i := range 10 {
		name := fmt.Sprintf("pod-%d", i)
		w.ask(name)
		gets(name)
		ran[name] = w.get(name)
	}
	w.ask("eleventh")
	w.waits("eleventh")
	held, err := w.held()
	w.must(err)
	if len(held) != 10 {
		t.Fatalf("pods hold %v, want ten replicas", held)
	}

	restarts := []struct {
		of string
		do func()
	}{
		{"the kubelet", func() { w.must(w.node.RestartKubelet(t.Context())) }},
		{"the agent", func() { agent.Kill(); agent = w.run() }},
		{"both", func() {
			w.node.StopKubelet()
			agent.Kill()
			w.must(w.node.StartKubelet(t.Context()))
			agent = w.run()
		}},
	}
	for i, restart := range restarts {
		restart.do()
		w.waitForLog(agent, "Registered with the kubelet", i+2)
		w.published(1)
		w.holds(held)
		for name, pod := range ran {
			if now := w.get(name); now.UID != pod.UID || now.Status.Phase != corev1.PodRunning || now.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("after a restart of %s, %s is %s: %s", restart.of, name, now.Status.Phase, now.Status.Message)
			}
		}
		if pod := w.get("eleventh"); pod.Spec.NodeName != "" {
			t.Fatalf("after a restart of %s, an eleventh pod has a replica of ten", restart.of)
		}
	}

	w.delete("pod-3")
	gets("eleventh")
	w.ask("twelfth")
	w.waits("twelfth")
	w.evict("pod-4")
	gets("twelfth")
	held["eleventh"], held["twelfth"] = held["pod-3"], held["pod-4"]
	delete(held, "pod-3")
	delete(held, "pod-4")
	w.holds(held)
}

func TestCordonedGPUTakesNoPodsByDRA(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := newDRAWorld(t, 2)
	w.run()
	slice := w.published(2)
	w.ask("first")
	first := w.running("first")["NVIDIA_VISIBLE_DEVICES"]
	// The scheduler takes the first device that fits.
	if first != nvmltest.T4(2).Devices[0].UUID || slice.Spec.Devices[0].Name != strings.ToLower(first) {
		t.Errorf("the pod has GPU %s, and the first of the slice is %s", first, slice.Spec.Devices[0].Name)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "0")
	w.published(1)
	w.ask("second")
	if got, want := w.running("second")["NVIDIA_VISIBLE_DEVICES"], nvmltest.T4(2).Devices[1].UUID; got != want {
		t.Errorf("second: NVIDIA_VISIBLE_DEVICES=%q, want %s", got, want)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "0,1")
	w.published(0)
	w.ask("third")
	w.waits("third")
	if pod := w.get("first"); pod.Status.Phase != corev1.PodRunning {
		t.Errorf("first is %s: a cordon moves no pod", pod.Status.Phase)
	}
	w.annotate(nodecontract.GPUCordonAnnotation, "1")
	w.published(1)
	w.running("third")
}

// The kubelet passes the CDI devices of all requests to a container that refers to a claim, and those of one to a container that refers to a request.
func TestContainersSeeTheGPUsOfTheClaimOrOfTheRequest(t *testing.T) {
	t.Parallel()
	w := newDRAWorld(t, 2)
	w.run()
	w.published(2)
	devices := resourcev1.DeviceClaim{Constraints: []resourcev1.DeviceConstraint{{DistinctAttribute: new(resourcev1.FullyQualifiedName(nodecontract.DRADriver + "/" + nodecontract.DRAUUID))}}}
	for _, request := range []string{"a", "b"} {
		devices.Requests = append(devices.Requests, resourcev1.DeviceRequest{Name: request, Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: nodecontract.DRADriver}})
	}
	_, err := w.node.Client().ResourceV1().ResourceClaimTemplates(w.node.Namespace()).Create(t.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "two"}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: resourcev1.ResourceClaimSpec{Devices: devices}},
	}, metav1.CreateOptions{})
	w.must(err)
	first, second := nvmltest.T4(2).Devices[0].UUID, nvmltest.T4(2).Devices[1].UUID
	for request, want := range map[string]string{"": first + "," + second, "a": first, "b": second} {
		pod := w.node.Pod("refers-"+request+"x", "", 0)
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: new("two")}}
		pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpus", Request: request}}
		_, err := w.pods().Create(t.Context(), pod, metav1.CreateOptions{})
		w.must(err)
		if got := w.running(pod.Name)["NVIDIA_VISIBLE_DEVICES"]; got != want {
			t.Errorf("a container that refers to request %q sees %s, want %s", request, got, want)
		}
	}
}

func TestPodsHaveTheirOwnMIGInstancesByDRA(t *testing.T) {
	cluster.Long(t)
	t.Parallel()
	w := unpromised(t, nvmltest.H100(1))
	const small = "nvidia.com/mig-1g.10gb"
	w.must(w.PromiseOf(t.Context(), nodecontract.BackendDRA, small, 7, nodecontract.MIG{Profile: "1g.10gb", Count: 7, Naming: nodecontract.MIGMixed}))
	w.divide(w.plugin)
	agent := w.run()
	w.published(7)
	seen := map[string]bool{}
	for i := range 7 {
		w.want(fmt.Sprint("small-", i), small)
	}
	for i := range 7 {
		instance := w.running(fmt.Sprint("small-", i))["NVIDIA_VISIBLE_DEVICES"]
		if !strings.HasPrefix(instance, "MIG-") || seen[instance] {
			t.Errorf("small-%d has the instance %q, and others have %v", i, instance, seen)
		}
		seen[instance] = true
	}
	w.want("eighth", small)
	w.waits("eighth")

	// What divides GPUs knows the claims of pods, and changes nothing.
	before := w.Instances(0)
	w.promise("nvidia.com/mig-3g.40gb", 2, nodecontract.MIG{Profile: "3g.40gb", Count: 2, Naming: nodecontract.MIGMixed})
	w.divide(w.plugin)
	if after := w.Instances(0); after != before {
		t.Errorf("the instances changed under pods: %s, and before %s", after, before)
	}
	w.sharingReady(nodecontract.ReasonRefused, "2 MIG instances 3g.40gb were promised")
	w.promise(small, 7, nodecontract.MIG{Profile: "1g.10gb", Count: 7, Naming: nodecontract.MIGMixed})
	w.sharingReady(nodecontract.ReasonApplied, "")

	held, err := w.held()
	w.must(err)
	if len(held) != 7 {
		t.Fatalf("pods hold %v, want seven instances", held)
	}
	agent.Kill()
	agent = w.run()
	w.must(w.node.RestartKubelet(t.Context()))
	w.waitForLog(agent, "Registered with the kubelet", 1)
	w.published(7)
	w.holds(held)
	for i := range 7 {
		if status := w.get(fmt.Sprint("small-", i)).Status; status.Phase != corev1.PodRunning || status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("small-%d is %s: %s", i, status.Phase, status.Message)
		}
	}
	// A fault of one instance is its own.
	w.must(w.Change(func(s *nvmltest.State) {
		s.XIDs = append(s.XIDs, nvmltest.XID{Device: 0, XID: 94, On: &nvmltest.OnInstance{GPU: 9}})
	}))
	w.published(6)
	w.annotate(nodecontract.GPUCordonAnnotation, "0")
	w.published(0)
}
