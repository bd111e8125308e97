package snapshot_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// objects are the objects of a cluster by name, as a cache has them.
type objects struct {
	pods    map[string]*corev1.Pod
	nodes   map[string]*corev1.Node
	claims  map[string]*karpv1.NodeClaim
	volumes map[string]*corev1.PersistentVolumeClaim
	csi     map[string]*storagev1.CSINode
}

// plain returns the cluster with these objects.
func (o objects) plain(c *facts.Cluster) *facts.Cluster {
	now := *c
	now.Pods, now.Nodes, now.NodeClaims, now.PersistentVolumeClaims, now.CSINodes = values(o.pods), values(o.nodes), values(o.claims), values(o.volumes), values(o.csi)
	return &now
}

func values[T any](named map[string]*T) []T {
	all := make([]T, 0, len(named))
	for _, name := range slices.Sorted(maps.Keys(named)) {
		all = append(all, *named[name])
	}
	return all
}

// change draws and applies a change of one object.
func (o objects) change(t *rapid.T, changes *facts.Changes) {
	machine := func() string { return fmt.Sprint("m-", rapid.IntRange(0, 3).Draw(t, "machine")) }
	gone := rapid.IntRange(0, 3).Draw(t, "gone") == 0
	switch rapid.SampledFrom([]string{"pod", "pod", "pod", "pod", "node", "claim", "volume", "csi"}).Draw(t, "kind") {
	case "pod":
		name := fmt.Sprint("p-", rapid.IntRange(0, 9).Draw(t, "pod"))
		record(o.pods, &changes.Pods, "default/"+name, gone, func() *corev1.Pod { return drawPod(t, name, machine) })
	case "node":
		name := machine()
		record(o.nodes, &changes.Nodes, name, gone, func() *corev1.Node { return drawNode(t, name) })
	case "claim":
		name := machine()
		record(o.claims, &changes.NodeClaims, name, gone, func() *karpv1.NodeClaim { return drawClaim(t, name) })
	case "volume":
		record(o.volumes, &changes.PersistentVolumeClaims, "default/data", gone, func() *corev1.PersistentVolumeClaim {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}}
			claim.Spec.StorageClassName = new(rapid.SampledFrom([]string{"late", "missing"}).Draw(t, "storage class"))
			return claim
		})
	case "csi":
		name := machine()
		record(o.csi, &changes.CSINodes, name, gone, func() *storagev1.CSINode {
			count := int32(rapid.IntRange(0, 3).Draw(t, "attachments"))
			return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
				{Name: "ebs.csi.aws.com", Allocatable: &storagev1.VolumeNodeResources{Count: &count}},
			}}}
		})
	}
}

func record[T any](now map[string]*T, changes *map[string]*T, key string, gone bool, draw func() *T) {
	if *changes == nil {
		*changes = map[string]*T{}
	}
	if gone {
		delete(now, key)
		(*changes)[key] = nil
		return
	}
	now[key] = draw()
	(*changes)[key] = now[key]
}

func drawPod(t *rapid.T, name string, machine func() string) *corev1.Pod {
	app := rapid.SampledFrom([]string{"red", "blue"}).Draw(t, "app")
	pod := Pod(name, WithLabels("app", app), func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(Now.Add(-time.Minute)) })
	for _, edit := range []func(*corev1.Pod){
		Running(machine()), Running("elsewhere"), OwnedBy("apps/v1", "DaemonSet", "agent"), OwnedBy("batch/v1", "Job", "train"), OwnedBy("apps/v1", "ReplicaSet", "web"),
		Asking("cpu", "100m"), Asking("cpu", "1", v1alpha1.ResourceGPUShared, "2", "example.com/fpga", "1"), GPUMemory("2Gi"), HostPort(80), Claiming("data"), away(host, app), spreadOver(zone, app),
		near(zone, app), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: Now} },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, func(p *corev1.Pod) { p.Status.NominatedNodeName = machine() },
	} {
		if rapid.IntRange(0, 3).Draw(t, "edit") == 0 {
			edit(&pod)
		}
	}
	return &pod
}

func drawClaim(t *rapid.T, name string) *karpv1.NodeClaim {
	pool := Pool("gpu-shared", "gpu-shared", Tainted(v1alpha1.ResourceGPUShared))
	state := rapid.SampledFrom([]func(time.Time) func(*karpv1.NodeClaim){Launched, Registered, Initialized, Initialized}).Draw(t, "state")
	claim := Claim(name, &pool, xlarge, state(Now.Add(-time.Hour)))
	switch rapid.IntRange(0, 7).Draw(t, "of") {
	case 0:
		claim.Labels[v1alpha1.CanaryLabel] = "rollout"
	case 1:
		claim.Annotations = nil // It is Karpenter's own.
	case 2:
		claim.Annotations[v1alpha1.ReplacingAnnotation] = "Drifted"
	case 3:
		claim.Status.NodeName = ""
	}
	return &claim
}

