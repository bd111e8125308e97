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

// Call is what a service account asked of the API server, whatever the name of the object.
type Call struct {
	// User is the service account, as the API server names it.
	User, Verb, Group string
	// Resource has the subresource, as in a role: pods/status.
	Resource string
	// Namespace is empty for objects without one, and for lists and watches of all namespaces.
	Namespace string
}

func (c Call) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s.%s %s", c.User, c.Verb, c.Resource, c.Group, c.Namespace))
}

// Calls are the calls of service accounts.
type Calls struct {
	// Allowed are those that their rights allowed.
	Allowed []Call
	// Denied are those that their rights never allowed. One that is allowed later was made before the API server had taken up its role.
	Denied []Call
}

// CallsVariable names the environment variable of the folder to which each cluster writes its Calls when it stops.
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

// Calls reads what service accounts have asked of the API server until now.
func (c *Cluster) Calls() (Calls, error) {
	files, err := filepath.Glob(filepath.Join(c.dir, "audit*.log")) // The API server begins a new one when one is large.
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
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // The API server writes on, or was killed while it wrote.
			return nil
		case err != nil:
			return err
		}
		if e.ObjectRef == nil {
			continue // Not about an object: the version, or which kinds there are.
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

// recordCalls writes the cluster's calls to the folder of CallsVariable, where there is one.
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
