// Package webhook is the admission webhook that gives pods of gpushare and HAMi slots of device memory where the API server does not serve
// MutatingAdmissionPolicies. Its answer for a pod is that of the chart's policies.
package webhook

import (
	"context"
	stdjson "encoding/json"
	"fmt"
	"strconv"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/json"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/memoryalias"
)

// Handler changes pods. What it cannot read it lets through unchanged, as if it were away: the API server decides about such pods.
type Handler struct {
	Options Options
	// Classes reads GPUNodeClasses from a cache.
	Classes client.Reader
}

// New returns the webhook. If it panics the connection ends, and the API server ignores the webhook for this pod: an answer would refuse the pod.
func New(h *Handler) *admission.Webhook {
	return (&admission.Webhook{Handler: h}).WithRecoverPanic(false)
}

// Handle returns the changes to a new pod, or why no slot can serve it.
func (h *Handler) Handle(ctx context.Context, req admission.Request) admission.Response {
	if req.Operation != admissionv1.Create || req.Resource.Group != "" || req.Resource.Resource != "pods" || req.SubResource != "" {
		return admission.Allowed("")
	}
	old, err := read(req.Object.Raw)
	if err != nil {
		log.FromContext(ctx).V(1).Info("A pod was not read", "error", err.Error())
		return admission.Allowed("")
	}
	var class v1alpha1.GPUNodeClass
	if err := h.Classes.Get(ctx, client.ObjectKey{Name: h.Options.GPUNodeClass}, &class); err != nil {
		if !apierrors.IsNotFound(err) {
			log.FromContext(ctx).Error(err, "A GPUNodeClass was not read", "gpuNodeClass", h.Options.GPUNodeClass)
		}
		return admission.Allowed("")
	}
	policy, _ := memoryalias.For(&class)
	policy.MiB, policy.HAMiGPUMemoryMiB, policy.TaintKey = h.Options.MiB, h.Options.HAMiGPUMemoryMiB, h.Options.TaintKey
	changed := *old
	if refused := policy.Apply(&changed); refused != "" {
		return admission.Denied(refused)
	}
	return admission.Patched("", patch(old, &changed)...)
}

// patch returns the differences in the resources of containers and the tolerations. Everything else stays as the API server sent it, also what this version does
// not know.
func patch(old, changed *corev1.PodSpec) []jsonpatch.Operation {
	var ops []jsonpatch.Operation
	for i := range changed.InitContainers {
		ops = append(ops, resources("/spec/initContainers/"+strconv.Itoa(i), &old.InitContainers[i].Resources, &changed.InitContainers[i].Resources)...)
	}
	for i := range changed.Containers {
		ops = append(ops, resources("/spec/containers/"+strconv.Itoa(i), &old.Containers[i].Resources, &changed.Containers[i].Resources)...)
	}
	added := changed.Tolerations[len(old.Tolerations):]
	switch {
	case len(added) > 0 && len(old.Tolerations) == 0:
		ops = append(ops, jsonpatch.NewOperation("add", "/spec/tolerations", added))
	default:
		for _, t := range added {
			ops = append(ops, jsonpatch.NewOperation("add", "/spec/tolerations/-", t))
		}
	}
	return ops
}

func resources(container string, old, changed *corev1.ResourceRequirements) []jsonpatch.Operation {
	return append(patchList(container+"/resources/limits", old.Limits, changed.Limits), patchList(container+"/resources/requests", old.Requests, changed.Requests)...)
}

var escape = strings.NewReplacer("~", "~0", "/", "~1")

func patchList(path string, old, changed corev1.ResourceList) []jsonpatch.Operation {
	var ops []jsonpatch.Operation
	for name := range old {
		if _, stays := changed[name]; !stays {
			ops = append(ops, jsonpatch.NewOperation("remove", path+"/"+escape.Replace(string(name)), nil))
		}
	}
	for name, q := range changed {
		if was, ok := old[name]; ok && amount.Equal(was, q) {
			continue
		}
		if old == nil { // Only the slot is added.
			ops = append(ops, jsonpatch.NewOperation("add", path, map[string]string{}))
		}
		ops = append(ops, jsonpatch.NewOperation("add", path+"/"+escape.Replace(string(name)), amount.Text(q)))
	}
	return ops
}

// sent is what the webhook reads of a pod. Amounts are text, because anybody in the cluster can send a request, and it takes hours to parse some quantities.
type sent struct {
	Spec struct {
		InitContainers []sentContainer `json:"initContainers"`
		Containers     []sentContainer `json:"containers"`
		Tolerations    []struct{}      `json:"tolerations"`
	} `json:"spec"`
}

type sentContainer struct {
	Name      string `json:"name"`
	Resources struct {
		Limits   map[corev1.ResourceName]stdjson.RawMessage `json:"limits"`
		Requests map[corev1.ResourceName]stdjson.RawMessage `json:"requests"`
	} `json:"resources"`
}

// read returns the containers of a pod with the resources that a slot can replace, and its tolerations without their fields.
func read(raw []byte) (*corev1.PodSpec, error) {
	var pod sent
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &pod); err != nil {
		return nil, err
	}
	spec := &corev1.PodSpec{Tolerations: make([]corev1.Toleration, len(pod.Spec.Tolerations))}
	var err error
	if spec.InitContainers, err = containers(pod.Spec.InitContainers); err != nil {
		return nil, err
	}
	spec.Containers, err = containers(pod.Spec.Containers)
	return spec, err
}

func containers(sent []sentContainer) ([]corev1.Container, error) {
	all := make([]corev1.Container, len(sent))
	for i, c := range sent {
		all[i].Name = c.Name
		var err error
		if all[i].Resources.Limits, err = readAmounts(c.Resources.Limits); err != nil {
			return nil, fmt.Errorf("the limits of container %s: %w", c.Name, err)
		}
		if all[i].Resources.Requests, err = readAmounts(c.Resources.Requests); err != nil {
			return nil, fmt.Errorf("the requests of container %s: %w", c.Name, err)
		}
	}
	return all, nil
}

func readAmounts(sent map[corev1.ResourceName]stdjson.RawMessage) (corev1.ResourceList, error) {
	if sent == nil {
		return nil, nil
	}
	list := corev1.ResourceList{}
	for name, raw := range sent {
		if !memoryalias.Replaces(name) {
			continue
		}
		q, err := amount.Parse(strings.Trim(string(raw), `"`))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list[name] = q
	}
	return list, nil
}
