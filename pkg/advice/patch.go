package advice

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

type object = map[string]any

func (w *Workload) patchOf(template object) Patch {
	command := fmt.Sprintf("kubectl patch %s %s -n %s --patch-file /dev/stdin", strings.ToLower(w.Kind), w.Name, w.Namespace)
	if len(validation.IsDNS1123Subdomain(w.Name))+len(validation.IsDNS1123Label(w.Namespace)) > 0 {
		return Patch{"", text(template)} // What is no name of Kubernetes does not get into a shell.
	}
	switch w.Kind {
	case "Deployment", "StatefulSet", "ReplicaSet":
		return Patch{command, text(object{"spec": object{"template": template}})}
	case "CronJob":
		return Patch{command, text(object{"spec": object{"jobTemplate": object{"spec": object{"template": template}}}})}
	default: // A pod and a Job do not change, and others have their pod template at some place of their own.
		return Patch{"", text(template)}
	}
}

// patchClass returns a patch of the spec of an object that is not in a namespace. Only merge patches exist for such kinds.
func patchClass(kind, name string, spec object) Patch {
	return Patch{fmt.Sprintf("kubectl patch %s %s --type merge --patch-file /dev/stdin", kind, name), text(object{"spec": spec})}
}

func text(o object) string {
	content, err := yaml.Marshal(o)
	if err != nil {
		panic(err) // It consists of maps, lists, text and numbers.
	}
	return string(content)
}
