package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestControllerSurvivesKills has its own cluster because it kills the controller. Its subtests run in order.
func TestControllerSurvivesKills(t *testing.T) {
	cluster.Require(t)
	t.Parallel()
	ended := make(chan error, 1)
	w := ownWorld(t, cluster.Config{OnExit: func(c cluster.Component, err error) {
		if strings.HasPrefix(string(c), string(karve.Component)) {
			ended <- err
		}
	}}, karve.Options{Alone: true, BatchIdle: 500 * time.Millisecond, Settle: 8 * time.Second})
	t.Run("ten kills during a burst launch no extra machine and lose no pod", w.killedWhileItLaunches)
	t.Run("a kill between the taint and the delete leaves no taint", w.killedWhileItGivesBack)
	t.Run("a standby takes over after a kill and after a shutdown", func(t *testing.T) { w.takeOver(t, ended) })
}

// seed returns a random source seeded with KARVE_E2E_SEED, so that a failure can be reproduced.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n, err := strconv.ParseUint(or(os.Getenv("KARVE_E2E_SEED"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("KARVE_E2E_SEED=%d", n)
	return rand.New(rand.NewPCG(n, n))
}

// killedWhileItLaunches creates the pods in ten lots, because otherwise the first controller that runs long enough would launch all machines. Every other
// controller is killed at a random time, the others while they create claims.
func (w *world) killedWhileItLaunches(t *testing.T) {
	const lots, lot = 10, 20
	random := seed(t)
	s := w.scene(t, "crash")
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	d := s.deploy("inference", 0)
	for i := range int32(lots) {
		before := len(s.claims())
		s.scale(d, (i+1)*lot)
		wait := time.Duration(random.IntN(1500)) * time.Millisecond
		if i%2 == 1 {
			s.until(enough, "the controller launches", func() (bool, string) { return len(s.claims()) > before, fmt.Sprint(before) })
			wait = time.Duration(random.IntN(40)) * time.Millisecond
		}
		time.Sleep(wait)
		if err := w.KillComponent(w.karve.Name); err != nil {
			t.Fatal(err)
		}
		t.Logf("Killed after %s more, with %d claims for %d pods", wait, len(s.claims()), len(s.pods()))
		if err := w.StartComponent(t.Context(), w.karve.Name); err != nil {
			t.Fatal(err)
		}
	}
	s.untilRunning(lots * lot)
	s.wantClaims(s.claims(), 20, karpv1.CapacityTypeOnDemand, 10_520_000)
	if early := s.history.openedEarly(s.name); len(early) > 0 {
		t.Errorf("nodes were open to pods before they exposed their replicas: %v", early)
	}
	n := len(s.claims())
	s.stays(3*time.Second, "no more claims", func() (bool, string) { return len(s.claims()) == n, fmt.Sprint(len(s.claims())) })
}

// killedWhileItGivesBack has one machine that may be removed after the controller has restarted, and one that may not.
func (w *world) killedWhileItGivesBack(t *testing.T) {
	goes, remains := w.scene(t, "goes"), w.scene(t, "remains")
	both := []*scene{goes, remains}
	for _, s := range both {
		s.class("2s")
		s.pool(poolOptions{})
		s.pod("only")
	}
	for _, s := range both {
		s.untilRunning(1)
	}
	for _, s := range both {
		s.delete(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: "only"}})
	}
	for _, s := range both {
		s.untilTainted()
	}
	if err := w.KillComponent(w.karve.Name); err != nil {
		t.Fatal(err)
	}
	for _, s := range both {
		if left := alive(s.claims()); len(left) != 1 {
			t.Fatalf("the controller was killed too late to show anything:\n%s", lines(s.claims()))
		}
	}
	node := remains.nodes(remains.name)[0]
	remains.patch(&node, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, karpv1.DoNotDisruptAnnotationKey))
	if err := w.StartComponent(t.Context(), w.karve.Name); err != nil {
		t.Fatal(err)
	}
	goes.untilGone(goes.name)
	remains.untilNotTainted()
	remains.untilEvent("Node", node.Name, "IdleButKept", karpv1.DoNotDisruptAnnotationKey)
	remains.untilNotTainted()
	if left := alive(remains.claims()); len(left) != 1 {
		t.Errorf("the node that must stay is on its way out:\n%s", lines(remains.claims()))
	}
}

