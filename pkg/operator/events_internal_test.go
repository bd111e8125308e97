package operator

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
)

// sink keeps what a broadcaster sends to the API server.
type sink struct{ created, patched []string }

func (s *sink) Create(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	s.created = append(s.created, e.Note)
	return e, nil
}

func (s *sink) Update(_ context.Context, e *eventsv1.Event) (*eventsv1.Event, error) { return e, nil }

func (s *sink) Patch(_ context.Context, e *eventsv1.Event, _ []byte) (*eventsv1.Event, error) {
	s.patched = append(s.patched, e.Note)
	return e, nil
}

func TestEventWithAnotherNoteIsRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &sink{}
		broadcaster := events.NewBroadcaster(s)
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			t.Fatal(err)
		}
		r := eventRecorder{broadcaster.NewRecorder(scheme.Scheme, "karve")}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod", UID: "1", ResourceVersion: "7"}}
		for _, note := range []string{"no Ready condition yet", "AMIsReady=False", "AMIsReady=False"} {
			r.Eventf(pod, runtime.Object(nil), corev1.EventTypeWarning, "PoolClosed", "Plan", "NodePool %s: 100%% %s", "\x1bg\npu", note)
			synctest.Wait()
		}
		if want := []string{"NodePool g pu: 100% no Ready condition yet", "NodePool g pu: 100% AMIsReady=False"}; !slices.Equal(s.created, want) {
			t.Errorf("created %q, want %q", s.created, want)
		}
		if want := []string{"NodePool g pu: 100% AMIsReady=False"}; !slices.Equal(s.patched, want) {
			t.Errorf("patched %q, want %q as a series", s.patched, want)
		}
		cancel()
		broadcaster.Shutdown()
		synctest.Wait()
	})
}
