package claims

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// Limits for the claims of one pod. Anyone who may create pods may create claims. The API server allows 32 requests of a claim with 32 selectors of
// 10 KiB each, and any number of claims of a pod. Compiling 10 KiB of CEL can take 300 ms, and 1 KiB 6 ms.
const (
	// maxClaims is the number of claims of a pod.
	maxClaims = 32
	// maxRequests is the number of requests in the claims of a pod, with their alternatives.
	maxRequests = 64
	// maxConstraints is the number of constraints in a claim, and maxConstrained that of the requests that they name.
	maxConstraints, maxConstrained = 16, 128
	// maxSelectors is the number of selectors in the claims of a pod, with those of their DeviceClasses. They count for each request.
	maxSelectors = 64
	// selectorBytes is the length of a selector, and selectorsBytes that of all selectors of a pod.
	selectorBytes, selectorsBytes = 1 << 10, 4 << 10
	// maxConfigs is the number of configs for the driver in the claims of a pod, and configBytes the length of each, and of those of DeviceClasses.
	maxConfigs, configBytes = 8, 1 << 10
	// messageBytes is the length of what a message repeats of a claim.
	messageBytes = 200
)

// budget counts what the claims of a pod use of their limits.
type budget struct{ requests, selectors, bytes, configs int }

// requestsIn returns the number of requests in a claim, with their alternatives.
func requestsIn(spec *resourcev1.ResourceClaimSpec) int {
	n := len(spec.Devices.Requests)
	for i := range spec.Devices.Requests {
		n += len(spec.Devices.Requests[i].FirstAvailable)
	}
	return n
}

// tooManyClaims returns why Karve does not plan for the number of claims of a pod, or "" if it does.
func tooManyClaims(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) > maxClaims {
		return fmt.Sprintf("has more than %d claims, for which Karve does not plan: use several requests of one claim", maxClaims)
	}
	return ""
}

// countClaim counts the requests of a claim. name is its name for messages. It returns why Karve does not plan for it, or "" if it does.
func (b *budget) countClaim(name string, spec *resourcev1.ResourceClaimSpec) string {
	named := 0
	for i := range spec.Devices.Constraints {
		named += len(spec.Devices.Constraints[i].Requests)
	}
	b.requests += requestsIn(spec)
	switch {
	case b.requests > maxRequests:
		return fmt.Sprintf("%s brings the requests of the pod above %d, and Karve does not plan for more: use requests with a count", name, maxRequests)
	case len(spec.Devices.Constraints) > maxConstraints || named > maxConstrained:
		return fmt.Sprintf("%s has more than %d constraints, or constraints for more than %d requests in total, for which Karve does not plan: remove some", name, maxConstraints, maxConstrained)
	}
	return ""
}

// countSelector counts a selector, before anything reads its text. from is the object that has it. It returns why Karve does not evaluate it, or "" if it does.
func (b *budget) countSelector(from, expression string) string {
	b.selectors++
	b.bytes += len(expression)
	switch {
	case len(expression) > selectorBytes:
		return fmt.Sprintf("%s has a selector of more than %d bytes, which Karve does not evaluate: shorten it", from, selectorBytes)
	case b.selectors > maxSelectors:
		return fmt.Sprintf("%s brings the selectors of the pod above %d, counted for each request, and Karve does not evaluate more: combine them with &&, or use a request with a count", from, maxSelectors)
	case b.bytes > selectorsBytes:
		return fmt.Sprintf("%s brings the selectors of the pod above %d bytes, counted for each request, and Karve does not evaluate more: shorten them, or use a request with a count", from, selectorsBytes)
	}
	return ""
}

// Work returns the work of evaluating a selector for a plan, as the number of terms of pod affinity that take about as long.
func Work(selector string) int { return 4 + len(selector)/32 }

// shortText shortens a text for messages.
func shortText(text string) string {
	if len(text) > messageBytes {
		return text[:messageBytes] + "..."
	}
	return text
}
