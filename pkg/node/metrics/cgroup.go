package metrics

import "strings"

// ParseCgroup returns the pod and the container from the content of /proc/<pid>/cgroup. It supports cgroup v1 and v2, the systemd and cgroupfs drivers of
// the kubelet, and the container IDs of containerd, CRI-O and Docker. Paths are as the agent sees them, which is relative ("/../../kubepods-…") if it runs
// in its own cgroup namespace. ok is false for processes outside of pods. container is "" for a process that is in a pod but not in a container.
func ParseCgroup(content string) (podUID, container string, ok bool) {
	for line := range strings.Lines(content) {
		// The format is hierarchy:controllers:path. The path may contain colons.
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if podUID, container, ok = parsePath(fields[2]); ok {
			return podUID, container, true
		}
	}
	return "", "", false
}

func parsePath(path string) (podUID, container string, ok bool) {
	for part := range strings.SplitSeq(path, "/") {
		if !ok {
			// If the kubelet uses the systemd driver and containerd does not, containerd writes <slice>:cri-containerd:<id>.
			slice, rest, joined := strings.Cut(part, ":")
			if podUID, ok = podOf(slice); ok && joined {
				_, id, _ := strings.Cut(rest, ":")
				return podUID, containerOf(id), true
			}
			continue
		}
		// Cgroups that the container creates below its own are ignored.
		return podUID, containerOf(part), true
	}
	return podUID, "", ok
}

// podOf parses kubepods-burstable-pod<uid>.slice, which has underscores instead of dashes in the UID, and pod<uid>.
func podOf(part string) (uid string, ok bool) {
	if name, systemd := strings.CutSuffix(part, ".slice"); systemd {
		i := strings.LastIndex(name, "-pod")
		if i < 0 {
			return "", false
		}
		uid = strings.ReplaceAll(name[i+len("-pod"):], "_", "-")
	} else if uid, ok = strings.CutPrefix(part, "pod"); !ok {
		return "", false
	}
	return uid, isUID(uid)
}

// isUID reports whether a string is the UID of a pod: a UUID, or the 32 digits that the kubelet uses for static pods.
func isUID(s string) bool {
	switch len(s) {
	case 32:
		return isHex(s)
	case 36:
		return s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-' &&
			isHex(s[:8]) && isHex(s[9:13]) && isHex(s[14:18]) && isHex(s[19:23]) && isHex(s[24:])
	default:
		return false
	}
}

// idLength is the length of container IDs in all three runtimes.
const idLength = 64

// containerOf parses <id>, cri-containerd-<id>.scope, crio-<id>.scope and docker-<id>.scope.
func containerOf(part string) string {
	part = strings.TrimSuffix(part, ".scope")
	if len(part) > idLength && part[len(part)-idLength-1] != '-' || len(part) < idLength {
		return ""
	}
	if id := part[len(part)-idLength:]; isHex(id) {
		return id
	}
	return ""
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
