package snapshot

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
)

// isProbablyMeant reports whether the user probably means the pool: it serves the resource, and the pod tolerates its taints.
func (p *Pool) isProbablyMeant(demand *records.Demand, gpu corev1.ResourceName) bool {
	return p.Class != nil && p.Serves(gpu) && demand.Untolerated(p.NodePool.Spec.Template.Spec.Taints, facts.KeepsPodsAway) == nil
}

// refusesReplicas reports whether the pool's machines refuse pods with the demand because of the number of their replicas.
func (p *Pool) refusesReplicas(demand *records.Demand, gpu corev1.ResourceName) bool {
	return p.RefusesReplicas(facts.GPURequest{Replicas: facts.ReplicasIn(demand.Requests, gpu), MostInOne: facts.MostInOne(demand.Pod, gpu)})
}

// RefusesReplicas reports whether the pool's machines refuse a request because of the number of its replicas.
func (p *Pool) RefusesReplicas(asks facts.GPURequest) bool {
	sharing := &p.Class.Spec.Sharing
	return sharing.RefusesAboveOne() && sharing.RefusedReplicas(asks.MostInOne, asks.Replicas) > 1
}

// OtherResourceError reports that a pool offers another GPU resource than a pod requests.
type OtherResourceError struct {
	Offers []corev1.ResourceName
	Wants  corev1.ResourceName
}

func (e OtherResourceError) Error() string { return "it offers " + joinNames(e.Offers, ", ") }

func joinNames(names []corev1.ResourceName, separator string) string {
	var text []string
	for _, name := range names {
		text = append(text, string(name))
	}
	return strings.Join(text, separator)
}

// NotAdmittedError reports why none of a pool's offerings admits a pod.
type NotAdmittedError struct {
	// Causes has one error for each distinct cause, such as an [UntoleratedTaintError], sorted by text.
	Causes []error
}

func (e *NotAdmittedError) Error() string {
	texts := make([]string, len(e.Causes))
	for i, cause := range e.Causes {
		texts[i] = cause.Error()
	}
	return strings.Join(texts, ", ")
}

// admittingOfferings returns the indices of the pool's offerings that admit the pod, or an error with the reason why there is none.
func (p *Pool) admittingOfferings(demand *records.Demand, gpu corev1.ResourceName) ([]int, error) {
	if p.Class == nil {
		return nil, fmt.Errorf("its %s does not exist", v1alpha1.Kind)
	}
	if !p.Serves(gpu) {
		return nil, OtherResourceError{Offers: p.Resources(), Wants: gpu}
	}
	var admitting []int
	why := map[string]error{}
	for i := range p.Offerings {
		if !p.Offerings[i].exposes(gpu, demand.Requests) {
			continue
		}
		if err := demand.Refusal(p.NodePool.Spec.Template.Spec.Taints, "", p.Offerings[i].nodeLabels()); err != nil {
			why[err.Error()] = err
			continue
		}
		admitting = append(admitting, i)
	}
	switch {
	case len(admitting) > 0:
		return admitting, nil
	case len(p.Offerings) == 0 && len(p.Problems) > 0:
		return nil, errors.New(p.Problems[0].Message) // The problem is also why its machines are unknown.
	case len(why) == 0:
		return nil, errors.New("no instance type meets its requirements")
	default:
		refused := &NotAdmittedError{}
		for _, text := range slices.Sorted(maps.Keys(why)) {
			refused.Causes = append(refused.Causes, why[text])
		}
		return nil, refused
	}
}
