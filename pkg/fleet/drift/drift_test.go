package drift_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/fleet/drift"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/render"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	. "karve.sh/karve/pkg/snapshot/snapshottest" //nolint:revive // Builders read as the sentence that they make.
)

// launched returns a cluster with a machine that Karve launched for a pod two hours ago, with image-1 and the node class hash h1.
func launched(t *testing.T, edits ...func(*facts.Cluster)) *facts.Cluster {
	t.Helper()
	c := Shared()
	c.Pods = []corev1.Pod{Pod("web")}
	for _, edit := range edits {
		edit(c)
	}
	view := snapshot.Build(c)
	plan := solve.Plan(view.Snapshot)
	if len(plan.Launches) != 1 {
		t.Fatalf("%d launches: %+v", len(plan.Launches), plan.Unplaced)
	}
	claim := render.NodeClaim(&view, plan.Launches[0], nil)
	claim.CreationTimestamp = metav1.NewTime(Now.Add(-2 * time.Hour))
	claim.Annotations["karpenter.k8s.aws/ec2nodeclass-hash"] = "h1"
	claim.Annotations["karpenter.k8s.aws/ec2nodeclass-hash-version"] = "v4"
	claim.Status.ImageID = "image-1"
	Launched(Now)(claim)
	class(c, func(s *facts.NodeClassState) {
		s.Hash, s.HashVersion = "h1", "v4"
		s.Images = []facts.Image{
			{ID: "image-1", Requirements: []corev1.NodeSelectorRequirement{{Key: "karpenter.k8s.aws/instance-gpu-count", Operator: corev1.NodeSelectorOpExists}}},
			{ID: "image-0", Requirements: []corev1.NodeSelectorRequirement{{Key: "karpenter.k8s.aws/instance-gpu-count", Operator: corev1.NodeSelectorOpDoesNotExist}}},
		}
	})
	c.NodeClaims = []karpv1.NodeClaim{*claim}
	return c
}

func class(c *facts.Cluster, edit func(*facts.NodeClassState)) {
	state := c.NodeClasses[NodeClassRef]
	edit(&state)
	c.NodeClasses[NodeClassRef] = state
}

func require(key string, op corev1.NodeSelectorOperator, values ...string) func(*facts.Cluster) {
	return func(c *facts.Cluster) { Requiring(key, op, values...)(&c.NodePools[0]) }
}

