package manifests

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot"
)

// The functions below reject what the API server rejects, as far as plans depend on it.

// validGPUNodeClass checks what the CRD cannot: the layouts of GPUs, and the sizes of slots.
func validGPUNodeClass(spec *v1alpha1.GPUNodeClassSpec) error {
	return errors.Join(spec.Sharing.LayoutsError(), spec.Sharing.SizesError())
}

// validPod checks the containers, resources and overhead of a pod.
func validPod(spec *corev1.PodSpec) error {
	if len(spec.Containers) == 0 {
		return errors.New("it has no containers")
	}
	errs := []error{validAmounts("overhead", spec.Overhead)}
	for i, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		name := c.Name
		if name == "" {
			name = fmt.Sprintf("%d", i+1)
		}
		errs = append(errs, validRequests("container "+name, c.Resources))
	}
	if spec.Resources != nil {
		errs = append(errs, validRequests("the pod's resources", *spec.Resources))
	}
	return errors.Join(errs...)
}

func validRequests(of string, r corev1.ResourceRequirements) error {
	if err := errors.Join(validAmounts(of+": requests", r.Requests), validAmounts(of+": limits", r.Limits)); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r.Requests)) {
		request, limit := r.Requests[name], r.Limits[name]
		_, limited := r.Limits[name]
		switch {
		case snapshot.IsExtended(name) && !limited:
			errs = append(errs, fmt.Errorf("%s: %s has a request but no limit: write it as a limit", of, name))
		case snapshot.IsExtended(name) && !amount.Equal(request, limit):
			errs = append(errs, fmt.Errorf("%s: the request for %s is %s and its limit %s: they must be the same", of, name, amount.Text(request), amount.Text(limit)))
		case limited && amount.Cmp(request, limit) > 0:
			errs = append(errs, fmt.Errorf("%s: the request for %s, %s, is above its limit, %s", of, name, amount.Text(request), amount.Text(limit)))
		}
	}
	return errors.Join(errs...)
}

func validAmounts(of string, list corev1.ResourceList) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		switch {
		case q.Sign() < 0:
			errs = append(errs, fmt.Errorf("%s: %s of %s is negative", of, amount.Text(q), name))
		case amount.Value(q) > amount.Max:
			errs = append(errs, fmt.Errorf("%s: %s of %s is implausibly large", of, amount.Text(q), name))
		case snapshot.IsExtended(name) && !amount.Whole(q):
			errs = append(errs, fmt.Errorf("%s: %s of %s is not a whole number", of, amount.Text(q), name))
		}
	}
	return errors.Join(errs...)
}

// validSelector returns an error if the selector of a workload does not match the labels of its pods.
func validSelector(selector *metav1.LabelSelector, podLabels map[string]string) error {
	if selector == nil {
		return errors.New("spec.selector is missing")
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return fmt.Errorf("spec.selector: %w", err)
	}
	if s.Empty() || !s.Matches(labels.Set(podLabels)) {
		return errors.New("spec.selector does not match the labels of spec.template")
	}
	return nil
}

// validRuntimeClass returns an error for an overhead that is no amount.
func validRuntimeClass(class *nodev1.RuntimeClass) error {
	if class.Overhead == nil {
		return nil
	}
	return validAmounts("overhead.podFixed", class.Overhead.PodFixed)
}

func validLimits(object *corev1.LimitRange) error {
	var errs []error
	for i, item := range object.Spec.Limits {
		for _, of := range []struct {
			field string
			list  corev1.ResourceList
		}{{"max", item.Max}, {"min", item.Min}, {"default", item.Default}, {"defaultRequest", item.DefaultRequest}, {"maxLimitRequestRatio", item.MaxLimitRequestRatio}} {
			errs = append(errs, validAmounts(fmt.Sprintf("spec.limits[%d].%s", i, of.field), of.list))
		}
	}
	return errors.Join(errs...)
}
