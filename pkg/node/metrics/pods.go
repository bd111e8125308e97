package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pod is a pod on this machine.
type Pod struct {
	UID, Namespace, Name string
	Containers           []Container
}

// Container is a container of a pod.
type Container struct {
	Name string
	// ID is the runtime's; "" when it is not known.
	ID string
}

// PodSource lists the pods of this machine.
type PodSource interface {
	Pods() ([]Pod, error)
}

// LogFolders lists pods by the names of their log folders, which the kubelet keeps: pods/<namespace>_<name>_<uid>/<container>, and
// containers/<name>_<namespace>_<container>-<id>.log. That needs neither the API server nor the kubelet's or the runtime's socket.
type LogFolders struct {
	// Root is /var/log.
	Root string
}

// Pods implements PodSource.
func (l LogFolders) Pods() ([]Pod, error) {
	folders, err := os.ReadDir(filepath.Join(l.Root, "pods"))
	if err != nil {
		return nil, fmt.Errorf("listing the pods of this machine: %w", err)
	}
	ids := l.ids()
	var out []Pod
	for _, folder := range folders {
		pod, ok := parsePodFolder(folder.Name())
		if !ok || !folder.IsDir() {
			continue
		}
		// A pod that went away meanwhile has no containers.
		containers, err := os.ReadDir(filepath.Join(l.Root, "pods", folder.Name()))
		if err != nil {
			continue
		}
		for _, c := range containers {
			if !c.IsDir() {
				continue
			}
			// One that was started again has an id for each start that is not forgotten yet.
			found := ids[containerKey{pod.Namespace, pod.Name, c.Name()}]
			if len(found) == 0 {
				found = []string{""}
			}
			for _, id := range found {
				pod.Containers = append(pod.Containers, Container{Name: c.Name(), ID: id})
			}
		}
		out = append(out, pod)
	}
	return out, nil
}

type containerKey struct{ namespace, pod, container string }

// ids reads the links to the logs of containers; without them containers have no id.
func (l LogFolders) ids() map[containerKey][]string {
	links, err := os.ReadDir(filepath.Join(l.Root, "containers"))
	if err != nil {
		return nil
	}
	out := map[containerKey][]string{}
	for _, link := range links {
		if key, id, ok := parseContainerLog(link.Name()); ok {
			out[key] = append(out[key], id)
		}
	}
	return out
}

// parsePodFolder reads <namespace>_<name>_<uid>; none of the three has an underscore.
func parsePodFolder(name string) (Pod, bool) {
	parts := strings.Split(name, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || !isUID(parts[2]) {
		return Pod{}, false
	}
	return Pod{Namespace: parts[0], Name: parts[1], UID: parts[2]}, true
}

// parseContainerLog reads <pod>_<namespace>_<container>-<id>.log.
func parseContainerLog(name string) (key containerKey, id string, ok bool) {
	stem, isLog := strings.CutSuffix(name, ".log")
	parts := strings.Split(stem, "_")
	if !isLog || len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return containerKey{}, "", false
	}
	i := len(parts[2]) - idLength - 1
	if i < 1 || parts[2][i] != '-' || !isHex(parts[2][i+1:]) {
		return containerKey{}, "", false
	}
	return containerKey{namespace: parts[1], pod: parts[0], container: parts[2][:i]}, parts[2][i+1:], true
}

// owner is whose process it is.
type owner struct{ namespace, pod, container string }

// owners finds the pods of processes. Those that are in no pod, or in one that is not known, are left out. PIDs are the machine's: the
// agent has to be in the machine's PID namespace.
func owners(proc string, pods []Pod, pids []int) map[int]owner {
	byUID := map[string]Pod{}
	for _, p := range pods {
		byUID[p.UID] = p
	}
	out := map[int]owner{}
	for _, pid := range pids {
		// One that ended meanwhile has none.
		content, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
		if err != nil {
			continue
		}
		uid, id, ok := ParseCgroup(string(content))
		pod, known := byUID[uid]
		if !ok || !known {
			continue
		}
		out[pid] = owner{namespace: pod.Namespace, pod: pod.Name, container: pod.container(id)}
	}
	return out
}

// Users finds the pods of processes, as namespace/name; it finds none where pods is nil. proc is where the machine's processes are.
func Users(proc string, pods PodSource, pids []int) map[int]string {
	if pods == nil {
		return nil
	}
	all, err := pods.Pods()
	if err != nil {
		return nil // Then nobody is known.
	}
	out := map[int]string{}
	for pid, o := range owners(proc, all, pids) {
		out[pid] = o.namespace + "/" + o.pod
	}
	return out
}

// container is the name of the container with that id: the only one there is when ids are not known.
func (p Pod) container(id string) string {
	only, several := "", false
	for _, c := range p.Containers {
		if id != "" && c.ID == id {
			return c.Name
		}
		several = several || only != "" && only != c.Name
		only = c.Name
	}
	if several {
		return ""
	}
	return only
}
