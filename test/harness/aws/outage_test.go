package aws_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"

	"karve.sh/karve/pkg/cloud/aws/api"
	localaws "karve.sh/karve/test/harness/aws"
)

func TestOutages(t *testing.T) {
	t.Parallel()
	s, err := localaws.Start(t.Context(), localaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	clients := api.New(localaws.ClientConfig(s.URL))
	call := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := clients.EC2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{})
		return err
	}
	for _, c := range []struct {
		name    string
		fault   func(...string)
		garbled string
	}{
		{"down", s.Down, "an answer with HTTP status 503 that"},
		{"garbled", s.Garble, "an answer with HTTP status 200 that cannot be decoded"},
		{"cut", s.Cut, ""},
	} {
		c.fault("EC2")
		err := call()
		if got := api.Garbled(err); err == nil || len(got) < len(c.garbled) || got[:len(c.garbled)] != c.garbled {
			t.Errorf("%s: %q of %v, want %q", c.name, got, err, c.garbled)
		}
		s.Heal()
	}
	s.Hang("EC2")
	if err := call(); !errors.Is(err, context.DeadlineExceeded) || api.Garbled(err) != "" {
		t.Errorf("a call that hangs gives %v", err)
	}
	s.Heal()
	if _, err := clients.EC2.DescribeInstanceTypes(t.Context(), &ec2.DescribeInstanceTypesInput{}); err != nil {
		t.Errorf("after the outages: %v", err)
	}
}
