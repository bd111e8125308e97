package cluster_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"karve.sh/karve/test/harness/cluster"
)

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestAPIServerServesCRDs(t *testing.T) {
	cluster.Require(t)
	began := time.Now()
	c := cluster.ForTest(t, cluster.Config{})
	t.Logf("ready after %s", time.Since(began))
	client := clientset(t, c.RESTConfig())
	for group, kind := range map[string]string{
		"karpenter.sh/v1":       "NodeClaim",
		"karpenter.sh/v1alpha1": "NodeOverlay",
		"karpenter.k8s.aws/v1":  "EC2NodeClass",
	} {
		list, err := client.Discovery().ServerResourcesForGroupVersion(group)
		if err != nil {
			t.Errorf("%s: %v", group, err)
			continue
		}
		found := false
		for _, r := range list.APIResources {
			found = found || r.Kind == kind
		}
		if !found {
			t.Errorf("%s does not serve %s", group, kind)
		}
	}
}

func TestUserHasOnlyRightsFromRBAC(t *testing.T) {
	c := cluster.ForTest(t, cluster.Config{})
	const user = "system:serviceaccount:default:nobody"
	path, err := c.KubeconfigFor(user)
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = clientset(t, config).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("listing nodes: %v, want Forbidden", err)
	}
	if err != nil && !strings.Contains(err.Error(), `"`+user+`"`) {
		t.Errorf("listing nodes: %v, want the user's name in it", err)
	}
	_, err = clientset(t, c.RESTConfig()).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Errorf("listing nodes as the administrator: %v", err)
	}
	if _, err := clientset(t, config).AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	calls, err := c.Calls()
	if err != nil {
		t.Fatal(err)
	}
	want := cluster.Calls{
		Allowed: []cluster.Call{{User: user, Verb: "create", Group: "authorization.k8s.io", Resource: "selfsubjectrulesreviews"}},
		Denied:  []cluster.Call{{User: user, Verb: "list", Resource: "nodes"}},
	}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls of service accounts (-want +got):\n%s", diff)
	}
}

func TestClustersRunSideBySideAndStopCleansUp(t *testing.T) {
	cluster.Require(t)
	var clusters []*cluster.Cluster
	for range 2 {
		c, err := cluster.Start(t.Context(), cluster.Config{})
		if err != nil {
			t.Fatal(err)
		}
		clusters = append(clusters, c)
	}
	if clusters[0].RESTConfig().Host == clusters[1].RESTConfig().Host {
		t.Error("both clusters have the same address")
	}
	for _, c := range clusters {
		if n := len(processesOf(t, c)); n != 2 {
			t.Errorf("%d processes, want etcd and kube-apiserver", n)
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if left := processesOf(t, c); len(left) > 0 {
			t.Errorf("left after Stop: %q", left)
		}
		if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
			t.Errorf("the folder of the cluster is left: %v", err)
		}
	}
}

func TestFailedStartReportsLogOfComponent(t *testing.T) {
	cluster.Require(t)
	dir := t.TempDir()
	// etcd refuses a file as its data folder.
	if err := os.WriteFile(dir+"/etcd", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir})
	if err == nil {
		_ = c.Stop()
		t.Fatal("the cluster started")
	}
	if !strings.HasPrefix(err.Error(), "starting etcd: it ended") || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("error %v, want etcd's message in it", err)
	}
}

func TestCancelledStartCleansUp(t *testing.T) {
	cluster.Require(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir, Components: cluster.Everything()})
	if err == nil {
		_ = c.Stop()
		t.Skip("a cluster was ready within a second")
	}
	if left := processesWith(t, dir); len(left) > 0 {
		t.Errorf("left after %v: %q", err, left)
	}
}

func TestKilledComponentIsReportedAndAPIServerKeepsItsData(t *testing.T) {
	exits := make(chan cluster.Component, 1)
	c := cluster.ForTest(t, cluster.Config{OnExit: func(name cluster.Component, _ error) { exits <- name }})
	client := clientset(t, c.RESTConfig())
	created, err := client.CoreV1().Namespaces().Create(t.Context(), namespace("kept"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.KillComponent(cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	if err := c.StartComponent(t.Context(), cluster.APIServer); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil || got.UID != created.UID {
		t.Errorf("the namespace is %v, %v", got, err)
	}
	for _, pid := range processesOf(t, c) {
		if out, err := exec.CommandContext(t.Context(), "kill", "-9", pid).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		select {
		case <-exits:
		case <-time.After(10 * time.Second):
			t.Error("OnExit was not called for a component that ended")
		}
	}
}

func processesOf(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	return processesWith(t, c.Dir())
}

// processesWith returns the PIDs of the processes that have the folder in their command line.
func processesWith(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, e := range entries {
		line, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && strings.Contains(string(line), dir+"/") {
			pids = append(pids, e.Name())
		}
	}
	return pids
}
