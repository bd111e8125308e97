package promquery

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestServicesOfPrometheusAreFound(t *testing.T) {
	t.Parallel()
	service := func(name string, labels map[string]string, ports ...corev1.ServicePort) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "monitoring", Name: name, Labels: labels}, Spec: corev1.ServiceSpec{Ports: ports}}
	}
	web, reload := corev1.ServicePort{Name: "http-web", Port: 9090}, corev1.ServicePort{Name: "reloader-web", Port: 8080}
	got := Services([]corev1.Service{
		service("kubernetes", nil, corev1.ServicePort{Name: "https", Port: 443}),
		service("stack-prometheus", map[string]string{"app": "kube-prometheus-stack-prometheus"}, reload, web),
		service("prometheus-operated", map[string]string{"operated-prometheus": "true"}, corev1.ServicePort{Name: "web", Port: 9090}),
		service("prometheus-server", map[string]string{"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}, corev1.ServicePort{Name: "http", Port: 80}),
		service("prometheus-alertmanager", map[string]string{"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "alertmanager"}, corev1.ServicePort{Name: "http", Port: 80}),
		service("secure", map[string]string{"app.kubernetes.io/name": "prometheus"}, corev1.ServicePort{Name: "https", Port: 8443}),
		service("only", map[string]string{"app.kubernetes.io/name": "prometheus"}, corev1.ServicePort{Name: "metrics", Port: 9090}),
		service("grpc", map[string]string{"app.kubernetes.io/name": "prometheus"}, corev1.ServicePort{Name: "grpc", Port: 1}, corev1.ServicePort{Name: "other", Port: 2}),
		service("thanos-query", map[string]string{"app.kubernetes.io/name": "thanos-query"}, corev1.ServicePort{Name: "grpc", Port: 10901}, corev1.ServicePort{Name: "http", Port: 9090}),
		service("thanos-store", map[string]string{"app.kubernetes.io/name": "thanos", "app.kubernetes.io/component": "storegateway"}, corev1.ServicePort{Name: "http", Port: 10902}),
	})
	var targets []string
	for _, s := range got {
		targets = append(targets, s.target)
	}
	want := []string{"thanos-query:9090", "stack-prometheus:9090", "prometheus-operated:9090", "prometheus-server:80", "https:secure:8443", "only:9090"}
	if diff := cmp.Diff(want, targets); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAPrometheusInTheClusterIsAskedThroughTheAPIServer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var asked []string
	forbidden := ""
	services := `{"kind": "ServiceList", "apiVersion": "v1", "items": [
		{"metadata": {"namespace": "a", "name": "empty", "labels": {"app.kubernetes.io/name": "prometheus"}}, "spec": {"ports": [{"name": "web", "port": 9090}]}},
		{"metadata": {"namespace": "b", "name": "full", "labels": {"operated-prometheus": "true"}}, "spec": {"ports": [{"name": "web", "port": 9090}]}}]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if forbidden != "" && strings.HasSuffix(r.URL.Path, forbidden) {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "services \"x\" is forbidden: User \"u\" cannot get resource \"services/proxy\" in API group \"\""}`)
			return
		}
		switch r.URL.Path {
		case "/api/v1/services":
			fmt.Fprint(w, services)
		case "/api/v1/namespaces/a/services/empty:9090/proxy/api/v1/query":
			asked = append(asked, r.Method+" empty")
			fmt.Fprint(w, `{"status": "success", "data": {"resultType": "vector", "result": []}}`)
		case "/api/v1/namespaces/b/services/full:9090/proxy/api/v1/query":
			asked = append(asked, r.Method+" full")
			fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}, "value": [%d, "2"]}]}}`, now.Unix())
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Service"), meta.RESTScopeNamespace)
	config := &rest.Config{Host: server.URL}
	cluster, err := client.New(config, client.Options{Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	find := func() (*Client, error) {
		return Find(t.Context(), cluster, config, func(ctx context.Context, c *Client) (int, error) {
			found, err := c.At(ctx, "up", now)
			return len(found), err
		})
	}
	found, err := find()
	if err != nil || found.Where != "the Service b/full" || strings.Join(asked, ", ") != "GET empty, GET full" {
		t.Errorf("%+v, %v after %q", found, err, asked)
	}
	for suffix, want := range map[string]string{"/query": "you may not get services/proxy in the namespace a", "/services": "you may not list services, to find Prometheus"} {
		forbidden = suffix
		if _, err := find(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", suffix, err, want)
		}
	}
	forbidden, services = "", `{"kind": "ServiceList", "apiVersion": "v1", "items": []}`
	if _, err := find(); err == nil || !strings.Contains(err.Error(), "no Service of a Prometheus is found in the cluster") {
		t.Error(err)
	}
}