func (s *scene) untilTainted() {
	s.t.Helper()
	s.until(enough, "the only node of "+s.name+" carries the taint "+v1alpha1.DisruptingTaintKey, func() (bool, string) {
		nodes := s.nodes(s.name)
		return len(nodes) == 1 && tainted(&nodes[0], v1alpha1.DisruptingTaintKey), fmt.Sprintf("%d nodes", len(nodes))
	})
}

func (s *scene) untilNotTainted() {
	s.t.Helper()
	s.until(enough, "no node of "+s.name+" carries a mark of being given back", func() (bool, string) {
		for _, n := range s.nodes(s.name) {
			if tainted(&n, v1alpha1.DisruptingTaintKey) || n.Annotations[v1alpha1.DisruptingSinceAnnotation] != "" {
				return false, fmt.Sprintf("%s has taints %v, annotations %v", n.Name, n.Spec.Taints, n.Annotations)
			}
		}
		return true, ""
	})
}

// takeOver replaces the controller by two that elect a leader.
func (w *world) takeOver(t *testing.T, ended <-chan error) {
	s := w.scene(t, "elect")
	if err := w.StopComponent(w.karve.Name); err != nil {
		t.Fatal(err)
	}
	var two []*karve.Controller
	for _, replica := range []string{"-a", "-b"} {
		k, err := karve.Start(t.Context(), w.Cluster, karve.Options{Replica: replica, DRA: draMode})
		if err != nil {
			t.Fatal(err)
		}
		two = append(two, k)
	}
	w.karve = two[0]
	s.class(v1alpha1.IdleNever)
	s.pool(poolOptions{})
	d := s.deploy("inference", 10)
	s.untilRunning(10)
	s.wantClaims(s.claims(), 1, karpv1.CapacityTypeOnDemand, 526_000)

	leader, other := two[0], two[1]
	if s.leads(other) {
		leader, other = other, leader
	}
	if !s.leads(leader) || s.leads(other) {
		t.Fatalf("want exactly one of the two to lead")
	}
	began := time.Now()
	s.scale(d, 30)
	if err := w.KillComponent(leader.Name); err != nil {
		t.Fatal(err)
	}
	w.karve = other
	s.untilRunning(30)
	t.Logf("The other controller took over and 20 pods ran %s after the leader was killed", time.Since(began))
	s.wantClaims(s.claims(), 3, karpv1.CapacityTypeOnDemand, 1_578_000)
	if !s.leads(other) {
		t.Error("the other controller does not become the leader")
	}
	s.shutDown(other, ended)
}

func (s *scene) leads(k *karve.Controller) bool {
	s.t.Helper()
	return s.metric(s.t, k, "leader_election_master_status") == 1
}

// shutDown terminates the leader as a rolling update does.
func (s *scene) shutDown(leader *karve.Controller, ended <-chan error) {
	s.t.Helper()
	pid, err := leader.PID()
	if err != nil {
		s.t.Fatal(err)
	}
	began := time.Now()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	select {
	case err := <-ended:
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			s.t.Errorf("it ended with %v; its log:\n%s", err, tail(s.Log(leader.Name), "rror"))
		}
		s.t.Logf("It ended %s after SIGTERM", time.Since(began))
	case <-time.After(25 * time.Second):
		s.t.Fatalf("it did not end within its grace period")
	}
	lease := &coordinationv1.Lease{}
	if err := s.api.Get(s.t.Context(), client.ObjectKey{Namespace: karve.Namespace, Name: "karve"}, lease); err != nil {
		s.t.Fatal(err)
	}
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" {
		s.t.Errorf("the lease is still held by %s", *holder)
	}
}
