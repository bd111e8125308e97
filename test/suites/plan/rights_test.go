package plan

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/promquery/promquerytest"
)

// namespaces are those of the rights. The agent of the node shown is in the namespace default.
var namespaces = doctor.Namespaces{Controller: "karve-system", Agents: "default", Prometheus: "monitoring"}

// rights runs each verb as a user who has only the documented rights, and as users who each lack one of them. A group has each right, and users are impersonated.
func (w *world) rights(t *testing.T) {
	w.does(t, "create", "namespace", namespaces.Controller)
	w.does(t, "create", "namespace", namespaces.Prometheus)
	w.does(t, "apply", "-f", "examples/image-rollout")
	w.servePrometheus(t)
	trace := filepath.Join(t.TempDir(), "trace.csv")
	if err := os.WriteFile(trace, []byte("cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\n100,100,1,100,0,600\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const types = "--instance-types=test/harness/cluster/instance-types.json"
	group := w.grant(t)
	for _, c := range []struct {
		verb string
		args []string
		// fails is what the verb says although it has its rights, because this cluster lacks something. It is "" if it succeeds.
		fails string
	}{
		{"inspect", []string{"inspect"}, ""},
		{"nodes", []string{"nodes"}, ""},
		{"pods", []string{"pods", "-n", "default"}, ""},
		{"top nodes", []string{"top", "nodes"}, ""},
		{"top pods", []string{"top", "pods"}, ""},
		{"plan", []string{"plan", types}, ""},
		{"replay", []string{"replay", trace, types}, ""},
		{"advise", []string{"advise", types}, ""},
		{"explain", []string{"explain", "pod/holds-0", "-n", "default", types}, ""},
		{"cost", []string{"cost"}, ""},
		{"doctor", []string{"doctor"}, "must be fixed"}, // It has no controller.
		{"rollout status", []string{"rollout", "status"}, ""},
		{"rollout status", []string{"rollout", "status", "gpu"}, ""},
		{"rollout pause", []string{"rollout", "pause", "gpu"}, ""},
		{"version", []string{"version"}, ""},
	} {
		needs := slices.DeleteFunc(doctor.NeedsOf(c.verb, namespaces), func(n doctor.Need) bool { return !w.served(n.Right) || n.With != doctor.Right{} && !w.served(n.With) })
		if len(needs) == 0 {
			t.Fatalf("%s needs no rights", c.verb)
		}
		run := func(except doctor.Right) (out string, ok bool) {
			if c.verb == "rollout pause" {
				w.kubectl(t, w.cluster.Kubeconfig(), "karve", "rollout", "resume", "gpu")
			}
			args := append([]string{"karve"}, append(slices.Clone(c.args), "--as=somebody")...)
			for _, n := range needs {
				if n.Right != except {
					args = append(args, "--as-group="+group[n.Right])
				}
			}
			stdout, stderr, ok := w.kubectl(t, w.cluster.Kubeconfig(), args...)
			return stdout + stderr, ok
		}
		for _, n := range needs {
			one := n.Verb == "get" && n.Resource == "gpuimagerollouts"
			if c.verb == "rollout status" && n.Resource == "gpuimagerollouts" && one != (len(c.args) == 3) {
				continue // The list needs list, and one needs get.
			}
			out, ok := run(n.Right)
			switch {
			case c.verb == "doctor":
				if _, lacks, _ := strings.Cut(out, "you may not "); !strings.Contains(lacks, n.Verb+" ") || !strings.Contains(lacks, strings.TrimPrefix(n.String(), n.Verb+" ")+" (") && !strings.Contains(lacks, strings.TrimPrefix(n.String(), n.Verb+" ")+",") {
					t.Errorf("doctor without the right to %s does not name it:\n%s", n, out)
				}
			case n.Without == "" && (ok || !names(out, n.Right)), n.Without != "" && n.Resource != "leases" && !names(out, n.Right), n.Without != "" && c.fails == "" && !ok:
				t.Errorf("%s without the right to %s, succeeded: %t:\n%s", strings.Join(c.args, " "), n, ok, out)
			}
		}
		refused := "may not"
		if c.verb == "doctor" {
			refused = "could not be checked" // It also names the rights that other verbs need.
		}
		if out, ok := run(doctor.Right{}); ok != (c.fails == "") || !strings.Contains(out, c.fails) || strings.Contains(out, refused) {
			t.Errorf("%s with only its rights, succeeded: %t:\n%s", strings.Join(c.args, " "), ok, out)
		}
	}
	w.page(t, group)
	w.viewers(t)
}

// servePrometheus serves the costs of a pod behind a Service, which the API server reaches. It forwards only to addresses of pods, and none of loopback.
func (w *world) servePrometheus(t *testing.T) {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var host string
	for _, a := range addresses {
		if a, ok := a.(*net.IPNet); ok && a.IP.To4() != nil && a.IP.IsGlobalUnicast() && !a.IP.IsLoopback() {
			host = a.IP.String()
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(host, "0"))
	if err != nil || host == "" {
		t.Fatalf("no address of this computer but those of loopback can be used: %v", err)
	}
	server := httptest.NewUnstartedServer(promquerytest.WithAPod(model.Metric{"namespace": "default", "pod": "holds-0", "nodepool": "gpu-shared", "gpunodeclass": "gpu-shared", "owner_kind": "Pod", "owner": "holds-0"}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.Start()
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	metadata := "metadata: {name: prometheus, namespace: " + namespaces.Prometheus + ", labels: {operated-prometheus: \"true\", kubernetes.io/service-name: prometheus}}\n"
	file := filepath.Join(t.TempDir(), "prometheus.yaml")
	text := "apiVersion: v1\nkind: Service\n" + metadata + "spec: {ports: [{name: web, port: 9090}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n" + metadata +
		"addressType: IPv4\nendpoints: [{addresses: [" + host + "], targetRef: {kind: Pod, namespace: " + namespaces.Prometheus + ", name: prometheus}}]\n" +
		"ports: [{name: web, port: " + port + "}]\n---\napiVersion: v1\nkind: Pod\n" + metadata + "spec: {nodeName: shown, tolerations: [{operator: Exists}], containers: [{name: prometheus, image: prometheus}]}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.does(t, "apply", "-f", file)
	w.does(t, "patch", "pod", "prometheus", "--namespace="+namespaces.Prometheus, "--subresource=status", "--patch", `{"status": {"phase": "Running", "podIPs": [{"ip": "`+host+`"}], "podIP": "`+host+`"}}`)
}

// names reports whether a message names a right that is missing.
func names(message string, r doctor.Right) bool {
	resource := r.Resource
	if r.Group != "" {
		resource += "." + r.Group
	}
	if r.Resource == "configmaps" {
		resource = "ConfigMap " + namespaces.Controller + "/" + r.Name
	}
	return strings.Contains(message, "may not "+r.Verb+" "+resource)
}

// served reports whether the cluster serves the resource of a right, in the version that Karve reads.
func (w *world) served(r doctor.Right) bool {
	resource, _, _ := strings.Cut(r.Resource, "/")
	kinds, err := w.RESTMapper().KindsFor(schema.GroupVersionResource{Group: r.Group, Resource: resource})
	return err == nil && (r.Group != "resource.k8s.io" || slices.ContainsFunc(kinds, func(k schema.GroupVersionKind) bool { return k.Version == "v1" }))
}

// grant gives each right of any verb to a group of its own, and returns the groups.
func (w *world) grant(t *testing.T) map[doctor.Right]string {
	t.Helper()
	groups := map[doctor.Right]string{}
	last := doctor.Right{}
	for i, wanted := range doctor.UserRights(namespaces) {
		r, name := wanted.Right, fmt.Sprintf("right-%d", i)
		groups[r], last = name, r
		rule := rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: []string{r.Verb}}
		if r.Name != "" {
			rule.ResourceNames = []string{r.Name}
		}
		to := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: name}}
		var role, binding client.Object = &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}},
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}, Subjects: to}
		if r.Namespace != "" {
			at := metav1.ObjectMeta{Namespace: r.Namespace, Name: name}
			role, binding = &rbacv1.Role{ObjectMeta: at, Rules: []rbacv1.PolicyRule{rule}}, &rbacv1.RoleBinding{ObjectMeta: at, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name}, Subjects: to}
		}
		for _, o := range []client.Object{role, binding} {
			if err := w.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
	}
	// New rules take effect after a moment, in the order of their creation.
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		_, _, ok := w.kubectl(t, w.cluster.Kubeconfig(), "auth", "can-i", last.Verb, last.Resource+"."+last.Group, "--as=somebody", "--as-group="+groups[last])
		return ok, nil
	}); err != nil {
		t.Fatalf("nobody may %s: %v", last, err)
	}
	return groups
}

