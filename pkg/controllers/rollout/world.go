package rollout

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot/facts"
)

// world is what was read from the cluster, and the input of the decision.
type world struct {
	cluster *facts.Cluster
	// class is nil if the rollout is blocked before it is read.
	class *nodeClass
	// classes is the kind of the node class. It is empty if the cluster has no such kind.
	classes schema.GroupVersionKind
	// canaries has the names of the existing objects of the rollout's canaries.
	canaries objects
	seen     rollout.Seen
}

// objects are names by kind.
type objects struct {
	classes, claims, pods []string
}
