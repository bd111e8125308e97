package chart_test

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"karve.sh/karve/pkg/operator"
	"karve.sh/karve/pkg/ui"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
	"karve.sh/karve/test/suites/rights"
)

const (
	withUI = "--set=ui.enabled=true,node.enabled=false"
	uiName = "karve-ui"
)

func TestPageIsDisabledByDefault(t *testing.T) {
	for _, o := range objects(t, needed) {
		if strings.HasSuffix(o.GetName(), "-ui") {
			t.Errorf("there is the %s %s", o.GetKind(), o.GetName())
		}
	}
}

func TestPageOnlyReads(t *testing.T) {
	all := objects(t, needed, withUI)
	rules := slices.Concat(named[rbacv1.ClusterRole](t, all, "ClusterRole")[uiName].Rules, named[rbacv1.Role](t, all, "Role")[uiName].Rules)
	for _, rule := range rules {
		if slices.ContainsFunc(rule.Verbs, func(verb string) bool { return !slices.Contains([]string{"get", "list", "watch"}, verb) }) || slices.Contains(rule.Resources, "secrets") {
			t.Errorf("it may %s %s", rule.Verbs, rule.Resources)
		}
	}
	for name, binding := range named[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding") {
		of := slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool { return s.Name == uiName })
		if want := []string{uiName, "system:auth-delegator"}; of != strings.HasPrefix(name, uiName) || of && !slices.Contains(want, binding.RoleRef.Name) {
			t.Errorf("the binding %s gives %s to %v", name, binding.RoleRef.Name, binding.Subjects)
		}
	}
}

