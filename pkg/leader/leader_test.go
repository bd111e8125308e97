package leader_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/leader"
)

var now = time.Date(2026, 7, 1, 15, 0, 0, 0, time.UTC)

// lease returns a Lease that a holder renewed a while ago.
func lease(namespace, holder string, ago time.Duration, seconds int32) coordinationv1.Lease {
	renewed := metav1.NewMicroTime(now.Add(-ago))
	return coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leader.Name, CreationTimestamp: metav1.NewTime(now.Add(-72 * time.Hour))},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: &seconds},
	}
}

func TestALeaseTellsWhetherAControllerWorks(t *testing.T) {
	t.Parallel()
	without := lease("x", "", 0, 0)
	without.Spec = coordinationv1.LeaseSpec{}
	for name, c := range map[string]struct {
		lease coordinationv1.Lease
		state leader.State
		since string
	}{
		"renewed":             {lease("x", "a", 2*time.Second, 15), leader.Working, ""},
		"within the margin":   {lease("x", "a", 60*time.Second, 15), leader.Working, ""},
		"beyond the margin":   {lease("x", "a", 61*time.Second, 15), leader.Stopped, "since 14:58 UTC:"},
		"a long duration":     {lease("x", "a", 10*time.Minute, 900), leader.Working, ""},
		"an hour ago":         {lease("x", "a", 58*time.Minute, 15), leader.Stopped, "since 14:02 UTC:"},
		"two days ago":        {lease("x", "a", 48*time.Hour, 15), leader.Stopped, "since 2026-06-29 15:00 UTC:"},
		"released":            {lease("x", "", time.Second, 1), leader.Stopped, "since 14:59 UTC:"},
		"a clock ahead of us": {lease("x", "a", -time.Hour, 15), leader.Working, ""},
		"nothing in it":       {without, leader.Stopped, "since 2026-06-28 15:00 UTC:"},
	} {
		got := leader.Of(&c.lease, now)
		if got.State != c.state || !strings.Contains(got.Message, c.since) || (got.Warning() == "") != (c.state == leader.Working) || (got.LastSeen == nil) != (c.state == leader.Working) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var unknown *leader.Leader
	if unknown.Warning() != "" {
		t.Error("what was not read is no warning")
	}
}

// leases is an API server with Leases.
type leases struct {
	client.Reader
	all       []coordinationv1.Lease
	get, list error
}

func (l leases) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if l.get != nil {
		return l.get
	}
	for i := range l.all {
		if client.ObjectKeyFromObject(&l.all[i]) == key {
			l.all[i].DeepCopyInto(into.(*coordinationv1.Lease))
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, key.Name)
}

func (l leases) List(_ context.Context, into client.ObjectList, _ ...client.ListOption) error {
	into.(*coordinationv1.LeaseList).Items = l.all
	return l.list
}

func TestTheLeaseIsFound(t *testing.T) {
	t.Parallel()
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, leader.Name, nil)
	dead, works := lease("old", "", time.Hour, 15), lease("gpus", "a", time.Second, 15)
	for name, c := range map[string]struct {
		server    leases
		state     leader.State
		namespace string
		message   string
	}{
		"where it should be": {leases{all: []coordinationv1.Lease{lease("karve-system", "a", 0, 15)}, list: forbidden}, leader.Working, "karve-system", ""},
		"in another one":     {leases{all: []coordinationv1.Lease{dead, works}}, leader.Working, "gpus", ""},
		"the latest of two":  {leases{all: []coordinationv1.Lease{works, dead}}, leader.Working, "gpus", ""},
		"of a dead one":      {leases{all: []coordinationv1.Lease{dead}}, leader.Stopped, "old", "since 14:00 UTC"},
		"nowhere":            {leases{}, leader.Missing, "karve-system", "no namespace has a Lease karve"},
		"not here":           {leases{list: forbidden}, leader.Missing, "karve-system", "in the namespace karve-system (--karve-namespace)"},
		"forbidden":          {leases{get: forbidden}, leader.Unknown, "karve-system", "you may not get leases.coordination.k8s.io in the namespace karve-system"},
		"broken":             {leases{get: errors.New("the server is away")}, leader.Unknown, "karve-system", "the server is away"},
	} {
		got := leader.Find(t.Context(), c.server, "karve-system", func() time.Time { return now })
		if got.State != c.state || got.Namespace != c.namespace || !strings.Contains(got.Message, c.message) || (got.Warning() == "") != (c.state == leader.Working || c.state == leader.Unknown) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
