package pool

import (
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/fleet/headroom"
	"karve.sh/karve/pkg/snapshot"
)

func headroomWarm(pool *snapshot.Pool, r headroom.Pool) status.Condition {
	free := fmt.Sprintf("%d of %d replicas are free", r.Free, r.Wanted)
	if len(pool.Class.Spec.Headroom) > 0 {
		share, _ := pool.ReplicaShare()
		free += fmt.Sprintf(", those of spec.headroom each with %dm of CPU and %dMi of memory", share.MilliCPU, share.MemoryBytes>>20)
	}
	say := func(s metav1.ConditionStatus, reason, message string) status.Condition {
		return condition(v1alpha1.ConditionHeadroomReady, s, reason, message)
	}
	switch {
	case r.Refused != nil:
		return say(metav1.ConditionFalse, string(r.Refused.Reason), fmt.Sprintf("%s; %d come; for the rest: %s", free, r.Coming, r.Refused.Message))
	case r.Coming > 0:
		return say(metav1.ConditionUnknown, "HeadroomComing", fmt.Sprintf("%s; %d come with machines that are on their way", free, r.Coming))
	}
	return say(metav1.ConditionTrue, "HeadroomFree", free)
}
