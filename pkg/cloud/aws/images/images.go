// Package images finds the images for GPU nodes that AWS publishes for EKS.
package images

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"k8s.io/utils/ptr"

	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws"
)

// Architectures, by their names in Kubernetes.
const (
	AMD64 = "amd64"
	ARM64 = "arm64"
)

func awsArchitecture(architecture string) string {
	if architecture == AMD64 {
		return string(ec2types.ArchitectureTypeX8664)
	}
	return architecture
}

// Image is a machine image.
type Image struct {
	// ID is the AMI ID, such as ami-0123456789abcdef0.
	ID string
	// Name is the name of the image in EC2.
	Name string
	// Architecture is amd64 or arm64. Any other architecture has EC2's name.
	Architecture string
	// Created is when the image was created. It is zero if EC2 does not report it.
	Created time.Time
	// Deprecated reports whether the publisher has deprecated the image.
	Deprecated bool
	// State is the state in EC2, which is available if the image can be launched.
	State string
}

// Release returns the release of the image, or its ID if the name has no release.
func (i Image) Release() string { return aws.ReleaseOf(i.ID, i.Name) }

// Finder reads images from AWS.
type Finder struct {
	SSM *ssm.Client
	EC2 *ec2.Client
	Now func() time.Time
}

// Release is a release of GPU images, with one image for each requested architecture.
type Release struct {
	Name   string
	Images []Image
}

// newest stands for the newest release in calls of find and Parameter.
const newest = ""

// Newest returns the newest release that AWS recommends for a version of Kubernetes, such as "1.34". All its images have the same release. While AWS
// publishes a new release one architecture at a time, Newest returns the older one.
func (f *Finder) Newest(ctx context.Context, family aws.Family, kubernetes string, architectures []string) (Release, error) {
	found, err := f.find(ctx, family, kubernetes, newest, architectures)
	if err != nil {
		return Release{}, err
	}
	oldest := slices.MinFunc(found, func(a, b Image) int { return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID)) })
	if !slices.ContainsFunc(found, func(i Image) bool { return i.Release() != oldest.Release() }) {
		return Release{oldest.Release(), found}, nil
	}
	return f.Release(ctx, family, kubernetes, oldest.Release(), architectures)
}

// Release returns the release with the name. The name of a Bottlerocket release may start with v, as on its releases page.
func (f *Finder) Release(ctx context.Context, family aws.Family, kubernetes, name string, architectures []string) (Release, error) {
	if family == aws.Bottlerocket {
		name = strings.TrimPrefix(name, "v")
	}
	found, err := f.find(ctx, family, kubernetes, name, architectures)
	if err != nil {
		return Release{}, err
	}
	return Release{name, found}, nil
}

func (f *Finder) find(ctx context.Context, family aws.Family, kubernetes, release string, architectures []string) ([]Image, error) {
	ids := make([]string, 0, len(architectures))
	for _, architecture := range architectures {
		parameter := Parameter(family, kubernetes, architecture, release)
		out, err := f.SSM.GetParameter(ctx, &ssm.GetParameterInput{Name: &parameter})
		if err != nil {
			return nil, explained(err, "SSM parameter "+parameter, "ssm:GetParameter")
		}
		if out.Parameter == nil || out.Parameter.Value == nil || !strings.HasPrefix(*out.Parameter.Value, "ami-") {
			return nil, &cloud.ImageError{Reason: NotFound, Message: "SSM parameter " + parameter + " does not hold the id of an image"}
		}
		ids = append(ids, *out.Parameter.Value)
	}
	return f.Describe(ctx, ids)
}

// Parameter returns the name of the public SSM parameter with the ID of a GPU image, as Karpenter's AWS provider reads it for an alias. If release is "",
// it is the parameter of the recommended image.
// https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html and
// https://github.com/bottlerocket-os/bottlerocket/blob/develop/QUICKSTART-EKS.md
func Parameter(family aws.Family, kubernetes, architecture, release string) string {
	architecture = awsArchitecture(architecture)
	if family == aws.Bottlerocket {
		return fmt.Sprintf("/aws/service/bottlerocket/aws-k8s-%s-nvidia/%s/%s/image_id", kubernetes, architecture, cmp.Or(release, "latest"))
	}
	name := "recommended"
	if release != newest {
		name = fmt.Sprintf("amazon-eks-node-al2023-%s-nvidia-%s-%s", architecture, kubernetes, release)
	}
	return fmt.Sprintf("/aws/service/eks/optimized-ami/%s/amazon-linux-2023/%s/nvidia/%s/image_id", kubernetes, architecture, name)
}

// Describe returns the images with the IDs. It returns an error if one of them does not exist.
func (f *Finder) Describe(ctx context.Context, ids []string) ([]Image, error) {
	out, err := f.EC2.DescribeImages(ctx, &ec2.DescribeImagesInput{ImageIds: ids, IncludeDeprecated: new(true)})
	if err != nil {
		return nil, explained(err, "images "+strings.Join(ids, ", "), "ec2:DescribeImages")
	}
	images := make([]Image, 0, len(ids))
	for _, id := range ids {
		i := slices.IndexFunc(out.Images, func(image ec2types.Image) bool { return ptr.Deref(image.ImageId, "") == id })
		if i < 0 {
			return nil, &cloud.ImageError{Reason: NotFound, Message: "there is no image " + id + " that this account may use"}
		}
		images = append(images, f.imageOf(&out.Images[i]))
	}
	return images, nil
}

// Missing returns the IDs for which there is no available image that this account may use.
func (f *Finder) Missing(ctx context.Context, ids []string) ([]string, error) {
	// The call uses a filter because an unknown ID in ImageIds is an error.
	out, err := f.EC2.DescribeImages(ctx, &ec2.DescribeImagesInput{
		Filters: []ec2types.Filter{{Name: new("image-id"), Values: ids}}, IncludeDeprecated: new(true), IncludeDisabled: new(true),
	})
	if err != nil {
		return nil, explained(err, "images "+strings.Join(ids, ", "), "ec2:DescribeImages")
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		return slices.ContainsFunc(out.Images, func(image ec2types.Image) bool {
			return ptr.Deref(image.ImageId, "") == id && (image.State == "" || image.State == ec2types.ImageStateAvailable)
		})
	}), nil
}

func (f *Finder) imageOf(described *ec2types.Image) Image {
	architecture := string(described.Architecture)
	if described.Architecture == ec2types.ArchitectureValuesX8664 {
		architecture = AMD64
	}
	deprecation := timeOf(described.DeprecationTime)
	return Image{
		ID: ptr.Deref(described.ImageId, ""), Name: ptr.Deref(described.Name, ""), Architecture: architecture, Created: timeOf(described.CreationDate),
		Deprecated: !deprecation.IsZero() && !f.Now().Before(deprecation), State: string(described.State),
	}
}

func timeOf(s *string) time.Time {
	t, err := time.Parse(time.RFC3339, ptr.Deref(s, ""))
	if err != nil {
		return time.Time{}
	}
	return t
}

// Usable returns why an image cannot or should not be launched, or "" if it is usable.
func (i Image) Usable() string {
	switch {
	case i.State != "" && i.State != string(ec2types.ImageStateAvailable):
		return fmt.Sprintf("image %s is %s and not available", i.ID, i.State)
	case i.Deprecated:
		return fmt.Sprintf("image %s is deprecated by whoever published it", i.ID)
	case i.Architecture != AMD64 && i.Architecture != ARM64:
		return fmt.Sprintf("image %s is for the architecture %s", i.ID, i.Architecture)
	}
	return ""
}
