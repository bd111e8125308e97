// Package api makes clients for the AWS APIs that provide instance types, prices, quotas and GPU images.
package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	awspricing "github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
)

// Clients are clients for the AWS APIs of one region.
type Clients struct {
	Region  string
	EC2     *ec2.Client
	SSM     *ssm.Client
	Pricing *pricing.Client
	Quotas  *servicequotas.Client
}

// answerTimeout is how long AWS may take to begin an answer. Without it, a call to a service that accepts a connection and then hangs would last until the
// context ends.
const answerTimeout = 20 * time.Second

// Load makes clients from the environment, as is usual for AWS: it takes credentials from EKS Pod Identity, IRSA or the standard variables and files, and
// the region from AWS_REGION or else from the metadata of the machine.
func Load(ctx context.Context, options ...func(*config.LoadOptions) error) (*Clients, error) {
	patient := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.ResponseHeaderTimeout = answerTimeout })
	c, err := config.LoadDefaultConfig(ctx, append([]func(*config.LoadOptions) error{config.WithHTTPClient(patient)}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("reading the AWS configuration: %w", err)
	}
	if c.Region == "" {
		found, err := imds.NewFromConfig(c).GetRegion(ctx, nil)
		if err != nil {
			return nil, fmt.Errorf("finding the AWS region, which AWS_REGION would tell: %w", err)
		}
		c.Region = found.Region
	}
	return New(c), nil
}

// Once returns a function that loads the clients when it is first called, so that AWS is not called unless something of it is needed. It tries again after an error.
func Once(load func(context.Context) (*Clients, error)) func(context.Context) (*Clients, error) {
	var mu sync.Mutex
	var loaded *Clients
	return func(ctx context.Context) (*Clients, error) {
		mu.Lock()
		defer mu.Unlock()
		if loaded != nil {
			return loaded, nil
		}
		var err error
		loaded, err = load(ctx)
		return loaded, err
	}
}

// New makes clients from a configuration.
func New(c awssdk.Config) *Clients {
	return &Clients{Region: c.Region, EC2: ec2.NewFromConfig(c), SSM: ssm.NewFromConfig(c), Pricing: awspricing.NewAPI(c), Quotas: servicequotas.NewFromConfig(c)}
}
