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

// Family is of whose making an image is, by the name of Karpenter's alias.
type Family string

// The families.
const (
	AL2023       Family = "al2023"
	Bottlerocket Family = "bottlerocket"
)

// Variant is which machines an image is for.
type Variant string

// The variants.
const (
	Standard Variant = "standard"
	NVIDIA   Variant = "nvidia"
	Neuron   Variant = "neuron"
)

// Image is a machine image that AWS publishes for EKS.
type Image struct {
	// ID is made of the other fields when empty.
	ID         string
	Family     Family
	Variant    Variant
	Kubernetes string // "1.36"; the control plane's version when empty
	Arch       string // "x86_64" or "arm64"; x86_64 when empty
	// Version is what a user writes behind the alias: "v20260801" of al2023, "1.50.0" of bottlerocket (without v).
	Version string
	// Created is now when zero.
	Created time.Time
	// Deprecated says that EC2 shows a DeprecationTime that has passed.
	Deprecated bool
}

// firstImages are the releases that are there from the start, the oldest first, each for every variant and architecture, and how old they are.
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

// builds are what each family is published for.
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

// publishFirst publishes the first releases for the control plane's version.
func (s *Server) publishFirst() {
	for _, release := range firstImages {
		for _, i := range builds[release.family] {
			i.Family, i.Version, i.Created = release.family, release.version, s.now().Add(-release.age)
			s.publish(i)
		}
	}
}

// PublishImage adds an image and makes it the recommended and latest one of its family, variant, Kubernetes version and architecture.
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

// DeprecateImage makes an image deprecated, as AWS does when it has found something wrong in one. Its parameters stay.
func (s *Server) DeprecateImage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := range s.images {
		if s.images[n].ID == id {
			s.images[n].Deprecated = true
		}
	}
}

// RemoveImage has an image not exist any more. Its parameters stay, as those of AWS do for a while.
func (s *Server) RemoveImage(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = slices.DeleteFunc(s.images, func(i Image) bool { return i.ID == id })
}

// Images are all that were published, in that order.
func (s *Server) Images() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Image(nil), s.images...)
}

// SetKubernetesVersion upgrades the control plane, as EKS describes it, and publishes the images of that version: "1.37".
func (s *Server) SetKubernetesVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config.KubernetesVersion = version
	s.publishFirst()
}

// SetParameter sets a parameter of SSM of the user's own, for an ssmParameter term.
func (s *Server) SetParameter(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.parameters[name] = text
}

// Name is the image's name in EC2.
func (i Image) Name() string {
	if i.Family == Bottlerocket {
		return fmt.Sprintf("bottlerocket-aws-k8s-%s%s-%s-v%s-%s", i.Kubernetes, i.flavour(), i.Arch, i.Version, commit)
	}
	return fmt.Sprintf("amazon-eks-node-al2023-%s-%s-%s-%s", i.Arch, i.Variant, i.Kubernetes, i.Version)
}

// commit stands behind the version in what Bottlerocket publishes.
const commit = "0a1b2c3d"

// flavour is the end of the name of Bottlerocket's variants: "-nvidia".
func (i Image) flavour() string {
	if i.Variant == Standard {
		return ""
	}
	return "-" + string(i.Variant)
}

// newest is what the family's parameters call the newest version.
func (i Image) newest() string {
	if i.Family == Bottlerocket {
		return "latest"
	}
	return "recommended"
}

// parameters are SSM's for the image under a version.
// https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html and retrieve-ami-id-bottlerocket.html have their names.
func (i Image) parameters(version string) map[string]string {
	if i.Family == Bottlerocket {
		base := fmt.Sprintf("/aws/service/bottlerocket/aws-k8s-%s%s/%s/%s/", i.Kubernetes, i.flavour(), i.Arch, version)
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
		panic(err) // strings are JSON
	}
	return map[string]string{base: string(all), base + "/image_id": i.ID, base + "/image_name": i.Name(), base + "/release_version": release}
}

// ebsRoot is how large the images' root volume is, in GiB: those with drivers are larger.
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
