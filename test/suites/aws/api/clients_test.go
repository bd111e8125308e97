package api_test

import (
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/metrics"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// environ sets environment variables, each given as "name=value".
func environ(t *testing.T, variables ...string) {
	t.Helper()
	for _, v := range variables {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
}

func TestClientsAreConfiguredByEnvironmentAndCountCalls(t *testing.T) {
	server, err := fakeaws.Start(t.Context(), fakeaws.Config{Region: "eu-central-1"})
	if err != nil {
		t.Fatal(err)
	}
	environ(t, server.Env()...)
	environ(t, "AWS_MAX_ATTEMPTS=2")
	m := metrics.New(prometheus.NewRegistry())
	clients, err := api.Load(t.Context(), api.Counted(m.AWSCalls))
	if err != nil {
		t.Fatal(err)
	}
	if clients.Region != "eu-central-1" {
		t.Errorf("region %q", clients.Region)
	}
	if _, err := clients.EC2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}); err != nil {
		t.Error(err)
	}
	if _, err := clients.Pricing.GetProducts(t.Context(), &pricing.GetProductsInput{ServiceCode: new("AmazonEC2")}); err != nil {
		t.Error(err)
	}
	server.Throttle("DescribeSubnets")
	if _, err := clients.EC2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{}); err == nil {
		t.Error("a throttled call succeeded")
	}
	server.Cut("DescribeImages")
	if _, err := clients.EC2.DescribeImages(t.Context(), &ec2.DescribeImagesInput{}); err == nil {
		t.Error("a call without an answer succeeded")
	}
	for labels, want := range map[[3]string]float64{
		{"EC2", "DescribeSubnets", "OK"}:                   1,
		{"EC2", "DescribeSubnets", "RequestLimitExceeded"}: 2,
		{"EC2", "DescribeImages", "Unanswered"}:            2,
		{"Pricing", "GetProducts", "OK"}:                   1,
	} {
		if got := testutil.ToFloat64(m.AWSCalls.WithLabelValues(labels[:]...)); got != want {
			t.Errorf("%v was counted %v times, want %v", labels, got, want)
		}
	}
}

func TestLoadFailsWithoutRegion(t *testing.T) {
	environ(t, "AWS_REGION=", "AWS_DEFAULT_REGION=", "AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	if _, err := api.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("got %v", err)
	}
}