func drawNode(t *rapid.T, name string) *corev1.Node {
	claim := drawClaim(t, name)
	node := Node(claim, xlarge, int64(rapid.IntRange(0, 1).Draw(t, "replicas")*10))
	node.Labels[zone] = rapid.SampledFrom(Zones).Draw(t, "zone")
	node.Spec.ProviderID = "aws:///" + rapid.SampledFrom([]string{name, "m-0"}).Draw(t, "provider")
	node.Spec.Unschedulable = rapid.IntRange(0, 3).Draw(t, "cordoned") == 0
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(Now.Add(time.Duration(rapid.IntRange(0, 9).Draw(t, "heard"))))}}
	return &node
}

// TestUpdatedIndexEqualsNewIndex checks that an index that follows changes yields the same decisions as an index of all objects,
// whatever changed and whatever was computed before.
func TestUpdatedIndexEqualsNewIndex(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := objects{map[string]*corev1.Pod{}, map[string]*corev1.Node{}, map[string]*karpv1.NodeClaim{}, map[string]*corev1.PersistentVolumeClaim{}, map[string]*storagev1.CSINode{}}
		c := Shared()
		Requiring(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpExists)(&c.NodePools[0])
		if rapid.Bool().Draw(t, "ranged") {
			c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = new(int32(20))
		}
		c.DaemonSets = append(c.DaemonSets, DaemonSet("agent", "cpu", "100m"))
		late := storagev1.VolumeBindingWaitForFirstConsumer
		c.StorageClasses = []storagev1.StorageClass{{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Provisioner: "ebs.csi.aws.com", VolumeBindingMode: &late}}
		var latest, older *facts.Index
		var was, wasMachines string
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			var changes facts.Changes
			for range rapid.IntRange(1, 3).Draw(t, "changes") {
				now.change(t, &changes)
			}
			index, differs := latest.With(changes)
			if !differs.Any() && latest != nil {
				compareIndexes(t, latest, index)
			}
			latest = index
			if _, again := index.With(changes); again.Any() {
				t.Fatal("what has not changed differs")
			}
			following := *c
			following.Index = index
			plain := now.plain(c)
			compareIndexes(t, plain.Indexed(), index)
			want, got := snapshot.Build(plain), snapshot.Build(&following)
			if diff := cmp.Diff(want.Snapshot, got.Snapshot); diff != "" {
				t.Fatalf("snapshot (-from nothing +following):\n%s", diff)
			}
			if diff := cmp.Diff(machinesOf(&want), machinesOf(&got)); diff != "" {
				t.Fatalf("machines (-from nothing +following):\n%s", diff)
			}
			// The earlier index has not changed.
			if older != nil {
				following.Index = older
				again := snapshot.Build(&following)
				if diff := cmp.Diff(was, asText(t, again.Snapshot)); diff != "" {
					t.Fatalf("an index has changed:\n%s", diff)
				}
				if diff := cmp.Diff(wasMachines, machinesOf(&again)); diff != "" {
					t.Fatalf("machines of an index have changed:\n%s", diff)
				}
			}
			if rapid.Bool().Draw(t, "remember") {
				older, was, wasMachines = index, asText(t, got.Snapshot), machinesOf(&got)
			}
		}
	})
}

// asText returns a snapshot as text.
func asText(t *rapid.T, s planner.Snapshot) string {
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// machinesOf formats what a view says about its machines.
func machinesOf(v *snapshot.View) string {
	var b strings.Builder
	for i := range v.Machines {
		m := &v.Machines[i]
		fmt.Fprintf(&b, "%s %s %+v %d %d %v %v %t", m.Claim.Name, m.State(), m.Promise, m.MaxPerGPU, m.Exposed(), m.Physical(), m.ExpectedLabels(), m.Leaving())
		for _, pod := range m.Pods {
			fmt.Fprintf(&b, " %s/%s", pod.Name, pod.Status.Phase)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func compareIndexes(t *rapid.T, want, got *facts.Index) {
	t.Helper()
	if diff := cmp.Diff(want.Pending(), got.Pending(), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("pending pods (-from nothing +following):\n%s", diff)
	}
	if diff := cmp.Diff(maps.Collect(want.Ended()), maps.Collect(got.Ended())); diff != "" {
		t.Fatalf("ended pods (-from nothing +following):\n%s", diff)
	}
	if diff := cmp.Diff(maps.Collect(want.NodeClaims()), maps.Collect(got.NodeClaims())); diff != "" {
		t.Fatalf("NodeClaims (-from nothing +following):\n%s", diff)
	}
	used := func(x *facts.Index) map[string]string {
		all := map[string]string{}
		for node, used := range x.Used() {
			_, pods := x.Node(node.Name)
			all[node.Name] = fmt.Sprintf("%+v %d %s", used, len(pods), node.Spec.ProviderID)
			all["provider of "+node.Name] = x.NodeOf(node.Spec.ProviderID).Name
		}
		return all
	}
	if diff := cmp.Diff(used(want), used(got)); diff != "" {
		t.Fatalf("nodes (-from nothing +following):\n%s", diff)
	}
	if !want.LastHeartbeat().Equal(got.LastHeartbeat()) {
		t.Fatalf("last heartbeat %s, want %s", got.LastHeartbeat(), want.LastHeartbeat())
	}
}
