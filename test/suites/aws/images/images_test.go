package images_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/images"
	localaws "karve.sh/karve/test/harness/aws"
)

// found returns a finder on a local AWS.
func found(t *testing.T) (*localaws.Server, *images.Finder) {
	t.Helper()
	s, err := localaws.Start(t.Context(), localaws.Config{KubernetesVersion: "1.34"})
	if err != nil {
		t.Fatal(err)
	}
	clients := api.New(localaws.ClientConfig(s.URL))
	return s, &images.Finder{SSM: clients.SSM, EC2: clients.EC2, Now: clock.RealClock{}.Now}
}

var both = []string{images.AMD64, images.ARM64}

func TestNewestReleaseIsFoundForBothArchitectures(t *testing.T) {
	t.Parallel()
	s, finder := found(t)
	for family, c := range map[aws.Family]struct {
		published  localaws.Family
		first, new string
	}{
		aws.AL2023:       {localaws.AL2023, "v20260815", "v20261112"},
		aws.Bottlerocket: {localaws.Bottlerocket, "1.51.0", "1.60.0"},
	} {
		t.Run(string(family), func(t *testing.T) {
			t.Parallel()
			for _, want := range []string{c.first, c.new} {
				got, err := finder.Newest(t.Context(), family, "1.34", both)
				if err != nil {
					t.Fatal(err)
				}
				if got.Name != want || len(got.Images) != 2 {
					t.Fatalf("newest is %+v, want %s", got, want)
				}
				for i, image := range got.Images {
					if image.Architecture != both[i] || image.Release() != want || !strings.Contains(image.Name, "nvidia") || image.Usable() != "" || image.Created.IsZero() {
						t.Errorf("%s is %+v", both[i], image)
					}
				}
				s.PublishRelease(c.published, c.new)
			}
			former, err := finder.Release(t.Context(), family, "1.34", c.first, both[:1])
			if err != nil || former.Name != c.first || former.Images[0].Release() != c.first {
				t.Errorf("release %s is %+v, %v", c.first, former, err)
			}
		})
	}
	if got, err := finder.Release(t.Context(), aws.Bottlerocket, "1.34", "v1.51.0", both); err != nil || got.Name != "1.51.0" {
		t.Errorf("with a v before it, a release of Bottlerocket is %+v, %v", got, err)
	}
}

// AWS publishes a release one architecture after the other.
func TestNewestReleaseHasImagesForAllArchitectures(t *testing.T) {
	t.Parallel()
	s, finder := found(t)
	s.PublishImage(localaws.Image{Family: localaws.AL2023, Variant: localaws.NVIDIA, Arch: "arm64", Version: "v20261112"})
	got, err := finder.Newest(t.Context(), aws.AL2023, "1.34", both)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "v20260815" || got.Images[0].Release() != got.Name || got.Images[1].Release() != got.Name {
		t.Errorf("newest is %+v, want v20260815 until the other architecture is there too", got)
	}
	if got, err := finder.Newest(t.Context(), aws.AL2023, "1.34", both[1:]); err != nil || got.Name != "v20261112" {
		t.Errorf("for arm64 alone it is %+v, %v", got, err)
	}
}

func TestUnusableImagesHaveReason(t *testing.T) {
	t.Parallel()
	s, finder := found(t)
	image := s.PublishImage(localaws.Image{Family: localaws.AL2023, Variant: localaws.NVIDIA, Arch: "arm64", Version: "v20261112"})
	s.DeprecateImage(image.ID)
	got, err := finder.Describe(t.Context(), []string{image.ID})
	if err != nil {
		t.Fatal(err)
	}
	if why := got[0].Usable(); got[0].Architecture != images.ARM64 || !strings.Contains(why, image.ID+" is deprecated") {
		t.Errorf("a deprecated image is %+v, usable %q", got[0], why)
	}
	for want, i := range map[string]images.Image{
		"":                          {ID: "ami-1", Architecture: images.AMD64, State: "available"},
		"is pending":                {ID: "ami-1", Architecture: images.AMD64, State: "pending"},
		"for the architecture i386": {ID: "ami-1", Architecture: "i386", State: "available"},
	} {
		if why := i.Usable(); !strings.Contains(why, want) || want == "" && why != "" {
			t.Errorf("%+v: %q, want %q", i, why, want)
		}
	}
}

