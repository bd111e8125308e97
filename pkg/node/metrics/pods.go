package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pod is a pod on the machine.
type Pod struct {
	UID, Namespace, Name string
	Containers           []Container
}

// Container is a container of a pod.
type Container struct {
	Name string
	// ID is the container ID of the runtime, or "" if unknown.
	ID string
}

// PodSource lists the pods of the machine.
type PodSource interface {
	Pods() ([]Pod, error)
}

// LogFolders lists pods from the names of their log directories, which the kubelet creates: pods/<namespace>_<name>_<uid>/<container>, and
// containers/<name>_<namespace>_<container>-<id>.log. It needs access to neither the API server nor the sockets of the kubelet and the runtime.
type LogFolders struct {
	// Root is /var/log of the machine.
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
		// If the pod was deleted in the meantime, it has no containers.
		containers, err := os.ReadDir(filepath.Join(l.Root, "pods", folder.Name()))
		if err != nil {
			continue
		}
		for _, c := range containers {
			if !c.IsDir() {
				continue
			}
			// A container that was restarted has several IDs.
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

// ids returns the container IDs from the links to the logs of containers. It returns none if they cannot be read.
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

// parsePodFolder parses <namespace>_<name>_<uid>. None of the three contains an underscore.
func parsePodFolder(name string) (Pod, bool) {
	parts := strings.Split(name, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || !isUID(parts[2]) {
		return Pod{}, false
	}
	return Pod{Namespace: parts[0], Name: parts[1], UID: parts[2]}, true
}

// parseContainerLog parses <pod>_<namespace>_<container>-<id>.log.
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

// owner is the container to which a process belongs.
type owner struct{ namespace, pod, container string }

// ownersOfProcesses returns the owners of processes. Processes outside of pods, or in unknown pods, are left out. The PIDs are those of the machine, so the agent must
// run in its PID namespace.
func ownersOfProcesses(proc string, pods []Pod, pids []int) map[int]owner {
	byUID := map[string]Pod{}
	for _, p := range pods {
		byUID[p.UID] = p
	}
	out := map[int]owner{}
	for _, pid := range pids {
		// The file is missing if the process has ended.
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

// Users returns the pods of processes, as namespace/name, by PID. It returns none if pods is nil. proc is the proc file system of the machine.
func Users(proc string, pods PodSource, pids []int) map[int]string {
	if pods == nil {
		return nil
	}
	all, err := pods.Pods()
	if err != nil {
		return nil // No pods are known.
	}
	out := map[int]string{}
	for pid, o := range ownersOfProcesses(proc, all, pids) {
		out[pid] = o.namespace + "/" + o.pod
	}
	return out
}

// container returns the name of the container with the ID. Without a match, it returns the name of the only container, or "" if there are several.
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
