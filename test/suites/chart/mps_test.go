package chart_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"karve.sh/karve/test/harness/chart"
)

const withMPS = "--set=mps.enabled=true"

// daemonSets returns the DaemonSets of the agents and of the MPS daemons.
func daemonSets(t *testing.T, options ...string) (agent, daemons appsv1.DaemonSet) {
	t.Helper()
	for _, object := range template(t, options...).Kind("DaemonSet") {
		d := &agent
		if strings.HasSuffix(object.GetName(), "-mps") {
			d = &daemons
		}
		if err := chart.Convert(object, d); err != nil {
			t.Fatal(err)
		}
	}
	return agent, daemons
}

func TestMPSDaemonsHavePrivilegesInPlaceOfAgent(t *testing.T) {
	if _, daemons := daemonSets(t); daemons.Name != "" {
		t.Error("MPS daemons are installed although nobody asked for them")
	}
	agent, daemons := daemonSets(t, withMPS)
	pod, container := daemons.Spec.Template.Spec, daemons.Spec.Template.Spec.Containers[0]
	if s := container.SecurityContext; !*s.Privileged || !pod.HostPID || *pod.AutomountServiceAccountToken {
		t.Errorf("the daemons run with %+v, in the PIDs of the host %t, with a token %t", s, pod.HostPID, *pod.AutomountServiceAccountToken)
	}
	if s := agent.Spec.Template.Spec.Containers[0].SecurityContext; *s.Privileged || !slices.Contains(s.Capabilities.Drop, "ALL") || agent.Spec.Template.Spec.HostPID {
		t.Errorf("the agent has privileges: %+v", s)
	}
	if daemons.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("the daemons are restarted by a rollout: %+v", daemons.Spec.UpdateStrategy)
	}
	if !slices.Equal(container.Args, []string{"mps-daemon"}) || env(daemons, "NVIDIA_DRIVER_CAPABILITIES") != "compute,utility" || container.Image != agent.Spec.Template.Spec.Containers[0].Image {
		t.Errorf("the daemons run %+v", container)
	}
	for _, label := range []string{"karve.sh/gpunodeclass=a", "nvidia.com/gpu.present=true", "other=x"} {
		pods := [2]bool{}
		for i, d := range []appsv1.DaemonSet{agent, daemons} {
			pods[i] = runsOn(t, &corev1.Pod{Spec: d.Spec.Template.Spec}, label)
		}
		if pods[0] != pods[1] {
			t.Errorf("on a node with %s the agent runs: %t, and the daemons: %t", label, pods[0], pods[1])
		}
	}
	for key, value := range agent.Spec.Selector.MatchLabels {
		if daemons.Spec.Template.Labels[key] != value {
			return
		}
	}
	t.Error("what selects agents, such as the PodMonitor, selects the daemons too")
}

// The agent tells containers paths on the node, so all three have the directory at the same path.
func TestAgentAndMPSDaemonsShareDirectory(t *testing.T) {
	for _, options := range [][]string{{withMPS}, {withMPS, "--set=mps.dir=/run/mps"}} {
		agent, daemons := daemonSets(t, options...)
		dir := env(agent, "MPS_DIR")
		if i := slices.IndexFunc(daemons.Spec.Template.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.MountPath == dir && m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional
		}); i < 0 || env(daemons, "MPS_SHM_MIB") != "1024" {
			t.Errorf("%q: the shared memory that the program mounts, of %s MiB, is not on the host", options, env(daemons, "MPS_SHM_MIB"))
		}
		if dir == "" || dir != env(daemons, "MPS_DIR") {
			t.Errorf("%q: the agent uses %q and the daemons %q", options, dir, env(daemons, "MPS_DIR"))
		}
		for _, d := range []appsv1.DaemonSet{agent, daemons} {
			host, mounted := map[string]string{}, map[string]string{}
			for _, v := range d.Spec.Template.Spec.Volumes {
				if v.HostPath != nil {
					host[v.Name] = v.HostPath.Path
				}
			}
			for _, m := range d.Spec.Template.Spec.Containers[0].VolumeMounts {
				mounted[m.MountPath] = host[m.Name]
			}
			if mounted[dir] != dir {
				t.Errorf("%q: %s has %q at %s", options, d.Name, mounted[dir], dir)
			}
		}
	}
}

func TestAgentListsPodsOnlyWithMPS(t *testing.T) {
	for _, on := range []bool{false, true} {
		options := []string{"--set=mps.enabled=false"}
		if on {
			options = []string{withMPS}
		}
		role := into[rbacv1.ClusterRole](t, template(t, options...), "ClusterRole")
		may := slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
		if may != on {
			t.Errorf("with mps.enabled=%t the agent may list pods: %t", on, may)
		}
	}
}
