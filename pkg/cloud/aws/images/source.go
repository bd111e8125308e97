package images

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/aws"
	"karve.sh/karve/pkg/cloud/aws/api"
)

// Source is a [cloud.ImageSource].
type Source struct {
	Load func(context.Context) (*api.Clients, error)
	Now  func() time.Time
}

func (s *Source) clients(ctx context.Context) (*Finder, error) {
	clients, err := s.Load(ctx)
	if err != nil {
		return nil, ErrorOf(err)
	}
	return &Finder{SSM: clients.SSM, EC2: clients.EC2, Now: s.Now}, nil
}

// Find implements cloud.ImageSource.
func (s *Source) Find(ctx context.Context, family, name, kubernetes string, architectures []string) (*v1alpha1.GPUImage, error) {
	release, err := s.find(ctx, aws.Family(family), name, kubernetes, architectures)
	if err != nil {
		return nil, err
	}
	image := &v1alpha1.GPUImage{Release: release.Name}
	for _, i := range release.Images {
		if why := i.Usable(); why != "" {
			return nil, &cloud.ImageError{Reason: "ImageUnusable", Message: fmt.Sprintf("%s is not used: %s", release.Name, why)}
		}
		image.Images = append(image.Images, v1alpha1.ArchitectureImage{Architecture: i.Architecture, ID: i.ID})
	}
	if created := newestOf(release.Images); !created.IsZero() {
		image.Created = &metav1.Time{Time: created}
	}
	return image, nil
}

func (s *Source) find(ctx context.Context, family aws.Family, name, kubernetes string, architectures []string) (Release, error) {
	finder, err := s.clients(ctx)
	switch {
	case err != nil:
		return Release{}, err
	case name == v1alpha1.ImageNewest:
		return finder.Newest(ctx, family, kubernetes, architectures)
	case !aws.IsImageID(name):
		return finder.Release(ctx, family, kubernetes, name, architectures)
	}
	found, err := finder.Describe(ctx, []string{name})
	if err != nil {
		return Release{}, err
	}
	return Release{found[0].Release(), found}, nil
}

// Created implements cloud.ImageSource.
func (s *Source) Created(ctx context.Context, ids []string) (time.Time, error) {
	finder, err := s.clients(ctx)
	if err != nil {
		return time.Time{}, err
	}
	found, err := finder.Describe(ctx, ids)
	return newestOf(found), err
}

func newestOf(images []Image) time.Time {
	var newest time.Time
	for _, i := range images {
		if i.Created.After(newest) {
			newest = i.Created
		}
	}
	return newest
}

// Missing implements cloud.ImageSource.
func (s *Source) Missing(ctx context.Context, ids []string) ([]string, error) {
	finder, err := s.clients(ctx)
	if err != nil {
		return nil, err
	}
	return finder.Missing(ctx, ids)
}