func TestErrorsHaveReasonAndRemedy(t *testing.T) {
	t.Parallel()
	newest := func(f *images.Finder) error {
		_, err := f.Newest(t.Context(), aws.AL2023, "1.34", both)
		return err
	}
	for name, c := range map[string]struct {
		fault  func(*localaws.Server)
		ask    func(*images.Finder) error
		reason string
		says   []string
	}{
		"SSM denied":       {func(s *localaws.Server) { s.Deny("GetParameter") }, newest, images.Denied, []string{"allow the controller's role ssm:GetParameter", "/x86_64/nvidia/recommended/image_id"}},
		"EC2 denied":       {func(s *localaws.Server) { s.Deny("DescribeImages") }, newest, images.Denied, []string{"ec2:DescribeImages", "ami-"}},
		"throttled by SSM": {func(s *localaws.Server) { s.Throttle("SSM") }, newest, images.Throttled, []string{"too often"}},
		"throttled by EC2": {func(s *localaws.Server) { s.Throttle("EC2") }, newest, images.Throttled, []string{"too often"}},
		"unreachable":      {func(s *localaws.Server) { s.Cut("SSM") }, newest, images.Unreachable, []string{"is tried again"}},
		"unknown Kubernetes version": {func(*localaws.Server) {}, func(f *images.Finder) error {
			_, err := f.Newest(t.Context(), aws.Bottlerocket, "1.20", both)
			return err
		}, images.NotFound, []string{"SSM parameter /aws/service/bottlerocket/aws-k8s-1.20-nvidia/x86_64/latest/image_id"}},
		"unknown release": {func(*localaws.Server) {}, func(f *images.Finder) error {
			_, err := f.Release(t.Context(), aws.AL2023, "1.34", "v19990101", both)
			return err
		}, images.NotFound, []string{"amazon-eks-node-al2023-x86_64-nvidia-1.34-v19990101"}},
		"unknown image": {func(*localaws.Server) {}, func(f *images.Finder) error {
			_, err := f.Describe(t.Context(), []string{"ami-00000000000000000"})
			return err
		}, images.NotFound, []string{"ami-00000000000000000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, finder := found(t)
			c.fault(s)
			err := c.ask(finder)
			if err == nil {
				t.Fatal("there is no error")
			}
			e := images.ErrorOf(fmt.Errorf("asking: %w", err))
			if e.Reason != c.reason {
				t.Errorf("the reason is %s, want %s: %v", e.Reason, c.reason, err)
			}
			for _, part := range c.says {
				if !strings.Contains(e.Message, part) {
					t.Errorf("%q does not say %q", e.Message, part)
				}
			}
		})
	}
	if e := images.ErrorOf(errors.New("no region")); e.Reason != images.Unreachable || e.Message != "no region" {
		t.Errorf("an error of others is %+v", e)
	}
}

func TestMissingCredentialsAreReported(t *testing.T) {
	t.Parallel()
	s, _ := found(t)
	clients, err := api.Load(t.Context(), config.WithRegion("us-east-1"), config.WithBaseEndpoint(s.URL), config.WithCredentialsProvider(noCredentials{}))
	if err != nil {
		t.Fatal(err)
	}
	finder := &images.Finder{SSM: clients.SSM, EC2: clients.EC2, Now: clock.RealClock{}.Now}
	_, err = finder.Newest(t.Context(), aws.AL2023, "1.34", both)
	if e := images.ErrorOf(err); e.Reason != images.Denied || !strings.Contains(e.Message, "EKS Pod Identity or IRSA") {
		t.Errorf("the error is %s: %s", e.Reason, e.Message)
	}
}

func TestReleaseOfImageName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"amazon-eks-node-al2023-x86_64-nvidia-1.34-v20261112":      "v20261112",
		"amazon-eks-node-al2023-arm64-nvidia-1.34-v20261112":       "v20261112",
		"bottlerocket-aws-k8s-1.34-nvidia-x86_64-v1.49.0-713f44ce": "1.49.0",
		"bottlerocket-aws-k8s-1.34-nvidia-aarch64-v1.49.0":         "1.49.0",
		"golden-gpu-image-7": "ami-7",
		"":                   "ami-7",
	} {
		if got := (images.Image{ID: "ami-7", Name: name}).Release(); got != want {
			t.Errorf("the release of %q is %q, want %q", name, got, want)
		}
	}
}

func TestFamilyOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]aws.Family{"al2023": aws.AL2023, "AL2023": aws.AL2023, "bottlerocket": aws.Bottlerocket, "al2": "", "Custom": "", "": ""} {
		if got, ok := aws.FamilyOf(name); got != want || ok != (want != "") {
			t.Errorf("the family of %q is %q, %t", name, got, ok)
		}
	}
}

// noCredentials is a credentials provider without credentials.
type noCredentials struct{}

func (noCredentials) Retrieve(context.Context) (c awssdk.Credentials, err error) {
	return c, errors.New("no EC2 IMDS role found")
}
