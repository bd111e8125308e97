package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Call is a request of a service account to the API server, regardless of the object's name.
type Call struct {
	// User is the name of the service account at the API server.
	User, Verb, Group string
	// Resource includes the subresource, as in a role: pods/status.
	Resource string
	// Namespace is empty for cluster-scoped objects, and for lists and watches of all namespaces.
	Namespace string
}

func (c Call) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s.%s %s", c.User, c.Verb, c.Resource, c.Group, c.Namespace))
}

// Calls are the requests of service accounts.
type Calls struct {
	// Allowed are the calls that RBAC allowed.
	Allowed []Call
	// Denied are the calls that RBAC never allowed. A call that was denied first and allowed later was made before the API server had read its role.
	Denied []Call
}

// CallsVariable is the environment variable for the folder into which each cluster writes its Calls when it stops.
const CallsVariable = "KARVE_CALLS"

const (
	auditLog    = "audit.log"
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts"]
- level: None
`
)

func (c *Cluster) auditPolicy() string { return filepath.Join(c.dir, "audit-policy.yaml") }

// Calls returns the requests of service accounts so far.
func (c *Cluster) Calls() (Calls, error) {
	files, err := filepath.Glob(filepath.Join(c.dir, "audit*.log")) // The API server rotates large logs.
	if err != nil {
		return Calls{}, err
	}
	allowed, denied := sets.New[Call](), sets.New[Call]()
	for _, file := range files {
		if err := readAudit(file, allowed, denied); err != nil {
			return Calls{}, fmt.Errorf("reading %s: %w", file, err)
		}
	}
	return Calls{Allowed: allowed.UnsortedList(), Denied: denied.Difference(allowed).UnsortedList()}, nil
}

// event is an event of the audit log.
type event struct {
	Verb        string
	User        struct{ Username string }
	ObjectRef   *struct{ Resource, Subresource, Namespace, APIGroup string }
	Annotations map[string]string
}

func readAudit(file string, allowed, denied sets.Set[Call]) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // It was only read.
	for decoder := json.NewDecoder(f); ; {
		var e event
		switch err := decoder.Decode(&e); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // The API server is still writing, or was killed while it wrote.
			return nil
		case err != nil:
			return err
		}
		if e.ObjectRef == nil {
			continue // Not about an object, but about the version or discovery.
		}
		call := Call{User: e.User.Username, Verb: e.Verb, Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Namespace: e.ObjectRef.Namespace}
		if e.ObjectRef.Subresource != "" {
			call.Resource += "/" + e.ObjectRef.Subresource
		}
		switch e.Annotations["authorization.k8s.io/decision"] {
		case "allow":
			allowed.Insert(call)
		case "forbid":
			denied.Insert(call)
		}
	}
}

// recordCalls writes the cluster's calls to the folder of CallsVariable, if it is set.
func (c *Cluster) recordCalls() error {
	folder := os.Getenv(CallsVariable)
	if folder == "" {
		return nil
	}
	calls, err := c.Calls()
	if err != nil {
		return err
	}
	text, err := json.Marshal(calls)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return fmt.Errorf("recording calls: %w", err)
	}
	f, err := os.CreateTemp(folder, "*.json")
	if err != nil {
		return fmt.Errorf("recording calls: %w", err)
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}
