package gather

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

const tinyGroup = "karpenter.tiny.example"

var tinyRef = v1alpha1.NodeClassReference{Group: tinyGroup, Kind: "TinyNodeClass", Name: "gpu"}

// tiny is a cloud with all that the controllers ask of one.
var tiny = cloud.Provider{
	NodeClass:             schema.GroupKind{Group: tinyGroup, Kind: "TinyNodeClass"},
	LabelPrefix:           tinyGroup + "/",
	GPULabels:             catalog.GPULabels{Name: tinyGroup + "/instance-gpu-name"},
	ReservationLabel:      tinyGroup + "/contract",
	ReservationField:      "spec.contracts",
	HashAnnotation:        tinyGroup + "/hash",
	HashVersionAnnotation: tinyGroup + "/hash-version",
	ReadImages: func(class *unstructured.Unstructured) []cloud.Image {
		id, _, _ := unstructured.NestedString(class.Object, "status", "image")
		return []cloud.Image{{ID: id, Requirements: []corev1.NodeSelectorRequirement{{Key: tinyGroup + "/instance-gpu-count", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}}}}}
	},
	ReadSubnets: func(class *unstructured.Unstructured) map[string]string {
		zones, _, _ := unstructured.NestedStringMap(class.Object, "status", "networks")
		return zones
	},
	ImageField:  "spec.image",
	SubnetField: "spec.networks",
	QuotaGroup:  func(string) string { return "all" },
	Quotas:      []catalog.Quota{{Group: "all", CapacityType: karpv1.CapacityTypeOnDemand, Code: "Q-1"}},
	RaiseQuota:  "tiny quota raise %s %s",
	SpotLabels:  map[string]string{"tiny.example/preemptible": "yes"},
	Interrupted: "TinyPreempted",
}

// tinyCatalog has the instance types of snapshottest with the labels of the cloud, and a contract for one g4dn.xlarge, which the node class may not select.
type tinyCatalog struct{ selectsNone bool }

func (c tinyCatalog) InstanceTypes(context.Context, *unstructured.Unstructured) catalog.Listing {
	contract := catalog.Reservation{ID: "c-1", InstanceType: "g4dn.xlarge", Zone: snapshottest.Zones[0], Free: 1, Total: 1, Read: snapshottest.Now}
	types := snapshottest.Types()
	for i := range types {
		t := &types[i]
		labels := map[string]string{}
		for key, value := range t.Labels {
			labels[strings.Replace(key, snapshottest.NodeClassRef.Group, tinyGroup, 1)] = value
		}
		t.Labels = labels
		if t.Name == contract.InstanceType {
			o := catalog.Offering{Zone: contract.Zone, CapacityType: karpv1.CapacityTypeReserved, Labels: map[string]string{
				corev1.LabelTopologyZone: contract.Zone, karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeReserved, tiny.ReservationLabel: contract.ID,
			}}
			o.Reserve(contract.ID, t.Offerings[0].MicroUSDPerHour)
			t.Offerings = append(t.Offerings, o)
		}
	}
	if c.selectsNone {
		return catalog.Listing{InstanceTypes: types}
	}
	return catalog.Listing{InstanceTypes: types, Reservations: []catalog.Reservation{contract}}
}

// tinyAPI is an API server with one TinyNodeClass.
type tinyAPI struct {
	*store
	class map[string]any
}

func (s tinyAPI) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if u, ok := o.(*unstructured.Unstructured); ok && u.GetKind() == tinyRef.Kind {
		u.Object = runtime.DeepCopyJSON(s.class)
		return nil
	}
	return s.store.Get(ctx, key, o, opts...)
}

