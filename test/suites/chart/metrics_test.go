package chart_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestSecureMetricsRequireAuthorization runs the controller on its own API server, which authenticates and authorizes the scraper.
func TestSecureMetricsRequireAuthorization(t *testing.T) {
	cluster.Long(t)
	c := cluster.ForTest(t, cluster.Config{})
	k, err := karve.Start(t.Context(), c, karve.Options{Alone: true, Values: []string{"controller.metrics.secure=true"}})
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	nobody, prometheus := account(t, api, "nobody"), account(t, api, "prometheus")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scrapes"}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	if _, err := api.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scrapes"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}},
	}
	if _, err := api.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, token string
		want        int
	}{
		{"without a token", "", http.StatusUnauthorized},
		{"with an invalid token", "made.up.token", http.StatusInternalServerError}, // The filter returns this status if the API server cannot parse the token.
		{"with an unauthorized token", nobody, http.StatusForbidden},
		{"with an authorized token", prometheus, http.StatusOK},
	} {
		got, body := scrape(t, k.MetricsURL, tc.token)
		for deadline := time.Now().Add(30 * time.Second); got != tc.want && time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			got, body = scrape(t, k.MetricsURL, tc.token) // The API server may not have loaded the role yet.
		}
		if got != tc.want || strings.Contains(body, "karve_") != (tc.want == http.StatusOK) {
			t.Errorf("%s the metrics answer %d, want %d: %.200s", tc.name, got, tc.want, body)
		}
	}
}

// account creates a service account and returns a token for it.
func account(t *testing.T, api kubernetes.Interface, name string) string {
	t.Helper()
	accounts := api.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// scrape gets the metrics as Prometheus does, without checking the certificate.
func scrape(t *testing.T, url, token string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	res, err := client.Do(req)
	for errors.Is(err, syscall.ECONNREFUSED) && ctx.Err() == nil { // The probes answer before the certificate exists.
		time.Sleep(100 * time.Millisecond)
		res, err = client.Do(req)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
}

func TestServiceMonitorMatchesMetricsScheme(t *testing.T) {
	for _, secure := range []bool{false, true} {
		options := []string{needed, "--set=serviceMonitor.enabled=true"}
		if secure {
			options = append(options, "--set=controller.metrics.secure=true")
		}
		all := objects(t, options...)
		endpoint := into[monitoringv1.ServiceMonitor](t, all, "ServiceMonitor").Spec.Endpoints[0]
		_, o := started(t, options...)
		if o.MetricsSecure != secure {
			t.Errorf("the controller serves TLS: %t, want %t", o.MetricsSecure, secure)
		}
		https := endpoint.Scheme != nil && *endpoint.Scheme == "https"
		if https != secure || (endpoint.BearerTokenFile != "") != secure || (endpoint.TLSConfig != nil) != secure { //nolint:staticcheck // The operator has nothing in its place for Prometheus' own token.
			t.Errorf("secured: %t; the monitor's endpoint is %+v", secure, endpoint)
		}
	}
}
