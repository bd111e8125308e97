package aws

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// Family is the family of an image, as Karpenter's alias names it.
type Family string

// The image families.
const (
	AL2023       Family = "al2023"
	Bottlerocket Family = "bottlerocket"
)

// Variant is the kind of machine that an image is for.
type Variant string

// The image variants.
const (
	Standard Variant = "standard"
	NVIDIA   Variant = "nvidia"
	Neuron   Variant = "neuron"
)

// Image is a machine image that AWS publishes for EKS.
type Image struct {
	// ID is derived from the other fields when empty.
	ID         string
	Family     Family
	Variant    Variant
	Kubernetes string // "1.37"; the control plane's version when empty
	Arch       string // "x86_64" or "arm64"; x86_64 when empty
	// Version is the version in the alias: "v20260801" for al2023, "1.50.0" for bottlerocket (without v).
	Version string
	// Created is now when zero.
	Created time.Time
	// Deprecated makes EC2 return a DeprecationTime in the past.
	Deprecated bool
}

// firstImages are the initial releases, the oldest first, with their age. Each is published for every variant and architecture.
var firstImages = []struct {
	family  Family
	version string
	age     time.Duration
}{
	{AL2023, "v20260801", 30 * 24 * time.Hour},
	{AL2023, "v20260815", 10 * 24 * time.Hour},
	{Bottlerocket, "1.50.0", 30 * 24 * time.Hour},
	{Bottlerocket, "1.51.0", 10 * 24 * time.Hour},
}

// builds are the variants and architectures that each family is published for.
var builds = map[Family][]Image{
	AL2023: {
		{Arch: "x86_64", Variant: Standard},
		{Arch: "x86_64", Variant: NVIDIA},
		{Arch: "x86_64", Variant: Neuron},
		{Arch: "arm64", Variant: Standard},
		{Arch: "arm64", Variant: NVIDIA},
	},
	Bottlerocket: {
		{Arch: "x86_64", Variant: Standard},
		{Arch: "x86_64", Variant: NVIDIA},
		{Arch: "arm64", Variant: Standard},
		{Arch: "arm64", Variant: NVIDIA},
	},
}

// publishFirst publishes the initial releases for the control plane's version.
func (s *Server) publishFirst() {
	for _, release := range firstImages {
		for _, i := range builds[release.family] {
			i.Family, i.Version, i.Created = release.family, release.version, s.now().Add(-release.age)
			s.publish(i)
		}
	}
}

// PublishImage adds an image and makes it the recommended or latest one of its family, variant, Kubernetes version and architecture.
func (s *Server) PublishImage(image Image) Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publish(image)
}

// PublishRelease publishes a version for every variant and architecture of a family, as AWS does, and returns the images.
func (s *Server) PublishRelease(family Family, version string) []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	var images []Image
	for _, i := range builds[family] {
		i.Family, i.Version = family, version
		images = append(images, s.publish(i))
	}
	return images
}

func (s *Server) publish(i Image) Image {
	if i.Kubernetes == "" {
		i.Kubernetes = s.config.KubernetesVersion
	}
	if i.Arch == "" {
		i.Arch = "x86_64"
	}
	if i.Created.IsZero() {
		i.Created = s.now()
	}
	if i.ID == "" {
		sum := sha256.Sum256([]byte(s.config.Region + i.Name()))
		i.ID = "ami-" + hex.EncodeToString(sum[:])[:17]
	}
	s.images = append(s.images, i)
	for _, version := range []string{i.Version, i.newest()} {
		maps.Copy(s.parameters, i.parameters(version))
	}
	return i
}

// DeprecateImage deprecates an image, as AWS does with faulty ones. Its SSM parameters stay.
func (s *Server) DeprecateImage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.images {
		if s.images[n].ID == id {
			s.images[n].Deprecated = true
		}
	}
}

// RemoveImage removes an image. Its SSM parameters stay, as they do for a while on AWS.
func (s *Server) RemoveImage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = slices.DeleteFunc(s.images, func(i Image) bool { return i.ID == id })
}