// TestControllersWorkWithAnotherCloud registers a cloud and changes nothing else. It is not parallel, because others read the list of clouds.
func TestControllersWorkWithAnotherCloud(t *testing.T) {
	all := clouds.All
	t.Cleanup(func() { clouds.All = all })
	clouds.All = slices.Concat(all, []*cloud.Provider{&tiny})

	b := newTestbed()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: tinyGroup, Version: "v1"}})
	mapper.Add(schema.GroupVersionKind{Group: tinyGroup, Version: "v1", Kind: tinyRef.Kind}, meta.RESTScopeRoot)
	annotations := map[string]any{tiny.HashAnnotation: "1", tiny.HashVersionAnnotation: "v1"}
	status := map[string]any{
		"image": "image-1", "networks": map[string]any{"net-1": snapshottest.Zones[0]}, "conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
	}
	catalogs := map[schema.GroupKind]cloud.Catalog{tiny.NodeClass: tinyCatalog{}}
	b.Mapper, b.Catalog = mapper, cloud.ByKind{Kinds: catalogs}
	b.Live = tinyAPI{b.live, map[string]any{
		"apiVersion": tinyGroup + "/v1", "kind": tinyRef.Kind, "metadata": map[string]any{"name": tinyRef.Name, "annotations": annotations},
		"spec": map[string]any{"contracts": []any{"c-*"}}, "status": status,
	}}
	class := snapshottest.Class("gpu-shared", 10)
	class.Spec.NodeClassRef = tinyRef
	b.cached.set(&class, asItIs(&class, gpuNodeClass))
	wants := func(what, got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s: %q, want %q", what, got, part)
			}
		}
	}

	// The node class: where and with which image it can launch.
	c := b.look(t)
	state := c.NodeClasses[tinyRef]
	if !state.Ready || !state.SelectsReservations || state.Hash != "1" || state.HashVersion != "v1" || len(state.Reservations) != 1 {
		t.Fatalf("the node class is %+v", state)
	}
	wants("a zone without a subnet", unavailable(c, "g4dn.xlarge", snapshottest.Zones[1]), "no subnet in zone "+snapshottest.Zones[1], tiny.SubnetField)
	wants("a type without an image", unavailable(c, "g4dn.12xlarge", snapshottest.Zones[0]), "no image for g4dn.12xlarge", tiny.ImageField)

	// A launch, of a machine that the cloud's labels select, into a reservation.
	waiting := snapshottest.Pod("waits", snapshottest.Selecting(tinyGroup+"/instance-cpu", "4"))
	b.cached.set(&waiting)
	c = b.look(t)
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 {
		t.Fatalf("the plan is %+v", plan)
	}
	claim := render.NodeClaim(&view, plan.Launches[0], nil)
	if ref := claim.Spec.NodeClassRef; ref.Group != tinyGroup || ref.Kind != tinyRef.Kind || records.ReservationOf(claim) != "c-1" {
		t.Errorf("the claim has the node class %+v and the reservation %q, with %+v", ref, records.ReservationOf(claim), claim.Spec.Requirements)
	}

	// Drift of a machine: of its node class by hash, of its image, and of its reservation.
	claim.Name, claim.CreationTimestamp = "tiny-1", metav1.NewTime(snapshottest.Now)
	snapshottest.Initialized(snapshottest.Now)(claim)
	maps.Copy(claim.Annotations, map[string]string{tiny.HashAnnotation: "1", tiny.HashVersionAnnotation: "v1"})
	claim.Status.ImageID = "image-1"
	xlarge := catalog.Named(state.InstanceTypes, "g4dn.xlarge")
	node := snapshottest.Node(claim, xlarge, 10)
	b.live.set(claim)
	b.cached.set(&node)
	drifted := func(what string, want ...string) {
		t.Helper()
		c := b.look(t)
		machines := records.Machines(c)
		if len(machines) != 1 {
			t.Fatalf("%s: the machines are %+v", what, machines)
		}
		d := drift.Of(c, &snapshot.Pools(c)[0], &machines[0])
		switch {
		case d == nil && len(want) > 0:
			t.Errorf("%s: it has not drifted", what)
		case d != nil && len(want) == 0:
			t.Errorf("%s: %+v", what, *d)
		case d != nil:
			wants(what, d.Reason+": "+d.Message, want...)
		}
	}
	drifted("a machine of the node class")
	annotations[tiny.HashAnnotation] = "2"
	drifted("another hash", drift.NodeClass, "TinyNodeClass gpu has changed")
	annotations[tiny.HashAnnotation], status["image"] = "1", "image-2"
	drifted("another image", drift.Image, "image-1", "image-2")
	status["image"] = "image-1"
	claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, drift.Reservation, "")
	b.live.set(claim)
	drifted("a reservation that is selected again")
	catalogs[tiny.NodeClass] = tinyCatalog{selectsNone: true}
	drifted("a reservation that is not selected", drift.Reservation, "reservation c-1, which TinyNodeClass gpu")
	catalogs[tiny.NodeClass] = tinyCatalog{}

	// Quotas: a refusal of one type is about all that share its quota.
	class.Status.RefusedOfferings = []v1alpha1.RefusedOffering{{
		InstanceType: "g4dn.xlarge", Zone: v1alpha1.Any, CapacityType: karpv1.CapacityTypeOnDemand, Reason: v1alpha1.RefusalVCPULimit, Failures: 1,
		NotBefore: metav1.NewTime(snapshottest.Now.Add(time.Minute)),
	}}
	b.cached.set(&class, asItIs(&class, gpuNodeClass))
	preemptible := snapshottest.Node(claim, xlarge, 10, func(n *corev1.Node) {
		n.Name, n.UID, n.Labels = "foreign", "foreign", map[string]string{corev1.LabelInstanceTypeStable: xlarge.Name, "tiny.example/preemptible": "yes"}
	})
	b.cached.set(&preemptible)
	c = b.look(t)
	wants("a type that shares the quota", unavailable(c, "g4dn.2xlarge", snapshottest.Zones[0]), "was refused")
	var findings strings.Builder
	for _, f := range doctor.Check(&doctor.Facts{Cluster: c, Quotas: []catalog.Quota{{Group: "all", CapacityType: karpv1.CapacityTypeOnDemand, Code: "Q-1", VCPUs: 6}}}) {
		findings.WriteString(f.Message + ": " + f.Fix + "\n")
	}
	wants("doctor", findings.String(), "use 4 of the 6 vCPUs of all instances", "tiny quota raise Q-1 12", "tiny quota raise Q-1 VCPUS")

	if !clouds.Interrupts("TinyPreempted") || !slices.Contains(clouds.NodeClassResources(), schema.GroupResource{Group: tinyGroup, Resource: "tinynodeclasses"}) {
		t.Errorf("events or rights do not know the cloud: %v", clouds.NodeClassResources())
	}
}

// unavailable returns why the on-demand offering of an instance type in a zone cannot be launched.
func unavailable(c *facts.Cluster, instanceType, zone string) string {
	view := snapshot.Build(c)
	for i, o := range view.Offerings {
		if refusal := view.Snapshot.Offerings[i].Unavailable; o.Type.Name == instanceType && o.Zone == zone && o.CapacityType == karpv1.CapacityTypeOnDemand && refusal != nil {
			return refusal.Message
		}
	}
	return ""
}