// page starts the web page as a user who has only the documented rights, and as users who each lack one that it fails without.
func (w *world) page(t *testing.T, group map[doctor.Right]string) {
	needs := slices.DeleteFunc(doctor.NeedsOf("ui", namespaces), func(n doctor.Need) bool { return !w.served(n.Right) || n.With != doctor.Right{} && !w.served(n.With) })
	start := func(except doctor.Right) (*exec.Cmd, io.ReadCloser, *strings.Builder) {
		args := []string{"ui", "--kubeconfig", w.cluster.Kubeconfig(), "--as=somebody"}
		for _, n := range needs {
			if n.Right != except {
				args = append(args, "--as-group="+group[n.Right])
			}
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		t.Cleanup(stop)
		cmd := exec.CommandContext(ctx, filepath.Join(w.path, "kubectl-karve"), args...)
		errOut := &strings.Builder{}
		cmd.Stderr = errOut
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		return cmd, out, errOut
	}
	for _, n := range needs {
		if n.Without != "" {
			continue
		}
		cmd, out, errOut := start(n.Right)
		line, _ := bufio.NewReader(out).ReadString('\n')
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		if line != "" || err == nil || !names(errOut.String(), n.Right) {
			t.Errorf("ui without the right to %s: %s%s%v", n, line, errOut, err)
		}
	}
	cmd, out, errOut := start(doctor.Right{})
	line, err := bufio.NewReader(out).ReadString('\n')
	address, token, found := strings.Cut(strings.TrimSpace(line), "/#token=")
	if err != nil || !found {
		_ = cmd.Wait()
		t.Fatalf("ui with only its rights: %q, %v: %s", line, err, errOut)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/karve/overview", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	_ = cmd.Process.Signal(os.Interrupt)
	_ = cmd.Wait()
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), `"name":"shown"`) || strings.Contains(string(body), `"problem":"`) || strings.Contains(errOut.String(), "may not") {
		t.Errorf("the page shows %s %.500s, %v, and ui says %s", answer.Status, body, err, errOut)
	}
}
