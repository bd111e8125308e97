package nodeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

// Pod holds the fields of a pod that the agent needs.
type Pod struct {
	Metadata struct {
		Namespace   string            `json:"namespace"`
		Name        string            `json:"name"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Containers     []Container `json:"containers"`
		InitContainers []Container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// Container holds the fields of a container that the agent needs.
type Container struct {
	Name      string `json:"name"`
	Resources struct {
		Limits map[string]string `json:"limits"`
	} `json:"resources"`
}

// Pods returns the pods that are bound to the Node.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	var list struct {
		Items []Pod `json:"items"`
	}
	query := url.Values{"fieldSelector": {"spec.nodeName=" + c.Name}}
	if err := c.do(ctx, http.MethodGet, "/api/v1/pods?"+query.Encode(), nil, &list); err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", c.Name, err)
	}
	return list.Items, nil
}
