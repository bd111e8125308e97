package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud/aws/images"
	"karve.sh/karve/pkg/rollout"
)

// firstRetry is the delay before AWS is called again after a failure. It doubles with each failure, up to the refresh interval.
const firstRetry = 30 * time.Second

// lookups has what AWS answered about the wanted image of each rollout, by the name of the rollout.
type lookups map[string]lookup

// existence is what AWS answered about the images of a rollout's status.
type existence struct {
	question string
	missing  []string
	failures int
	until    time.Time
}

type lookup struct {
	question string
	image    *v1alpha1.GPUImage
	problem  *rollout.Problem
	failures int
	until    time.Time
}

// missing returns the IDs of images of the status that no longer exist in AWS. It returns the last answer if AWS does not answer. It calls AWS at each
// refresh, and at once if something changes that a missing image can cause, or if the status names other images.
func (c *Controller) missing(ctx context.Context, r *v1alpha1.GPUImageRollout, ready bool, nodes *rollout.Nodes) []string {
	known := slices.Clone(r.Status.Good)
	if r.Status.Current != nil {
		known = append(known, *r.Status.Current)
	}
	if r.Status.Candidate != nil {
		known = append(known, r.Status.Candidate.Image)
	}
	var ids []string
	for i := range known {
		ids = append(ids, known[i].IDs()...)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	question := fmt.Sprint(ids, r.Generation, ready, len(nodes.Broken))
	now, last := c.Clock.Now(), c.existence[r.Name]
	if last.question == question && now.Before(last.until) {
		return last.missing
	}
	next := existence{question: question, until: now.Add(c.Refresh)}
	finder, err := c.images(ctx)
	if err == nil {
		next.missing, err = finder.Missing(ctx, ids)
	}
	if last.question == question {
		next.failures = last.failures + 1
	}
	switch {
	case err != nil: // The last answer is the best that is known.
		next.missing = slices.DeleteFunc(slices.Clone(last.missing), func(id string) bool { return !slices.Contains(ids, id) })
		next.until = now.Add(retryAfter(next.failures, c.Refresh))
	case len(next.missing) > 0: // The image may come back, for instance after a change of its permissions.
		next.until = now.Add(retryAfter(next.failures, c.Refresh))
	default:
		next.failures = 0
	}
	c.existence[r.Name] = next
	return next.missing
}

// retryAfter returns the delay before AWS is called again after this number of failures.
func retryAfter(failures int, most time.Duration) time.Duration {
	return min(firstRetry<<min(failures, 10), most)
}

// wanted returns the image that spec.image means.
func (c *Controller) wanted(ctx context.Context, r *v1alpha1.GPUImageRollout, family images.Family, architectures []string) (*v1alpha1.GPUImage, *rollout.Problem) {
	name := r.Spec.Image
	if name != v1alpha1.ImageNewest {
		// A known image does not need AWS, so a rollback to it works while AWS does not answer.
		if known := knownImage(r, name, architectures); known != nil {
			return known, nil
		}
	}
	kubernetes, err := c.KubernetesVersion()
	if err != nil {
		return nil, &rollout.Problem{Reason: "KubernetesVersionUnknown", Message: "the API server does not tell its version: " + err.Error()}
	}
	question := strings.Join(append([]string{name, string(family), kubernetes}, architectures...), " ")
	now, last := c.Clock.Now(), c.lookups[r.Name]
	if last.question == question && now.Before(last.until) {
		return last.image, last.problem
	}
	next := lookup{question: question, until: now.Add(c.Refresh)}
	switch image, err := c.ask(ctx, name, family, kubernetes, architectures); {
	case err != nil:
		e := images.ErrorOf(err)
		next.problem = &rollout.Problem{Reason: string(e.Reason), Message: e.Message}
		if last.question == question {
			next.failures = last.failures + 1
		}
		next.until = now.Add(retryAfter(next.failures, c.Refresh))
	default:
		next.image = image
	}
	c.lookups[r.Name] = next
	return next.image, next.problem
}

func knownImage(r *v1alpha1.GPUImageRollout, name string, architectures []string) *v1alpha1.GPUImage {
	known := []*v1alpha1.GPUImage{r.Status.Current}
	for i := range r.Status.Good {
		known = append(known, &r.Status.Good[i])
	}
	if r.Status.Candidate != nil {
		known = append(known, &r.Status.Candidate.Image)
	}
	for _, image := range known {
		if image.Named(name) && !slices.ContainsFunc(architectures, func(a string) bool {
			return !slices.ContainsFunc(image.Images, func(i v1alpha1.ArchitectureImage) bool { return i.Architecture == a })
		}) {
			return image
		}
	}
	return nil
}

// images returns the finder, and creates it on the first call.
func (c *Controller) images(ctx context.Context) (*images.Finder, error) {
	if c.finder == nil {
		clients, err := c.AWS(ctx)
		if err != nil {
			return nil, err
		}
		c.finder = &images.Finder{SSM: clients.SSM, EC2: clients.EC2, Now: c.Clock.Now}
	}
	return c.finder, nil
}

func (c *Controller) ask(ctx context.Context, name string, family images.Family, kubernetes string, architectures []string) (*v1alpha1.GPUImage, error) {
	finder, err := c.images(ctx)
	if err != nil {
		return nil, err
	}
	var release images.Release
	switch {
	case strings.HasPrefix(name, "ami-"):
		release.Images, err = finder.Describe(ctx, []string{name})
		release.Name = name
		if err == nil {
			release.Name = release.Images[0].Release()
		}
	case name == v1alpha1.ImageNewest:
		release, err = finder.Newest(ctx, family, kubernetes, architectures)
	default:
		release, err = finder.Release(ctx, family, kubernetes, name, architectures)
	}
	if err != nil {
		return nil, err
	}
	for _, image := range release.Images {
		if why := image.Usable(); why != "" {
			return nil, &images.Error{Reason: "ImageUnusable", Message: fmt.Sprintf("%s is not used: %s", release.Name, why)}
		}
	}
	return imageOf(release), nil
}

func imageOf(release images.Release) *v1alpha1.GPUImage {
	image := &v1alpha1.GPUImage{Release: release.Name}
	var created time.Time
	for _, i := range release.Images {
		image.Images = append(image.Images, v1alpha1.ArchitectureImage{Architecture: i.Architecture, ID: i.ID})
		if i.Created.After(created) {
			created = i.Created
		}
	}
	if !created.IsZero() {
		image.Created = &metav1.Time{Time: created}
	}
	return image
}
