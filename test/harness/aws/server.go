// Package aws is a local AWS: a server on loopback for clients of the real SDK. It serves the calls of EC2, SSM, Pricing, Service Quotas, EKS, IAM, SQS and STS that
// Karve and Karpenter's AWS provider make. The region is held in memory. The server can simulate AWS's failures.
package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	iamtypes "github.com/aws/aws-sdk-go-v2/service/iam/types"
)

// Config configures the region and its cluster. The zero value is a cluster called karve in us-east-1.
type Config struct {
	// Address is the listen address; a free port on loopback when empty. Clients find a server again that restarts at the same address.
	Address string
	// Region is us-east-1 when empty. Its zones are the region's name with the letters a to f. Its instance types are those of us-east-1.
	Region string
	// ClusterName is the name of the EKS cluster, and the value of the tag karpenter.sh/discovery on its subnets and security group; "karve" when empty.
	ClusterName string
	// ClusterEndpoint is the cluster's API server as EKS returns it; a name that does not resolve when empty.
	ClusterEndpoint string
	// KubernetesVersion is the version of the control plane and of the first images; "1.37" when empty.
	KubernetesVersion string
	// Queue is the name of the SQS queue of interruption messages; the cluster's name when empty.
	Queue string
	// LaunchTime is how long an instance is pending before it runs. ShutdownTime is how long it shuts down. 0 skips the state.
	LaunchTime, ShutdownTime time.Duration
	// AllTypes serves all types of EC2 in us-east-1, more than a thousand. By default the server has those with NVIDIA GPUs and a few others.
	AllTypes bool
}

// Server is a running region.
type Server struct {
	// URL is the value of AWS_ENDPOINT_URL for all services.
	URL string

	config Config
	http   *http.Server

	machines map[string]machine // by name
	requests atomic.Int64

	mu           sync.Mutex // guards all below
	ids          int
	calls        map[string]int
	refusals     []Refusal
	faults       map[string]fault   // by action or service
	prices       map[string]float64 // overrides, by type, and by type and zone for spot
	quotas       map[string]float64 // by code
	images       []Image            // in the order of their publication
	parameters   map[string]string
	templates    map[string]template // by name
	profiles     map[string]*iamtypes.InstanceProfile
	instances    map[string]*instance
	reservations map[string]*reservation // by ID
	launched     []*instance
	watchers     []*watcher
	policies     map[string]Policy  // by access key
	elsewhere    map[string]*Server // other regions that clients called, by name
	queue        []*message
	arrived      chan struct{} // closed when a message arrives
}

// zoneLetters are the last letters of the zones' names.
const zoneLetters = "abcdef"

// Start starts a server. It stops when the context is done or Stop is called.
func Start(ctx context.Context, config Config) (*Server, error) {
	config = config.withDefaults()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", config.Address)
	if err != nil {
		return nil, fmt.Errorf("listening for AWS's clients: %w", err)
	}
	s := region(config)
	s.URL = "http://" + listener.Addr().String()
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go func() {
		if err := s.http.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			panic(fmt.Sprintf("serving AWS: %v", err))
		}
	}()
	context.AfterFunc(ctx, s.Stop)
	return s, nil
}

// region returns a new region with the first images and a role for nodes.
func region(config Config) *Server {
	s := &Server{
		config:       config,
		machines:     machines(config.AllTypes),
		calls:        map[string]int{},
		faults:       map[string]fault{},
		prices:       map[string]float64{},
		quotas:       map[string]float64{},
		parameters:   map[string]string{},
		templates:    map[string]template{},
		profiles:     map[string]*iamtypes.InstanceProfile{},
		instances:    map[string]*instance{},
		reservations: map[string]*reservation{},
		arrived:      make(chan struct{}),
		policies:     map[string]Policy{},
		elsewhere:    map[string]*Server{},
	}
	s.publishFirst()
	profile := s.newProfile(s.NodeRole(), "/", nil)
	profile.Roles = append(profile.Roles, s.role())
	return s
}

// in returns a region by its name. Regions other than the server's own have instance types and images, but no cluster and no network.
func (s *Server) in(name string) *Server {
	if name == s.config.Region {
		return s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	other, ok := s.elsewhere[name]
	if !ok {
		other = region(Config{Region: name, KubernetesVersion: s.config.KubernetesVersion, AllTypes: s.config.AllTypes})
		s.elsewhere[name] = other
	}
	return other
}

// Stop stops the server and closes its connections.
func (s *Server) Stop() { _ = s.http.Close() }

// Env returns the environment variables that point a program's SDK clients to this server, as "name=value".
func (s *Server) Env() []string { return s.env("local") }

func (s *Server) env(accessKey string) []string {
	return []string{
		"AWS_REGION=" + s.config.Region,
		"AWS_ACCESS_KEY_ID=" + accessKey,
		"AWS_SECRET_ACCESS_KEY=local",
		"AWS_EC2_METADATA_DISABLED=true",
		"AWS_ENDPOINT_URL=" + s.URL,
		"AWS_ENDPOINT_URL_PRICING=" + s.URL,
	}
}

// KarpenterEnv returns Env and the variables that tell Karpenter's AWS provider about the cluster.
func (s *Server) KarpenterEnv() []string {
	return append(s.Env(),
		"CLUSTER_NAME="+s.config.ClusterName,
		"INTERRUPTION_QUEUE="+s.config.Queue,
	)
}

func (c Config) withDefaults() Config {
	for field, value := range map[*string]string{
		&c.Address:           "127.0.0.1:0",
		&c.Region:            "us-east-1",
		&c.ClusterName:       "karve",
		&c.ClusterEndpoint:   "https://cluster.invalid",
		&c.KubernetesVersion: "1.37",
	} {
		if *field == "" {
			*field = value
		}
	}
	if c.Queue == "" {
		c.Queue = c.ClusterName
	}
	return c
}

func (*Server) now() time.Time { return time.Now() }

// nextID returns a unique ID such as "i-0000000000000002a".
func (s *Server) nextID(kind string) string {
	s.ids++
	return fmt.Sprintf("%s-%017x", kind, s.ids)
}