func TestDriftReason(t *testing.T) {
	t.Parallel()
	image := func(id string) func(*facts.Cluster) {
		return func(c *facts.Cluster) { class(c, func(s *facts.NodeClassState) { s.Images[0].ID = id }) }
	}
	withoutType := func(c *facts.Cluster) {
		class(c, func(s *facts.NodeClassState) {
			s.InstanceTypes = []catalog.InstanceType{*TypeNamed("g4dn.12xlarge")}
		})
	}
	elsewhere := func(c *facts.Cluster) {
		class(c, func(s *facts.NodeClassState) {
			for i := range s.InstanceTypes {
				for j := range s.InstanceTypes[i].Offerings {
					s.InstanceTypes[i].Offerings[j].Zone = "us-east-1z"
				}
			}
		})
	}
	claim := func(edit func(*karpv1.NodeClaim)) func(*facts.Cluster) {
		return func(c *facts.Cluster) { edit(&c.NodeClaims[0]) }
	}
	running := func(pods int) func(*facts.Cluster) {
		return func(c *facts.Cluster) {
			Initialized(Now.Add(-time.Hour))(&c.NodeClaims[0])
			node := Node(&c.NodeClaims[0], TypeNamed("g4dn.xlarge"), 10)
			c.Nodes, c.Pods = append(c.Nodes, node), Pods("held", pods, Running(node.Name))
		}
	}
	reserved := claim(func(n *karpv1.NodeClaim) {
		n.Labels[karpv1.CapacityTypeLabelKey], n.Labels[ReservationLabel] = karpv1.CapacityTypeReserved, "cr-1"
	})
	drifts := claim(func(n *karpv1.NodeClaim) {
		n.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, drift.Reservation, "")
	})
	allowsReserved := require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, karpv1.CapacityTypeReserved, karpv1.CapacityTypeOnDemand)
	selects := func(c *facts.Cluster) { Reserve(c, catalog.Reservation{ID: "cr-1", InstanceType: "g4dn.xlarge"}) }
	for name, tc := range map[string]struct {
		edits  []func(*facts.Cluster)
		reason string
		says   string
	}{
		"unchanged": {},
		"a label of the template": {
			list(func(c *facts.Cluster) { Labeled(map[string]string{"team": "ml"})(&c.NodePools[0]) }), drift.NodePool, "gpu-shared",
		},
		"a hash with another version": {list(claim(func(n *karpv1.NodeClaim) {
			n.Annotations[karpv1.NodePoolHashAnnotationKey], n.Annotations[karpv1.NodePoolHashVersionAnnotationKey] = "1", "v2"
		})), "", ""},
		"no hash":                                               {list(claim(func(n *karpv1.NodeClaim) { delete(n.Annotations, karpv1.NodePoolHashAnnotationKey) })), "", ""},
		"a requirement that admits it":                          {list(require("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, "g4dn", "g5")), "", ""},
		"a requirement that excludes it":                        {list(require("karpenter.k8s.aws/instance-family", corev1.NodeSelectorOpIn, "g5")), drift.Requirements, `which has "g4dn"`},
		"a numeric requirement":                                 {list(require("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpGt, "4")), drift.Requirements, "instance-cpu"},
		"a requirement for the capacity type":                   {list(require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot")), drift.Requirements, "on-demand"},
		"a requirement for a label that no machine has":         {list(require("example.com/odd", corev1.NodeSelectorOpExists)), "", ""},
		"a requirement for a label that only new machines have": {list(require("example.com/group", corev1.NodeSelectorOpIn, "a", "b")), drift.Requirements, "example.com/group"},
		"a requirement that a label is absent":                  {list(require("example.com/odd", corev1.NodeSelectorOpDoesNotExist)), "", ""},
		"fewer replicas than pods hold":                         {list(running(10), func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.Replicas = new(int32(5)) }), drift.Sharing, "its pods hold 10 replicas, and GPUNodeClass gpu-shared allows 5 on its GPUs now (5 each)"},
		"a reservation":                                         {list(reserved, selects, allowsReserved), "", ""},
		"a reservation that is not selected any more":           {list(reserved, drifts, allowsReserved), drift.Reservation, "reservation cr-1"},
		"a reservation that may have ended":                     {list(reserved, allowsReserved), "", ""},
		"a reservation that is selected again":                  {list(reserved, drifts, selects, allowsReserved), "", ""},
		"a reservation that has ended":                          {list(drifts), "", ""},
		"as many replicas as pods hold":                         {list(running(5), func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.Replicas = new(int32(5)) }), "", ""},
		"the most of a range that pods hold": {list(running(10), func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.Replicas, c.GPUNodeClasses[0].Spec.Sharing.MaxReplicas = new(int32(5)), new(int32(10))
		}), "", ""},
		"fewer MPS clients than run": {list(running(10), claim(func(n *karpv1.NodeClaim) { n.Annotations["karve.sh/mps"] = "{}" }), func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.Strategy, c.GPUNodeClasses[0].Spec.Sharing.Replicas = v1alpha1.StrategyMPS, new(int32(5))
		}), drift.Sharing, "its pods hold 10 replicas"},
		"another number of replicas": {list(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.Replicas = new(int32(20)) }), "", ""},
		"another resource":           {list(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU }), drift.Sharing, "nvidia.com/gpu now"},
		"another backend":            {list(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.Backend = v1alpha1.BackendDRA }), drift.Sharing, "backend DevicePlugin, and GPUNodeClass gpu-shared has backend DRA now"},
		"the device plugin again":    {list(claim(func(n *karpv1.NodeClaim) { n.Annotations["karve.sh/backend"] = "DRA" })), drift.Sharing, "backend DRA, and GPUNodeClass gpu-shared has backend DevicePlugin now"},
		"another strategy":           {list(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.Sharing.Strategy = v1alpha1.StrategyMPS }), drift.Sharing, "has strategy MPS now"},
		"another strategy than MPS":  {list(claim(func(n *karpv1.NodeClaim) { n.Annotations["karve.sh/mps"] = "{}" })), drift.Sharing, "shares its GPUs with MPS, and GPUNodeClass gpu-shared has strategy TimeSlicing now"},
		"the same settings of MPS": {list(claim(func(n *karpv1.NodeClaim) { n.Annotations["karve.sh/mps"] = "{}" }), func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.Strategy = v1alpha1.StrategyMPS
		}), "", ""},
		"other settings of MPS": {list(claim(func(n *karpv1.NodeClaim) { n.Annotations["karve.sh/mps"] = "{}" }), func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.Strategy, c.GPUNodeClasses[0].Spec.Sharing.MPS = v1alpha1.StrategyMPS, &v1alpha1.MPSSharing{Users: v1alpha1.MPSUsersSingle}
		}), drift.Sharing, `"users":"Single"} now`},
		"another node class":   {list(func(c *facts.Cluster) { c.GPUNodeClasses[0].Spec.NodeClassRef.Name = "new" }), drift.NodeClass, "names EC2NodeClass new now"},
		"a changed node class": {list(func(c *facts.Cluster) { class(c, func(s *facts.NodeClassState) { s.Hash = "h2" }) }), drift.NodeClass, "EC2NodeClass gpu has changed"},
		"node class hashes with other versions": {list(func(c *facts.Cluster) {
			class(c, func(s *facts.NodeClassState) { s.Hash, s.HashVersion = "h2", "v5" })
		}), "", ""},
		"a node class that is not ready": {list(func(c *facts.Cluster) {
			class(c, func(s *facts.NodeClassState) { s.Hash, s.Ready = "h2", false })
		}), "", ""},
		"a new image":                       {list(image("image-2")), drift.Image, "image-1, and EC2NodeClass gpu has image-2 now"},
		"an image for other types":          {list(image("image-2"), claim(func(n *karpv1.NodeClaim) { n.Status.ImageID = "image-0" })), drift.Image, "image-0"},
		"no images for the type":            {list(func(c *facts.Cluster) { class(c, func(s *facts.NodeClassState) { s.Images = s.Images[1:] }) }), "", ""},
		"no images":                         {list(func(c *facts.Cluster) { class(c, func(s *facts.NodeClassState) { s.Images = nil }) }), "", ""},
		"an unknown image":                  {list(image("image-2"), claim(func(n *karpv1.NodeClaim) { n.Status.ImageID = "" })), "", ""},
		"a removed type":                    {list(withoutType), drift.InstanceType, "g4dn.xlarge"},
		"a removed type of a young machine": {list(withoutType, claim(func(n *karpv1.NodeClaim) { n.CreationTimestamp = metav1.NewTime(Now.Add(-time.Minute)) })), "", ""},
		"an empty catalog":                  {list(func(c *facts.Cluster) { c.UseInstanceTypes(nil) }), "", ""},
		"a removed zone":                    {list(elsewhere), drift.Zone, "us-east-1a"},
		"a type without offerings": {list(elsewhere, func(c *facts.Cluster) {
			class(c, func(s *facts.NodeClassState) {
				for i := range s.InstanceTypes {
					if s.InstanceTypes[i].Name == "g4dn.xlarge" {
						s.InstanceTypes[i].Offerings = nil
					}
				}
			})
		}), "", ""},
		"a pool that is being deleted": {list(image("image-2"), func(c *facts.Cluster) { c.NodePools[0].DeletionTimestamp = &metav1.Time{Time: Now} }), "", ""},
		"an unlaunched machine":        {list(image("image-2"), claim(func(n *karpv1.NodeClaim) { n.Status.Conditions = nil })), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := launched(t)
			for _, edit := range tc.edits {
				edit(c)
			}
			pool, m := snapshot.Pools(c)[0], records.Machines(c)[0]
			got := drift.Of(c, &pool, &m)
			switch {
			case got == nil && tc.reason != "":
				t.Errorf("it has not drifted, want %s", tc.reason)
			case got != nil && (got.Reason != tc.reason || !strings.Contains(got.Message, tc.says)):
				t.Errorf("it has drifted: %+v, want %s with %q", *got, tc.reason, tc.says)
			}
		})
	}
}

