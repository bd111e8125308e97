package records

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/snapshot/facts"
)

// inUse returns why a waiting pod cannot use a PersistentVolumeClaim now, or "" if it can.
func (s *Storage) inUse(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod, named string) string {
	if !facts.IsExclusive(claim) || pod.Spec.NodeName != "" {
		return ""
	}
	user := s.users()[claim.Namespace+"/"+claim.Name]
	switch {
	case user == nil || facts.PodName(user) == facts.PodName(pod):
		return ""
	case user.Spec.NodeName != "":
		return fmt.Sprintf("%s has the access mode ReadWriteOncePod and pod %s uses it: wait until that pod is gone, or use ReadWriteOnce", named, facts.PodName(user))
	}
	return fmt.Sprintf("%s has the access mode ReadWriteOncePod and pod %s, which waits too, uses it first: wait until that pod is gone, or use ReadWriteOnce", named, facts.PodName(user))
}
