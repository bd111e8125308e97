// Package promquery asks a Prometheus, or what has its API: Thanos, Mimir.
package promquery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"golang.org/x/net/http/httpguts"
)

const (
	// answerTimeout is how long Prometheus may take for an answer. It ends most queries itself after two minutes.
	answerTimeout = 3 * time.Minute
	// maxAnswer is the maximum size of an answer in bytes. The requests of 10,000 pods over a day have 200 MiB.
	maxAnswer = 512 << 20
	// MaxPoints is the maximum number of points of a series in an answer of Prometheus.
	MaxPoints = 11_000
)

// Client asks a Prometheus.
type Client struct {
	api prometheus.API
	// Where is the address of the Prometheus, for messages.
	Where string
}

// New returns a client. where is the address for messages. The headers are added to each request, such as X-Scope-OrgID with the tenant of a Mimir. transport is nil
// for the default one.
func New(address, where string, headers http.Header, transport http.RoundTripper) (*Client, error) {
	if transport == nil {
		transport = api.DefaultRoundTripper
	}
	at, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("%q is no URL such as http://localhost:9090", address)
	}
	client, err := api.NewClient(api.Config{Address: address, RoundTripper: onlyReads{at.Host, headers, boundedAnswers{transport, maxAnswer}}})
	if err != nil {
		return nil, err
	}
	return &Client{prometheus.NewAPI(client), where}, nil
}

// Headers parses headers of the form KEY=VALUE. Errors do not contain values, which may be secret.
func Headers(texts []string) (http.Header, error) {
	all := http.Header{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if key = strings.TrimSpace(key); !ok || !httpguts.ValidHeaderFieldName(key) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, errors.New("a header is KEY=VALUE, such as X-Scope-OrgID=team")
		}
		all.Add(key, value)
	}
	return all, nil
}

// Range evaluates a query from start to end, in steps.
func (c *Client) Range(ctx context.Context, query string, start, end time.Time, step time.Duration) (model.Matrix, error) {
	value, err := bounded(ctx, func(ctx context.Context) (model.Value, prometheus.Warnings, error) {
		return c.api.QueryRange(ctx, query, prometheus.Range{Start: start, End: end, Step: step})
	})
	if err != nil {
		return nil, c.failed(err)
	}
	answer, ok := value.(model.Matrix)
	if !ok {
		return nil, c.failed(fmt.Errorf("the result is a %s, not a matrix", value.Type()))
	}
	return slices.DeleteFunc(answer, func(s *model.SampleStream) bool { return s == nil }), nil
}

// At evaluates a query at a time.
func (c *Client) At(ctx context.Context, query string, at time.Time) (model.Vector, error) {
	value, err := bounded(ctx, func(ctx context.Context) (model.Value, prometheus.Warnings, error) {
		return c.api.Query(ctx, query, at)
	})
	if err != nil {
		return nil, c.failed(err)
	}
	answer, ok := value.(model.Vector)
	if !ok {
		return nil, c.failed(fmt.Errorf("the result is a %s, not a vector", value.Type()))
	}
	return slices.DeleteFunc(answer, func(s *model.Sample) bool { return s == nil }), nil
}

func (c *Client) failed(err error) error {
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = fmt.Errorf("the answer has more than %d MiB", large.Limit>>20)
	}
	var told *prometheus.Error
	if errors.As(err, &told) && told.Detail != "" {
		const most = 300
		detail := strings.TrimSpace(told.Detail)
		if len(detail) > most {
			detail = detail[:most] + "…"
		}
		err = fmt.Errorf("%w: %s", err, detail)
	}
	return fmt.Errorf("querying Prometheus at %s: %w", c.Where, err)
}

// bounded evaluates a query with a time limit.
func bounded(ctx context.Context, query func(context.Context) (model.Value, prometheus.Warnings, error)) (model.Value, error) {
	slow := fmt.Errorf("it has not answered for %s", answerTimeout)
	ctx, stop := context.WithTimeoutCause(ctx, answerTimeout, slow)
	defer stop()
	value, _, err := query(ctx)
	if err != nil && errors.Is(context.Cause(ctx), slow) {
		return nil, slow
	}
	return value, err
}

// onlyReads sends queries as GET requests: who may read through the API server may not always POST. It adds headers to requests to the host, and to no other to which
// that redirects.
type onlyReads struct {
	host    string
	headers http.Header
	next    http.RoundTripper
}

func (o onlyReads) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	if request.Method == http.MethodPost && request.Body != nil {
		form, err := io.ReadAll(request.Body)
		if err := errors.Join(err, request.Body.Close()); err != nil {
			return nil, err
		}
		request.Method, request.Body, request.ContentLength, request.GetBody = http.MethodGet, nil, 0, nil
		request.URL.RawQuery = string(form)
		request.Header.Del("Content-Type")
	}
	if request.URL.Host == o.host {
		maps.Copy(request.Header, o.headers)
	}
	return o.next.RoundTrip(request)
}

// boundedAnswers makes an answer with more than limit bytes an error.
type boundedAnswers struct {
	http.RoundTripper
	limit int64
}

func (b boundedAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, b.limit)
	}
	return answer, err
}