// Images returns all published images, in the order of their publication.
func (s *Server) Images() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Image(nil), s.images...)
}

// SetKubernetesVersion upgrades the control plane to a version such as "1.37", and publishes the images for it.
func (s *Server) SetKubernetesVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.KubernetesVersion = version
	s.publishFirst()
}

// SetParameter sets an SSM parameter of the user, for an ssmParameter term.
func (s *Server) SetParameter(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parameters[name] = text
}

// Name returns the image's name in EC2.
func (i Image) Name() string {
	if i.Family == Bottlerocket {
		return fmt.Sprintf("bottlerocket-aws-k8s-%s%s-%s-v%s-%s", i.Kubernetes, i.flavor(), i.Arch, i.Version, commit)
	}
	return fmt.Sprintf("amazon-eks-node-al2023-%s-%s-%s-%s", i.Arch, i.Variant, i.Kubernetes, i.Version)
}

// commit follows the version in the names of Bottlerocket's images.
const commit = "0a1b2c3d"

// flavor returns the suffix of Bottlerocket's variants, such as "-nvidia".
func (i Image) flavor() string {
	if i.Variant == Standard {
		return ""
	}
	return "-" + string(i.Variant)
}

// newest returns the name of the newest version in the family's SSM parameters.
func (i Image) newest() string {
	if i.Family == Bottlerocket {
		return "latest"
	}
	return "recommended"
}

// parameters returns the image's SSM parameters for a version.
// https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html and retrieve-ami-id-bottlerocket.html list their names.
func (i Image) parameters(version string) map[string]string {
	if i.Family == Bottlerocket {
		base := fmt.Sprintf("/aws/service/bottlerocket/aws-k8s-%s%s/%s/%s/", i.Kubernetes, i.flavor(), i.Arch, version)
		return map[string]string{base + "image_id": i.ID, base + "image_version": i.Version + "-" + commit}
	}
	base := fmt.Sprintf("/aws/service/eks/optimized-ami/%s/amazon-linux-2023/%s/%s/", i.Kubernetes, i.Arch, i.Variant)
	if version == i.Version {
		base += i.Name()
	} else {
		base += version
	}
	release := i.Kubernetes + ".0-" + i.Version[1:]
	all, err := json.Marshal(map[string]string{"schema_version": "1", "image_id": i.ID, "image_name": i.Name(), "release_version": release})
	if err != nil {
		panic(err) // strings can always be encoded
	}
	return map[string]string{base: string(all), base + "/image_id": i.ID, base + "/image_name": i.Name(), base + "/release_version": release}
}

// ebsRoot returns the size of the root volume in GiB. Images with drivers are larger.
func (i Image) ebsRoot() int32 {
	if i.Variant == Standard {
		return 20
	}
	return 30
}

func (i Image) described() ec2types.Image {
	const iso = "2006-01-02T15:04:05.000Z"
	deprecation := i.Created.AddDate(2, 0, 0)
	if i.Deprecated {
		deprecation = i.Created
	}
	return ec2types.Image{
		ImageId: &i.ID, Name: new(i.Name()), Architecture: ec2types.ArchitectureValues(i.Arch), State: ec2types.ImageStateAvailable, OwnerId: new(amazon),
		ImageOwnerAlias: new("amazon"), Public: new(true), ImageType: ec2types.ImageTypeValuesMachine, Hypervisor: ec2types.HypervisorTypeXen,
		VirtualizationType: ec2types.VirtualizationTypeHvm, RootDeviceType: ec2types.DeviceTypeEbs, RootDeviceName: new("/dev/xvda"),
		CreationDate: new(i.Created.UTC().Format(iso)), DeprecationTime: new(deprecation.UTC().Format(iso)),
		BlockDeviceMappings: []ec2types.BlockDeviceMapping{{DeviceName: new("/dev/xvda"), Ebs: &ec2types.EbsBlockDevice{VolumeSize: new(i.ebsRoot()), VolumeType: ec2types.VolumeTypeGp3}}},
	}
}
