package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// fleet returns the number of nodes to roll: KARVE_FLEET, or 4.
func fleet(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(or(os.Getenv("KARVE_FLEET"), "4"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestFleetRollsToNewImageWithinBudget has only full nodes, so that each needs a new one. The scheduler must never report an evicted pod's
// replacement unschedulable.
func TestFleetRollsToNewImageWithinBudget(t *testing.T) {
	cluster.Long(t)
	w := sharedWorld(t)
	t.Parallel()
	nodes := fleet(t)
	s := w.scene(t, "rolled")
	s.class("20s")
	s.pool(poolOptions{budget: "2", requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	s.deploy("inference", int32(10*nodes))
	patience := time.Duration(nodes) * 60 * time.Second
	s.until(enough+patience, "all pods run", func() (bool, string) { return s.running() == 10*nodes, fmt.Sprint(s.running()) })
	was := s.image()
	began := time.Now()
	s.patch(s.nodeClassNamed(s.name), `{"spec":{"amiSelectorTerms":[{"alias":"al2023@v20260801"}]}}`)
	s.until(enough+patience, "all machines are new", func() (bool, string) {
		claims := s.claims()
		old := slices.DeleteFunc(slices.Clone(claims), func(c claim) bool { return !c.first.Before(began) || !c.gone.IsZero() })
		return len(old) == 0 && s.running() == 10*nodes, fmt.Sprintf("%d old ones are left, %d pods run", len(old), s.running())
	})
	took := time.Since(began)
	came, longest, homeless := w.history.waits(s.name, began)
	t.Logf("%d nodes were rolled in %s, %d at once; %d pods moved, and waited %s at most", nodes, took.Round(time.Second), most(s.claims()), came, longest)
	if now := s.image(); now == was {
		t.Errorf("the machines still have image %s", was)
	}
	if n := most(s.claims()); n > 2 {
		t.Errorf("%d machines went at once, with a budget of 2:\n%s", n, lines(s.claims()))
	}
	if homeless > 0 {
		t.Errorf("%d of %d pods that moved had to wait for a machine, up to %s", homeless, came, longest)
	}
	if n := len(s.claims()); n != 2*nodes {
		t.Errorf("%d claims were made, want %d:\n%s", n, 2*nodes, lines(s.claims()))
	}
	s.stays(settings.Settle+2*time.Second, "the new machines stay", func() (bool, string) { return len(alive(s.claims())) == nodes, lines(s.claims()) })
	s.wantMetric("karve_nodes_replacements_total", float64(nodes), `reason="AMIDrift"`, `result="Done"`)
}

func (s *scene) nodeClassNamed(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(cloud + "/v1")
	u.SetKind(cloudKind)
	u.SetName(name)
	return u
}

// image returns the image of all machines of the scene that are not being deleted; "" if they differ.
func (s *scene) image() string {
	s.t.Helper()
	var list karpv1.NodeClaimList
	s.list(&list)
	image := ""
	for _, c := range list.Items {
		if c.Labels[karpv1.NodePoolLabelKey] != s.name || !c.DeletionTimestamp.IsZero() {
			continue
		}
		if image != "" && image != c.Status.ImageID {
			return ""
		}
		image = c.Status.ImageID
	}
	return image
}

// TestInterruptedMachineIsReplacedWhileItsPodsRun sends a spot interruption notice. Karve must launch the replacement before any pod is pending, and only
// once.
func TestInterruptedMachineIsReplacedWhileItsPodsRun(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	w := ownWorld(t, cluster.Config{}, karve.Options{Alone: true})
	s := w.scene(t, "interrupted")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{requirements: map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot}})
	s.deploy("inference", 6)
	s.untilRunning(6)
	first := s.claims()
	id := s.instanceOf(s.nodes(s.name)[0])
	began := time.Now()
	if err := w.AWS().Interrupt(id, aws.SpotInterruption); err != nil {
		t.Fatal(err)
	}
	s.until(enough, "the machine is gone and all pods run", func() (bool, string) {
		return !s.claims()[0].gone.IsZero() && s.running() == 6 && len(s.pods()) == 6, lines(s.claims())
	})
	// Karpenter does not launch an interrupted offering for a while, so the first claim may fail.
	all, left := s.claims(), alive(s.claims())
	if len(first) != 1 || len(left) != 1 || len(all) > 3 {
		t.Fatalf("want one machine and its replacement:\n%s", lines(all))
	}
	came, longest, _ := w.history.waits(s.name, began)
	t.Logf("The new machine was asked for %s after the old one was given notice; %d pods moved and waited %s at most", left[0].first.Sub(all[0].deleting), came, longest)
	if _, firstGone := w.history.podsOf(s.name); !left[0].first.Before(firstGone) {
		t.Errorf("the new machine was requested at %s, after pods had gone at %s", left[0].first.Format(clock), firstGone.Format(clock))
	}
}

// instanceOf returns the ID of the node's instance at the local AWS.
func (s *scene) instanceOf(n corev1.Node) string {
	s.t.Helper()
	for _, i := range s.AWS().Instances() {
		if i.ProviderID() == n.Spec.ProviderID {
			return i.ID
		}
	}
	s.t.Fatalf("node %s has no instance", n.Name)
	return ""
}
