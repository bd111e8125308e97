package metrics

import "strings"

// ParseCgroup finds the pod and the container in the content of a /proc/<pid>/cgroup. It knows cgroup v1 and v2, the kubelet's systemd and
// cgroupfs drivers, and the container ids of containerd, CRI-O and Docker. Paths are taken as the agent sees them, which is
// relative ("/../../kubepods-…") when it is in a cgroup namespace of its own. ok is false for what is not in a pod; container is "" for a
// process that is in the pod but in no container.
func ParseCgroup(content string) (podUID, container string, ok bool) {
	for line := range strings.Lines(content) {
		// hierarchy:controllers:path; a path may have colons.
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
			// containerd without its systemd driver on a kubelet with it writes <slice>:cri-containerd:<id> in one part.
			slice, rest, joined := strings.Cut(part, ":")
			if podUID, ok = podOf(slice); ok && joined {
				_, id, _ := strings.Cut(rest, ":")
				return podUID, containerOf(id), true
			}
			continue
		}
		// What the container itself makes below its cgroup does not matter.
		return podUID, containerOf(part), true
	}
	return podUID, "", ok
}

// podOf reads kubepods-burstable-pod<uid>.slice, where dashes of the UID are underscores, and pod<uid>.
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

// isUID says whether a string is a pod's UID: a UUID, or the 32 digits that the kubelet gives to static pods.
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

// idLength is the length of a container id in all three runtimes.
const idLength = 64

// containerOf reads <id>, cri-containerd-<id>.scope, crio-<id>.scope and docker-<id>.scope.
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

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
