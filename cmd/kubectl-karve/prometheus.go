package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"karve.sh/karve/pkg/cost"
	"karve.sh/karve/pkg/cost/history"
	"karve.sh/karve/pkg/promquery"
	"karve.sh/karve/pkg/ui"
)

type prometheusFlags struct {
	url     string
	headers []string
	// cluster is the label cluster of the metrics.
	cluster string
}

func (p *prometheusFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&p.url, "prometheus", "", "URL of a Prometheus, Thanos or Mimir, instead of the Prometheus in the cluster")
	fs.StringArrayVar(&p.headers, "header", nil, "header of the requests to --prometheus as KEY=VALUE, such as X-Scope-OrgID=team for the tenant of a Mimir; may be repeated")
	fs.StringVar(&p.cluster, "cluster-label", "", "the label cluster of the metrics, if the Prometheus has those of several clusters")
}

// costs returns what the page asks for costs. It looks for the Prometheus when somebody asks, and again until it is found.
func (p *prometheusFlags) costs(c connection) ui.Costs {
	var mu sync.Mutex
	var client *promquery.Client
	find := func(ctx context.Context) (*promquery.Client, error) {
		mu.Lock()
		defer mu.Unlock()
		if client != nil {
			return client, nil
		}
		found, err := p.client(ctx, func() (connection, error) { return c, nil })
		client = found
		return found, err
	}
	return func(ctx context.Context, r cost.Range, by cost.Grouping) (*cost.Ledger, error) {
		found, err := find(ctx)
		if err != nil {
			return nil, err
		}
		return history.Ledger(ctx, found, history.Query{Range: r, By: by, Cluster: p.cluster, Now: time.Now()})
	}
}

// client returns a client of the Prometheus of --prometheus, or else of the one in the cluster that connect returns.
func (p *prometheusFlags) client(ctx context.Context, connect func() (connection, error)) (*promquery.Client, error) {
	headers, err := promquery.Headers(p.headers)
	if err != nil {
		return nil, fmt.Errorf("--header: %w", err)
	}
	if p.url != "" {
		client, err := promquery.New(p.url, p.url, headers, nil)
		if err != nil {
			err = fmt.Errorf("--prometheus: %w", err)
		}
		return client, err
	}
	if len(headers) > 0 {
		return nil, errors.New("--header needs --prometheus")
	}
	c, err := connect()
	if err != nil {
		return nil, err
	}
	return c.prometheus(ctx, time.Now())
}

// prometheus returns a client of the Prometheus in the cluster. If there are several, it is the one with the costs of Karve. Requests go through the API server.
func (c connection) prometheus(ctx context.Context, now time.Time) (*promquery.Client, error) {
	var services corev1.ServiceList
	if err := c.List(ctx, &services); err != nil {
		if apierrors.IsForbidden(err) {
			return nil, errors.New("you may not list services, to find Prometheus: name one with --prometheus")
		}
		return nil, fmt.Errorf("listing Services: %w", err)
	}
	candidates := prometheusServices(services.Items)
	if len(candidates) == 0 {
		return nil, errors.New("no Service of a Prometheus is found in the cluster: name one with --prometheus")
	}
	transport, err := rest.TransportFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("reaching the cluster: %w", err)
	}
	var best *promquery.Client
	most := history.Nothing - 1
	var errs []error
	for _, s := range candidates {
		url := c.core.Get().Namespace(s.namespace).Resource("services").Name(s.target).SubResource("proxy").URL()
		client, err := promquery.New(url.String(), "the Service "+s.namespace+"/"+s.name, nil, transport)
		if err != nil {
			return nil, err
		}
		has, err := history.DataOf(ctx, client, now)
		switch {
		case err != nil:
			errs = append(errs, reachable(err, s))
		case has > most:
			best, most = client, has
		}
	}
	if best == nil {
		return nil, errors.Join(errs...)
	}
	return best, nil
}

// reachable says what to do about an error of a request through the API server.
func reachable(err error, s prometheusService) error {
	if strings.Contains(err.Error(), "services/proxy") {
		return fmt.Errorf("you may not get services/proxy in the namespace %s: name a Prometheus with --prometheus", s.namespace)
	}
	return fmt.Errorf("%w: name a Prometheus with --prometheus", err)
}

type prometheusService struct {
	namespace, name string
	// target is the name with the scheme and the port, for the API server's proxy.
	target string
}

// prometheusServices returns the Services of Prometheus and Thanos, as their operators and charts label them. Those of Thanos come first, because it keeps metrics for
// longer.
func prometheusServices(all []corev1.Service) []prometheusService {
	var thanos, plain []prometheusService
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
		found := prometheusService{s.Namespace, s.Name, target}
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
