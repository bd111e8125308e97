package nodeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// ResourceVersionV1 is the API version of the DRA objects in this file. Kubernetes has it since 1.34.
const ResourceVersionV1 = "resource.k8s.io/v1"

// ResourceSlice is a ResourceSlice, with the fields that the agent writes.
type ResourceSlice struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Metadata   SliceMetadata `json:"metadata"`
	Spec       SliceSpec     `json:"spec"`
}

// SliceMetadata is the metadata of a ResourceSlice.
type SliceMetadata struct {
	Name            string           `json:"name"`
	ResourceVersion string           `json:"resourceVersion,omitempty"`
	OwnerReferences []OwnerReference `json:"ownerReferences,omitempty"`
}

// OwnerReference refers to the Node with which a ResourceSlice is deleted.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// SliceSpec is the spec of a ResourceSlice.
type SliceSpec struct {
	Driver   string        `json:"driver"`
	NodeName string        `json:"nodeName"`
	Pool     SlicePool     `json:"pool"`
	Devices  []SliceDevice `json:"devices"`
}

// SlicePool is the pool of a ResourceSlice.
type SlicePool struct {
	Name               string `json:"name"`
	Generation         int64  `json:"generation"`
	ResourceSliceCount int64  `json:"resourceSliceCount"`
}

// SliceDevice is a device of a ResourceSlice.
type SliceDevice struct {
	Name                     string                    `json:"name"`
	Attributes               map[string]SliceAttribute `json:"attributes,omitempty"`
	Capacity                 map[string]SliceCapacity  `json:"capacity,omitempty"`
	Taints                   []SliceTaint              `json:"taints,omitempty"`
	AllowMultipleAllocations bool                      `json:"allowMultipleAllocations,omitempty"`
}

// SliceAttribute is an attribute of a device, with one field that is not nil.
type SliceAttribute struct {
	Int     *int64  `json:"int,omitempty"`
	String  *string `json:"string,omitempty"`
	Version *string `json:"version,omitempty"`
}

// SliceCapacity is a capacity of a device.
type SliceCapacity struct {
	Value         string         `json:"value"`
	RequestPolicy *RequestPolicy `json:"requestPolicy,omitempty"`
}

// RequestPolicy defines how much of a capacity requests consume.
type RequestPolicy struct {
	Default    string      `json:"default"`
	ValidRange *ValidRange `json:"validRange,omitempty"`
}

// ValidRange limits what a request may consume.
type ValidRange struct {
	Min  string `json:"min"`
	Step string `json:"step,omitempty"`
}

// SliceTaint is a taint of a device. The API server adds the time.
type SliceTaint struct {
	Key       string `json:"key"`
	Value     string `json:"value,omitempty"`
	Effect    string `json:"effect"`
	TimeAdded string `json:"timeAdded,omitempty"`
}

// ResourceClaim is a ResourceClaim, with the fields that the agent reads.
type ResourceClaim struct {
	Metadata Metadata `json:"metadata"`
	Status   struct {
		Allocation *struct {
			Devices struct {
				Results []AllocatedDevice `json:"results"`
			} `json:"devices"`
		} `json:"allocation"`
	} `json:"status"`
}

// AllocatedDevice is a device that is allocated to a claim.
type AllocatedDevice struct {
	Request string `json:"request"`
	Driver  string `json:"driver"`
	Pool    string `json:"pool"`
	Device  string `json:"device"`
	ShareID string `json:"shareID"`
	// ConsumedCapacity are the amounts that the claim consumes, as quantities.
	ConsumedCapacity map[string]string `json:"consumedCapacity"`
}

const slicesPath = "/apis/" + ResourceVersionV1 + "/resourceslices"

// Slices returns the ResourceSlices of a DRA driver for the Node.
func (c *Client) Slices(ctx context.Context, driver string) ([]ResourceSlice, error) {
	var list struct {
		Items []ResourceSlice `json:"items"`
	}
	query := url.Values{"fieldSelector": {"spec.driver=" + driver + ",spec.nodeName=" + c.Name}}
	if err := c.do(ctx, http.MethodGet, slicesPath+"?"+query.Encode(), nil, &list); err != nil {
		return nil, fmt.Errorf("listing ResourceSlices of node %s: %w", c.Name, err)
	}
	return list.Items, nil
}

// WriteSlice creates a ResourceSlice, or updates it if it has a resource version. It returns the slice that the API server stored, which lacks fields
// whose feature gates are off.
func (c *Client) WriteSlice(ctx context.Context, s ResourceSlice) (ResourceSlice, error) {
	s.APIVersion, s.Kind = ResourceVersionV1, "ResourceSlice"
	method, path := http.MethodPost, slicesPath
	if s.Metadata.ResourceVersion != "" {
		method, path = http.MethodPut, slicesPath+"/"+url.PathEscape(s.Metadata.Name)
	}
	var now ResourceSlice
	if err := c.do(ctx, method, path, s, &now); err != nil {
		return ResourceSlice{}, fmt.Errorf("writing ResourceSlice %s: %w", s.Metadata.Name, err)
	}
	return now, nil
}

// DeleteSlice deletes a ResourceSlice. It returns no error if there is none.
func (c *Client) DeleteSlice(ctx context.Context, name string) error {
	err := c.do(ctx, http.MethodDelete, slicesPath+"/"+url.PathEscape(name), nil, nil)
	if err != nil && !isStatus(err, http.StatusNotFound) {
		return fmt.Errorf("deleting ResourceSlice %s: %w", name, err)
	}
	return nil
}

// Claim returns a ResourceClaim.
func (c *Client) Claim(ctx context.Context, namespace, name string) (ResourceClaim, error) {
	var claim ResourceClaim
	path := "/apis/" + ResourceVersionV1 + "/namespaces/" + url.PathEscape(namespace) + "/resourceclaims/" + url.PathEscape(name)
	if err := c.do(ctx, http.MethodGet, path, nil, &claim); err != nil {
		return ResourceClaim{}, fmt.Errorf("reading ResourceClaim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}

// IsNotFound reports whether an error says that an object does not exist.
func IsNotFound(err error) bool { return isStatus(err, http.StatusNotFound) }
