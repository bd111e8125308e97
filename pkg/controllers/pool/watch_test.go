package pool

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

func TestNodeHeartbeatsTriggerNoReconcile(t *testing.T) {
	before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", ResourceVersion: "1"}}
	before.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	heartbeat := before.DeepCopy()
	heartbeat.ResourceVersion, heartbeat.Status.Conditions[0].LastHeartbeatTime = "2", metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if noHeartbeat.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: heartbeat}) {
		t.Error("a heartbeat triggers a reconciliation")
	}
	notReady := heartbeat.DeepCopy()
	notReady.Status.Conditions[0].Status = corev1.ConditionFalse
	if !noHeartbeat.Update(event.UpdateEvent{ObjectOld: before, ObjectNew: notReady}) {
		t.Error("a node that is not ready triggers nothing")
	}
	if !noHeartbeat.Create(event.CreateEvent{Object: before}) || !noHeartbeat.Delete(event.DeleteEvent{Object: before}) {
		t.Error("a node that comes or goes triggers nothing")
	}
}
