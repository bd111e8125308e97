package kubelet_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

// TestUpgradeOfTheDaemonSetKeepsReplicas upgrades the chart's DaemonSet with maxSurge and rolls it back. The DaemonSet controller starts the new agent and waits until it is
// ready before it deletes the old one, so that the node is never without replicas.
func TestUpgradeOfTheDaemonSetKeepsReplicas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nvmltest.T4(1))
	w.must(w.Share(10))
	const image, tag = "karve.test/node", "1"
	w.must(w.AddImage(t.Context(), image+":"+tag, build(t, gpus.Karve)))
	agents := w.daemonSet(image, tag)
	sets := w.node.Client().AppsV1().DaemonSets(w.node.Namespace())
	_, err := sets.Create(t.Context(), agents, metav1.CreateOptions{})
	w.must(err)
	w.allocatable(10)
	w.eventually(func() error { // The controller deletes an agent that is not ready at once.
		set, err := sets.Get(t.Context(), agents.Name, metav1.GetOptions{})
		if err != nil || set.Status.NumberAvailable != 1 {
			return fmt.Errorf("the agent is not available: %+v, %v", set.Status, err) //nolint:errorlint // It may be nil.
		}
		return nil
	})
	pods := w.settle(2)
	lowest := w.watchLowest()
	for revision, level := range []string{"debug", "info"} {
		began := time.Now()
		agents, err = sets.Get(t.Context(), agents.Name, metav1.GetOptions{})
		w.must(err)
		before := w.agents(agents)
		container := &agents.Spec.Template.Spec.Containers[0]
		i := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "LOG_LEVEL" })
		container.Env[i].Value = level
		agents, err = sets.Update(t.Context(), agents, metav1.UpdateOptions{})
		w.must(err)
		together := 0
		w.eventually(func() error {
			now := w.agents(agents)
			together = max(together, len(now))
			set, err := sets.Get(t.Context(), agents.Name, metav1.GetOptions{})
			w.must(err)
			if s := set.Status; s.ObservedGeneration < agents.Generation || s.UpdatedNumberScheduled < 1 || s.NumberReady < 1 || len(now) != 1 || now[0] == before[0] {
				return fmt.Errorf("the agents are %v, before %v; the status is %+v", now, before, s)
			}
			return nil
		})
		if together != 2 {
			t.Errorf("upgrade %d: %d agents ran together, want 2", revision, together)
		}
		time.Sleep(statusTime)
		if low := lowest(); low < 10 {
			t.Errorf("upgrade %d: the Node had %d replicas for a moment", revision, low)
		}
		w.takes(fmt.Sprint("after-", revision))
		pods.unchanged()
		t.Logf("upgrade %d: %s", revision, time.Since(began).Round(100*time.Millisecond))
	}
}

// daemonSet returns the chart's DaemonSet with maxSurge, for ten replicas of each GPU of the node. Its agents do without the API server, which listens only on this machine's
// loopback address.
func (w *world) daemonSet(repository, tag string) *appsv1.DaemonSet {
	w.t.Helper()
	const mount = "node"
	dir := w.node.Dir()
	options := []string{
		"--set=image.repository=" + repository, "--set-string=image.tag=" + tag, "--set=image.pullPolicy=Never",
		"--set=kubeletRoot=" + filepath.Join(dir, "kubelet"), "--set=stateDir=" + filepath.Join(dir, "state"), "--set=runtimeConfigDir=",
		"--set=nodeSelector.kubernetes\\.io/hostname=" + w.node.Name(), "--set=serviceAccount.create=false,serviceAccount.name=default",
		"--set=updateStrategy.rollingUpdate.maxSurge=1,updateStrategy.rollingUpdate.maxUnavailable=0",
		"--set-file=config.map.default=" + w.ConfigFile(),
		"--set=extraVolumes[0].name=" + mount + ",extraVolumes[0].hostPath.path=" + dir, "--set=extraVolumeMounts[0].name=" + mount + ",extraVolumeMounts[0].mountPath=" + dir,
	}
	environment := w.Environment()
	for i, name := range slices.Sorted(maps.Keys(environment)) {
		options = append(options, fmt.Sprintf("--set=env[%d].name=%s,env[%d].value=%s", i, name, i, environment[name]))
	}
	objects, err := chart.Chart{Name: "karve/charts/karve-node", Release: "surge", Namespace: w.node.Namespace()}.Template(w.t.Context(), options...)
	w.must(err)
	var configs corev1.ConfigMap
	w.must(objects.Into("ConfigMap", &configs))
	_, err = w.node.Client().CoreV1().ConfigMaps(w.node.Namespace()).Create(w.t.Context(), &configs, metav1.CreateOptions{})
	w.must(err)
	var set appsv1.DaemonSet
	w.must(objects.Into("DaemonSet", &set))
	container := &set.Spec.Template.Spec.Containers[0]
	container.Env = slices.DeleteFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "NODE_NAME" })
	set.Spec.Template.Spec.AutomountServiceAccountToken = new(false)
	return &set
}

// agents returns the names of the DaemonSet's pods that have not ended.
func (w *world) agents(set *appsv1.DaemonSet) []string {
	w.t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	w.must(err)
	list, err := w.pods().List(w.t.Context(), metav1.ListOptions{LabelSelector: selector.String()})
	w.must(err)
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}
