package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestUpgradeToThisReleaseAndBack upgrades the CRDs and the controller of an earlier release while pods run and others wait for machines, and then goes back.
// No pod may move, no machine may be drained, and nothing may be launched twice. tools/old-release builds the earlier release.
func TestUpgradeToThisReleaseAndBack(t *testing.T) {
	cluster.Long(t)
	release := os.Getenv("KARVE_OLD_RELEASE")
	if release == "" {
		t.Skip("KARVE_OLD_RELEASE names no earlier release")
	}
	cluster.Require(t)
	t.Parallel()
	old := karve.Options{Alone: true, Release: release, BatchIdle: 200 * time.Millisecond}
	w := ownWorld(t, cluster.Config{CRDs: []string{filepath.Join(release, "crds")}, NodeDelay: 5 * time.Second}, old)
	s := w.scene(t, "upgrade")
	s.class("1m")
	s.pool(poolOptions{requirements: map[string]string{corev1.LabelInstanceTypeStable: cheapest}})
	d := s.deploy("inference", 15)
	s.untilRunning(15)

	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	crds := filepath.Join(root, "pkg", "apis", "crds")
	controllers := []struct {
		what, crds string
		options    karve.Options
	}{
		{"upgrade", crds, karve.Options{Alone: true, Replica: "-new", BatchIdle: old.BatchIdle}},
		{"rollback", "", karve.Options{Alone: true, Release: release, Replica: "-back", BatchIdle: old.BatchIdle}},
		{"upgrade again", crds, karve.Options{Alone: true, Replica: "-again", BatchIdle: old.BatchIdle}},
	}
	want := 15
	for _, c := range controllers {
		// Machines for ten more pods are on their way when the controller goes.
		before, launched := s.places(), len(s.claims())
		want += 10
		s.scale(d, int32(want)) //nolint:gosec // small
		s.until(enough, c.what+": a machine is on its way", func() (bool, string) { return len(s.claims()) > launched, lines(s.claims()) })
		if err := w.StopComponent(w.karve.Name); err != nil {
			t.Fatal(err)
		}
		if c.crds != "" { // A rollback leaves the CRDs as they are: docs/upgrading.md.
			if err := w.ApplyCRDs(t.Context(), c.crds); err != nil {
				t.Fatal(err)
			}
		}
		if w.karve, err = karve.Start(t.Context(), w.Cluster, c.options); err != nil {
			t.Fatal(err)
		}
		s.untilRunning(want)
		s.stays(15*time.Second, c.what+": nothing is launched or given back", func() (bool, string) {
			claims := s.claims()
			return len(claims) == (want+9)/10 && len(alive(claims)) == len(claims), lines(claims)
		})
		after := s.places()
		for _, pod := range slices.Sorted(maps.Keys(before)) {
			if after[pod] != before[pod] {
				t.Errorf("%s: pod %s was on node %s, and is on %q", c.what, pod, before[pod], after[pod])
			}
		}
		if leaving := s.leavers(); len(leaving) > 0 {
			t.Errorf("%s: nodes were drained: %v", c.what, leaving)
		}
	}
	s.scale(d, 0)
	s.untilGone(s.name)
}

// places returns the nodes of the bound pods.
func (s *scene) places() map[string]string {
	places := map[string]string{}
	for _, pod := range s.pods() {
		if pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning {
			places[pod.Name] = pod.Spec.NodeName
		}
	}
	return places
}

// leavers returns the pool's nodes that Karve has ever tainted in order to remove them.
func (s *scene) leavers() (names []string) {
	for _, node := range s.nodes(s.name) {
		if s.history.wasLeaving(node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}
