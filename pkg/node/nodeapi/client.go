// Package nodeapi reads, watches and patches one Node, and writes events about it, over plain HTTP. The agent needs little else from the API server. With
// client-go it would have more resident memory than NVIDIA's plugin: designs/0032 has the figures.
package nodeapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/node/backoff"
)

// Client is a client of the API server for one Node.
type Client struct {
	// Server is the address of the API server, for example "https://10.0.0.1:443".
	Server string
	// Name is the name of the Node.
	Name string
	// TokenFile is read for each request, because the kubelet renews the token.
	TokenFile string
	HTTP      *http.Client
	Clock     clock.WithTicker
}

const (
	// serviceAccount is where the kubelet mounts the service account. The environment variable SERVICE_ACCOUNT_DIR names another directory, for an agent
	// that does not run in a pod.
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	maxAnswer      = 8 << 20
	// watchFor is how long a watch lasts. The client waits for its end for callTimeout longer.
	watchFor    = 5 * time.Minute
	callTimeout = 10 * time.Second
	// steady is how long a call of again must last so that the next one follows soon.
	steady = 30 * time.Second
)

// ErrNotInCluster means that there is no service account for the API server.
var ErrNotInCluster = errors.New("not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")

// InCluster returns the Client for a process that runs in a pod.
func InCluster(name string) (*Client, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, ErrNotInCluster
	}
	dir := cmp.Or(os.Getenv("SERVICE_ACCOUNT_DIR"), serviceAccount)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s/ca.crt holds no certificate", dir)
	}
	return &Client{
		Server: "https://" + net.JoinHostPort(host, port), Name: name, TokenFile: filepath.Join(dir, "token"),
		HTTP: &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: callTimeout, IdleConnTimeout: time.Minute,
		}},
	}, nil
}

// Node holds the fields of the Node that the agent needs.
type Node struct {
	Metadata Metadata `json:"metadata"`
	Spec     struct {
		Taints []Taint `json:"taints"`
	} `json:"spec"`
	Status struct {
		Allocatable map[string]string `json:"allocatable"`
		Conditions  []Condition       `json:"conditions"`
	} `json:"status"`
}

// Taint is a taint of the Node.
type Taint struct {
	Key string `json:"key"`
}

// Condition is a condition of the Node.
type Condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Metadata is the metadata of the Node.
type Metadata struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
}

// StatusError is an error that the API server returned.
type StatusError struct {
	Code    int
	Message string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("the API server says %d %s: %s", e.Code, http.StatusText(e.Code), e.Message)
}

// Get returns the Node.
func (c *Client) Get(ctx context.Context) (Node, error) {
	var n Node
	if err := c.do(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(c.Name), nil, &n); err != nil {
		return Node{}, fmt.Errorf("reading node %s: %w", c.Name, err)
	}
	return n, nil
}

// Allocatable returns the Node's allocatable amounts that are whole numbers, as those of devices are.
func (c *Client) Allocatable(ctx context.Context) (map[string]int64, error) {
	n, err := c.Get(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string]int64{}
	for resource, text := range n.Status.Allocatable {
		if q, err := amount.Parse(text); err == nil && amount.Whole(q) {
			out[resource] = amount.Value(q)
		}
	}
	return out, nil
}

// Content types of patches.
const (
	MergePatch     = "application/merge-patch+json"
	StrategicPatch = "application/strategic-merge-patch+json"
)

