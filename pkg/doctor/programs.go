package doctor

import (
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/karpenter"
)

// DeploymentOf describes a Deployment.
func DeploymentOf(d *appsv1.Deployment) Program {
	p := programOf("Deployment", &d.ObjectMeta, &d.Spec.Template.Spec)
	p.Ready = d.Status.ReadyReplicas
	return p
}

// DaemonSetOf describes a DaemonSet.
func DaemonSetOf(d *appsv1.DaemonSet) Program {
	p := programOf("DaemonSet", &d.ObjectMeta, &d.Spec.Template.Spec)
	p.Ready = d.Status.NumberReady
	return p
}

// programOf describes a workload by its first container.
func programOf(kind string, o *metav1.ObjectMeta, pod *corev1.PodSpec) Program {
	p := Program{Kind: kind, Namespace: o.Namespace, Name: o.Name}
	if len(pod.Containers) == 0 {
		return p
	}
	ctr := &pod.Containers[0]
	image, _, _ := strings.Cut(ctr.Image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		p.Version = Released(image[i+1:])
	}
	p.Flags, p.Env = karpenter.Flags(pod)
	return p
}

// release matches a version that can be compared with others: not latest, a commit, or a build with local changes.
var release = regexp.MustCompile(`^v?[0-9]+\.[0-9]+\.[0-9]+(-[a-z]+[.0-9]*)?$`)

// Released returns a version if it can be compared with others. Otherwise it returns "".
func Released(version string) string {
	if !release.MatchString(version) {
		return ""
	}
	return version
}

// Program is a Deployment or DaemonSet.
type Program struct {
	Kind, Namespace, Name string
	// Version is the tag of the image, or "" if the image has none.
	Version string
	// Ready is the number of ready pods.
	Ready int32
	// Flags are the values of the program's flags. Env is its environment.
	Flags, Env map[string]string
}

func (p Program) String() string { return p.Kind + " " + p.Namespace + "/" + p.Name }

// sets reports whether the feature gates of a Karpenter have this setting, such as NodeRepair=true.
func (p Program) sets(gate string) bool {
	return slices.Contains(strings.Split(strings.ReplaceAll(p.Env["FEATURE_GATES"], " ", ""), ","), gate)
}