func list(edits ...func(*facts.Cluster)) []func(*facts.Cluster) { return edits }

// Otherwise the machine would be replaced by another one that has drifted, forever.
func TestLaunchedMachineHasNotDriftedFromItsPool(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*facts.Cluster){
		"plain":                             func(*facts.Cluster) {},
		"labels":                            func(c *facts.Cluster) { Labeled(map[string]string{"team": "ml"})(&c.NodePools[0]) },
		"custom values":                     require("example.com/group", corev1.NodeSelectorOpIn, "a", "b"),
		"a custom Exists requirement":       require("example.com/odd", corev1.NodeSelectorOpExists),
		"a custom DoesNotExist requirement": require("example.com/odd", corev1.NodeSelectorOpDoesNotExist),
		"a deprecated label":                require("beta.kubernetes.io/arch", corev1.NodeSelectorOpIn, "amd64"),
		"spot":                              require(karpv1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, "spot", "on-demand"),
		"a zone":                            require(corev1.LabelTopologyZone, corev1.NodeSelectorOpNotIn, Zones[0]),
		"numbers":                           require("karpenter.k8s.aws/instance-cpu", corev1.NodeSelectorOpLt, "9"),
		"whole GPUs": func(c *facts.Cluster) {
			c.GPUNodeClasses = []v1alpha1.GPUNodeClass{Class("gpu-shared", 0)}
			c.Pods = []corev1.Pod{Pod("web", Asking("cpu", "1", v1alpha1.ResourceGPU, "1"))}
		},
		"replicas under the plain name": func(c *facts.Cluster) {
			c.GPUNodeClasses[0].Spec.Sharing.ResourceName = v1alpha1.ResourceGPU
			c.Pods = []corev1.Pod{Pod("web", Asking("cpu", "1", v1alpha1.ResourceGPU, "1"))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := launched(t, edit)
			pool, m := snapshot.Pools(c)[0], records.Machines(c)[0]
			if got := drift.Of(c, &pool, &m); got != nil {
				t.Errorf("it has drifted: %+v", *got)
			}
		})
	}
}

func TestPausedRolloutPreventsImageDrift(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		promotion v1alpha1.Promotion
		good      string
		drifts    bool
	}{
		"paused":                           {v1alpha1.PromotionPaused, "image-1", false},
		"not paused":                       {v1alpha1.PromotionAutomatic, "image-1", true},
		"paused, and the image never good": {v1alpha1.PromotionPaused, "image-9", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := launched(t)
			class(c, func(s *facts.NodeClassState) { s.Images[0].ID = "image-2" })
			drift.AcceptGoodImages(c, []v1alpha1.GPUImageRollout{{
				Spec:   v1alpha1.GPUImageRolloutSpec{NodeClassRef: NodeClassRef, Promotion: tc.promotion},
				Status: v1alpha1.GPUImageRolloutStatus{Good: []v1alpha1.GPUImage{{Images: []v1alpha1.ArchitectureImage{{Architecture: "amd64", ID: tc.good}}}}},
			}})
			if d := drift.Of(c, &snapshot.Pools(c)[0], &records.Machines(c)[0]); (d != nil) != tc.drifts {
				t.Errorf("drift is %+v, want any: %t", d, tc.drifts)
			}
		})
	}
}
