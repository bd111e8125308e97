package promquery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Find returns a client of the Prometheus in a cluster. rate returns how much of what is wanted a Prometheus has: of several, Find returns the first of those
// with the most. Requests go through the API server.
func Find(ctx context.Context, cluster client.Reader, config *rest.Config, rate func(context.Context, *Client) (int, error)) (*Client, error) {
	var list corev1.ServiceList
	if err := cluster.List(ctx, &list); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, errors.New("you may not list services, to find Prometheus")
		}
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	services := Services(list.Items)
	if len(services) == 0 {
		return nil, errors.New("no Service of a Prometheus is found in the cluster")
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	var best *Client
	most := 0
	var errs []error
	for _, s := range services {
		proxy := server.JoinPath("api/v1/namespaces", s.Namespace, "services", s.target, "proxy")
		c, err := New(proxy.String(), "the Service "+s.Namespace+"/"+s.Name, nil, transport)
		if err != nil {
			return nil, fmt.Errorf("reaching the cluster: %w", err)
		}
		switch n, err := rate(ctx, c); {
		case err != nil && strings.Contains(err.Error(), "services/proxy"):
			errs = append(errs, fmt.Errorf("you may not get services/proxy in the namespace %s", s.Namespace))
		case err != nil:
			errs = append(errs, err)
		case best == nil || n > most:
			best, most = c, n
		}
	}
	if best == nil {
		return nil, errors.Join(errs...)
	}
	return best, nil
}

// Service is a Service of a Prometheus.
type Service struct {
	Namespace, Name string
	// target is the name with the scheme and the port, for the API server's proxy.
	target string
}

// Services returns the Services of Prometheus and Thanos, as their operators and charts label them. Those of Thanos come first, because it keeps metrics for
// longer.
func Services(all []corev1.Service) []Service {
	var thanos, plain []Service
	for i := range all {
		s := &all[i]
		named, component := s.Labels["app.kubernetes.io/name"], s.Labels["app.kubernetes.io/component"]
		isThanos := slices.Contains([]string{"thanos-query", "thanos-query-frontend", "thanos-querier"}, named) ||
			named == "thanos" && slices.Contains([]string{"query", "query-frontend"}, component)
		isPrometheus := s.Labels["operated-prometheus"] == "true" || s.Labels["app"] == "kube-prometheus-stack-prometheus" ||
			named == "prometheus" && slices.Contains([]string{"", "server", "prometheus"}, component)
		port := webPort(s.Spec.Ports)
		if port == nil || !isThanos && !isPrometheus {
			continue
		}
		target := fmt.Sprintf("%s:%d", s.Name, port.Port)
		if port.Name == "https" || port.Port == 443 {
			target = "https:" + target
		}
		found := Service{s.Namespace, s.Name, target}
		if isThanos {
			thanos = append(thanos, found)
		} else {
			plain = append(plain, found)
		}
	}
	return append(thanos, plain...)
}

// webPort returns the port of the API among the ports of a Service, or nil if there is none.
func webPort(ports []corev1.ServicePort) *corev1.ServicePort {
	for _, name := range []string{"web", "http-web", "http", "https"} {
		for i := range ports {
			if ports[i].Name == name {
				return &ports[i]
			}
		}
	}
	if len(ports) == 1 {
		return &ports[0]
	}
	return nil
}
