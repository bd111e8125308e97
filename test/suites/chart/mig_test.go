package chart_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const withMIG = "--set=mig.enabled=true"

func TestGPUsAreDividedByAnInitContainerWithPrivilegesInPlaceOfAgent(t *testing.T) {
	if agent, _ := daemonSets(t); len(agent.Spec.Template.Spec.InitContainers) > 0 {
		t.Error("GPUs are divided although nobody asked for it")
	}
	agent, _ := daemonSets(t, withMIG, "--set=initContainers[0].name=own,initContainers[0].image=example.com/own")
	pod := agent.Spec.Template.Spec
	if len(pod.InitContainers) != 2 || pod.InitContainers[0].Name != "own" {
		t.Fatalf("the init containers are %+v", pod.InitContainers)
	}
	divides, container := pod.InitContainers[1], pod.Containers[0]
	if !*divides.SecurityContext.Privileged || !slices.Equal(divides.Args, []string{"mig-apply"}) || divides.Image != container.Image || divides.RestartPolicy != nil {
		t.Errorf("it runs %+v", divides)
	}
	if s := container.SecurityContext; *s.Privileged || !slices.Contains(s.Capabilities.Drop, "ALL") || pod.HostPID || pod.HostNetwork {
		t.Errorf("the agent has privileges: %+v", s)
	}
	values := map[string]string{}
	for _, e := range divides.Env {
		values[e.Name] = e.Value
	}
	if values["NVIDIA_VISIBLE_DEVICES"] != "all" || values["NVIDIA_MIG_CONFIG_DEVICES"] != "all" || values["STATE_DIR"] != env(agent, "STATE_DIR") {
		t.Errorf("its environment is %v", values)
	}
	// What it sees of the node is not for the agent.
	host := map[string]string{}
	for _, v := range pod.Volumes {
		if v.HostPath != nil {
			host[v.Name] = v.HostPath.Path
		}
	}
	mounted := func(c corev1.Container, path string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return host[m.Name] == path })
	}
	for _, path := range []string{"/proc", "/dev/nvidia-caps", "/run/systemd"} {
		if !mounted(divides, path) || mounted(container, path) {
			t.Errorf("%s is mounted where GPUs are divided: %t, and in the agent: %t", path, mounted(divides, path), mounted(container, path))
		}
	}
	for name, at := range map[string]string{"HOST_PROC": "/proc", "NVIDIA_CAPS_DIR": "/dev/nvidia-caps"} {
		if !slices.ContainsFunc(divides.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == values[name] && host[m.Name] == at }) {
			t.Errorf("%s is %s, where %s is not mounted", name, values[name], at)
		}
	}
}

func TestGPUsAreDividedWithTheClaimsOfPodsInView(t *testing.T) {
	t.Parallel()
	for dra, want := range map[string]bool{"true": true, "false": false} {
		agent, _ := daemonSets(t, withMIG, "--set=dra.enabled="+dra)
		pod := agent.Spec.Template.Spec
		mounts := pod.InitContainers[0].VolumeMounts
		i := slices.IndexFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/var/run/cdi" })
		if (i >= 0) != want {
			t.Fatalf("dra.enabled=%s: /var/run/cdi is mounted: %t", dra, i >= 0)
		}
		if !want {
			continue
		}
		v := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == mounts[i].Name })
		if v < 0 || pod.Volumes[v].HostPath == nil || pod.Volumes[v].HostPath.Path != "/var/run/cdi" || !mounts[i].ReadOnly {
			t.Errorf("it is mounted with %+v, from %+v", mounts[i], pod.Volumes)
		}
	}
}