// Patch patches the Node, or its status if subresource is "status".
func (c *Client) Patch(ctx context.Context, subresource, kind string, patch any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	path := "/api/v1/nodes/" + url.PathEscape(c.Name)
	if subresource != "" {
		path += "/" + subresource
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	// The API server returns only metadata, which is ignored.
	if err := c.call(ctx, http.MethodPatch, path, metadataOnly, kind, body, func(io.Reader) error { return nil }); err != nil {
		return fmt.Errorf("patching node %s: %w", c.Name, err)
	}
	return nil
}

const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// Watch calls f with the Node at first and after each change, until ctx ends. It retries after errors.
func (c *Client) Watch(ctx context.Context, f func(Node)) {
	log := logr.FromContextOrDiscard(ctx)
	version := ""
	c.again(ctx, func() {
		err := c.watchNode(ctx, &version, f)
		if err != nil && ctx.Err() == nil {
			version = "" // Start again from the current version after any error.
			log.Info("The Node cannot be watched; trying again", "error", err.Error())
		}
	})
}

// again calls f until ctx ends, with increasing pauses while f returns quickly.
func (c *Client) again(ctx context.Context, f func()) {
	ticks := c.clock()
	for retry := (backoff.Backoff{}); ctx.Err() == nil; {
		began := ticks.Now()
		f()
		if ticks.Since(began) > steady {
			retry.Reset()
		}
		c.pause(ctx, retry.Next())
	}
}

func (c *Client) clock() clock.WithTicker {
	if c.Clock == nil {
		return clock.RealClock{}
	}
	return c.Clock
}

func (c *Client) pause(ctx context.Context, d time.Duration) {
	timer := c.clock().NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

func (c *Client) watchNode(ctx context.Context, version *string, f func(Node)) error {
	if *version == "" {
		n, err := c.Get(ctx)
		if err != nil {
			return err
		}
		*version = n.Metadata.ResourceVersion
		f(n)
	}
	return c.watch(ctx, "/api/v1/nodes", "metadata.name="+c.Name, version, func(_ string, object json.RawMessage) error {
		var n Node
		if err := json.Unmarshal(object, &n); err != nil {
			return err
		}
		f(n)
		return nil
	})
}

// watch calls changed for each change of the selected objects after the version, and updates the version.
func (c *Client) watch(ctx context.Context, path, selector string, version *string, changed func(kind string, object json.RawMessage) error) error {
	query := url.Values{
		"watch": {"true"}, "fieldSelector": {selector}, "resourceVersion": {*version},
		"allowWatchBookmarks": {"true"}, "timeoutSeconds": {strconv.Itoa(int(watchFor.Seconds()))},
	}
	// The timeout detects connections that are dead without an error.
	ctx, cancel := context.WithTimeout(ctx, watchFor+callTimeout)
	defer cancel()
	return c.call(ctx, http.MethodGet, path+"?"+query.Encode(), "application/json", "", nil, func(body io.Reader) error {
		for decoder := json.NewDecoder(body); ; {
			var event struct {
				Type   string          `json:"type"`
				Object json.RawMessage `json:"object"`
			}
			var object struct {
				Metadata Metadata `json:"metadata"`
				Code     int      `json:"code"`
				Message  string   `json:"message"`
			}
			if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := json.Unmarshal(event.Object, &object); err != nil {
				return err
			}
			if event.Type == "ERROR" {
				return &StatusError{Code: object.Code, Message: object.Message}
			}
			*version = object.Metadata.ResourceVersion
			if event.Type == "BOOKMARK" {
				continue
			}
			if err := changed(event.Type, event.Object); err != nil {
				return err
			}
		}
	})
}

// do calls the API server with a body and decodes its response. Both may be nil.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	contentType := ""
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
		contentType = "application/json"
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.call(ctx, method, path, "application/json", contentType, body, func(answer io.Reader) error {
		if out == nil {
			return nil
		}
		return json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(out)
	})
}

func (c *Client) call(ctx context.Context, method, path, accept, contentType string, body []byte, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, c.Server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("User-Agent", "karve-node")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if c.TokenFile != "" {
		token, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode/100 != 2 {
		var status struct {
			Message string `json:"message"`
		}
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status.Message = strings.TrimSpace(string(text))
		}
		return &StatusError{Code: response.StatusCode, Message: status.Message}
	}
	return read(response.Body)
}
