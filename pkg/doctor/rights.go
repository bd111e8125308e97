package doctor

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"karve.sh/karve/config"
)

// Right is an action that the controller, or a user of kubectl karve, must be allowed.
type Right struct {
	Group, Resource, Verb string
	// Namespace is "" for rights in all namespaces, and Name is "" for rights on all objects.
	Namespace, Name string
}

// String returns the right as in "you may not list pods".
func (r Right) String() string {
	text := r.Verb + " " + r.resource()
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in the namespace " + r.Namespace
	}
	return text
}

func (r Right) resource() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// NeededRights returns the rights that a controller with these flags needs in its namespace. Those of a feature are in a file with the name of its flag.
func NeededRights(flags map[string]string, namespace string) ([]Right, error) {
	namespaces := map[string]string{"karve-system": namespace, "karve-checks": flags["gpu-check-namespace"]}
	files, err := fs.Glob(config.Roles, "rbac/*.yaml")
	if err != nil {
		return nil, err
	}
	var all []Right
	for _, file := range files {
		feature := strings.TrimSuffix(path.Base(file), ".yaml")
		if set := flags[feature]; feature != "role" && (set == "" || set == "false") {
			continue
		}
		rights, err := rightsIn(file, namespaces)
		if err != nil {
			return nil, err
		}
		all = append(all, rights...)
	}
	return all, nil
}

// rightsIn returns the rights in a file of roles, with the namespaces of an installation instead of those in the file.
func rightsIn(name string, namespaces map[string]string) ([]Right, error) {
	text, err := fs.ReadFile(config.Roles, name)
	if err != nil {
		return nil, err
	}
	var all []Right
	for documents := yaml.NewYAMLToJSONDecoder(bytes.NewReader(text)); ; {
		var role rbacv1.Role
		if err := documents.Decode(&role); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		namespace := role.Namespace
		if here := namespaces[namespace]; here != "" {
			namespace = here
		}
		for _, rule := range role.Rules {
			all = append(all, rightsOf(&rule, namespace)...)
		}
	}
}

func rightsOf(rule *rbacv1.PolicyRule, namespace string) []Right {
	var all []Right
	names := rule.ResourceNames
	if len(names) == 0 {
		names = []string{""}
	}
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				for _, name := range names {
					all = append(all, Right{Group: group, Resource: resource, Verb: verb, Namespace: namespace, Name: name})
				}
			}
		}
	}
	return all
}
