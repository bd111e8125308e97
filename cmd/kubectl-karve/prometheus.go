package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/pflag"

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

// client returns a client of the Prometheus of --prometheus, or else of the one in the cluster that connect returns, with the most data of Karve.
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
	found, err := promquery.Find(ctx, c, c.config, func(ctx context.Context, p *promquery.Client) (int, error) {
		data, err := history.DataOf(ctx, p, time.Now())
		return int(data), err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: name a Prometheus with --prometheus", err)
	}
	return found, nil
}