func TestPageKnowsThePrometheusAndTheLinksOfItsValues(t *testing.T) {
	args := func(options ...string) []string {
		return named[appsv1.Deployment](t, objects(t, append([]string{needed, withUI}, options...)...), "Deployment")[uiName].Spec.Template.Spec.Containers[0].Args
	}
	for _, arg := range args() {
		if strings.Contains(arg, "prometheus") || strings.Contains(arg, "cluster") || strings.Contains(arg, "grafana") || strings.Contains(arg, "logs") {
			t.Errorf("without values, it is started with %s", arg)
		}
	}
	const logs = "https://logs.example.com/{namespace}/{pod}"
	given := args("--set-literal=ui.links.logs="+logs, "--set=ui.links.grafana=https://grafana.example.com,ui.prometheus.url=http://mimir.monitoring:8080/prometheus,ui.prometheus.headers.X-Scope-OrgID=platform,ui.prometheus.clusterLabel=east")
	var o operator.UIOptions
	fs := flag.NewFlagSet("ui", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.AddFlags(fs)
	if err := fs.Parse(given[1:]); err != nil || o.Prometheus != "http://mimir.monitoring:8080/prometheus" || !slices.Equal(o.Headers, []string{"X-Scope-OrgID=platform"}) || o.ClusterLabel != "east" {
		t.Errorf("%v: %+v", err, o)
	}
	if links, err := ui.LinksTo(o.Grafana, o.Logs); err != nil || len(links) != 2 || o.Logs != logs || o.Grafana != "https://grafana.example.com" {
		t.Errorf("%v, %v: %+v", links, err, o)
	}
}

func TestPageNetworkPolicySelectsItsPods(t *testing.T) {
	all := objects(t, needed, withUI, "--set=networkPolicy.enabled=true")
	deployments, policies := named[appsv1.Deployment](t, all, "Deployment"), named[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
	for name, selects := range map[string]metav1.LabelSelector{"Deployment": *deployments[uiName].Spec.Selector, "NetworkPolicy": policies[uiName].Spec.PodSelector} {
		selector, err := metav1.LabelSelectorAsSelector(&selects)
		if err != nil {
			t.Fatal(err)
		}
		if !selector.Matches(labels.Set(deployments[uiName].Spec.Template.Labels)) || selector.Matches(labels.Set(deployments["karve"].Spec.Template.Labels)) {
			t.Errorf("%s: %v", name, selector)
		}
	}
	for _, rule := range policies[uiName].Spec.Ingress {
		if len(rule.Ports) != 1 || rule.Ports[0].Port.String() != "probes" {
			t.Errorf("it lets in %v", rule.Ports)
		}
	}
}

// TestPageRequiresAuthorization runs the page with the rights of its service account on an API server, which authenticates and authorizes those who look at it.
func TestPageRequiresAuthorization(t *testing.T) {
	cluster.Long(t)
	c := cluster.ForTest(t, cluster.Config{})
	api, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, needed, withUI)
	for _, role := range named[rbacv1.ClusterRole](t, all, "ClusterRole") {
		if strings.HasPrefix(role.Name, uiName) {
			if _, err := api.RbacV1().ClusterRoles().Create(t.Context(), &role, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: karve.Namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role, reads := named[rbacv1.Role](t, all, "Role")[uiName], named[rbacv1.RoleBinding](t, all, "RoleBinding")[uiName]
	if _, err := api.RbacV1().Roles(karve.Namespace).Create(t.Context(), &role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.RbacV1().RoleBindings(karve.Namespace).Create(t.Context(), &reads, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"nodeclass.yaml", "gpunodeclass.yaml", "nodepool.yaml"} {
		apply := exec.CommandContext(t.Context(), c.Kubectl(), "--kubeconfig="+c.Kubeconfig(), "apply", "-f", filepath.Join(root, "examples", file))
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	bindings := named[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding")
	viewer := rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: uiName + "-test"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: uiName + "-viewer"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "viewer"}},
	}
	for _, binding := range []rbacv1.ClusterRoleBinding{bindings[uiName], bindings[uiName+"-auth"], viewer} {
		if _, err := api.RbacV1().ClusterRoleBindings().Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	nobody, sees := account(t, api, "nobody"), account(t, api, "viewer")

	path, err := karve.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	deployment := named[appsv1.Deployment](t, all, "Deployment")[uiName]
	kubeconfig, err := c.KubeconfigFor("system:serviceaccount:" + deployment.Namespace + ":" + deployment.Spec.Template.Spec.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	page, err := c.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	probes, err := c.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	healthy := fmt.Sprintf("127.0.0.1:%d", probes)
	err = c.StartProgram(t.Context(), cluster.Program{
		Name: uiName, Path: path, ReadyURL: "http://" + healthy + "/healthz",
		Args: append(slices.Clone(deployment.Spec.Template.Spec.Containers[0].Args), "--kubeconfig="+kubeconfig, "--health-probe-bind-address="+healthy, fmt.Sprintf("--port=%d", page)),
	})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://127.0.0.1:%d", page)
	for _, tc := range []struct {
		name, path, token string
		want              int
	}{
		{"without a token", "/karve/overview", "", http.StatusUnauthorized},
		{"with a token without the right", "/karve/overview", nobody, http.StatusForbidden},
		{"with the right", "/karve/overview", sees, http.StatusOK},
		{"the page's own files", "/", "", http.StatusOK},
	} {
		got, body := look(t, url+tc.path, tc.token)
		for deadline := time.Now().Add(30 * time.Second); got != tc.want && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			got, body = look(t, url+tc.path, tc.token) // The API server may not have loaded the roles yet.
		}
		if got != tc.want || strings.Contains(body, `"totals"`) != (tc.token == sees) || strings.Contains(body, `"problem"`) {
			t.Errorf("%s, the answer is %d, want %d: %.300s", tc.name, got, tc.want, body)
		}
	}
	const note = `"note":"there is no ConfigMap karve-system/karve-catalog, in which the controller publishes its instance types (--karve-namespace), so zones and prices are those of us-east-1; the controller is assumed to have default settings, because it has not published them"`
	if _, body := look(t, url+"/karve/overview", sees); !strings.Contains(body, `"name":"gpu-shared"`) || !strings.Contains(body, note) {
		t.Errorf("the overview is %.500s", body)
	}
	if got, body := look(t, url+"/karve/explain?pod=default/none", sees); got != http.StatusNotFound {
		t.Errorf("a pod that does not exist gets %d: %.300s", got, body)
	}
	wantRights(t, c, all)
}

// wantRights checks that the page's rights are those that it has used, and that no other was missing.
func wantRights(t *testing.T, c *cluster.Cluster, all chart.Objects) {
	t.Helper()
	granted, err := rights.Of(all)
	if err != nil {
		t.Fatal(err)
	}
	granted = slices.DeleteFunc(granted, func(r rights.Right) bool { return !strings.HasSuffix(r.User, ":"+uiName) })
	unseen := map[string]string{"ClusterRole karve-ui: get nodeclaims.karpenter.sh": "a NodeClaim is read again while the informer does not show it"}
	var wrong []string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		calls, err := c.Calls()
		if err != nil {
			t.Fatal(err)
		}
		if wrong = rights.Wrong(granted, calls, unseen); len(wrong) == 0 {
			return
		}
	}
	t.Errorf("%q", wrong)
}

func look(t *testing.T, url, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answered, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answered.Body.Close()
	text, err := io.ReadAll(answered.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered.StatusCode, string(text)
}
