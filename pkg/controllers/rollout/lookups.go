package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/lifecycle"
	"karve.sh/karve/pkg/rollout"
)

// firstRetry is the delay before the cloud is asked again after a failure. It doubles with each failure, up to the refresh interval.
const firstRetry = 30 * time.Second

// answers has the cloud's answers to one question about each rollout, by the name of the rollout.
type answers map[string]answer

// answer is about the images in a rollout's status, of which some are missing, or about the wanted image.
type answer struct {
	question string
	missing  []string
	image    *v1alpha1.GPUImage
	fault    *rollout.Fault
	failures int
	until    time.Time
}

// missing returns the IDs of images in the status that no longer exist. It returns the last answer if the cloud does not answer. It asks at each
// refresh, and immediately after changes that a missing image can cause, or if the status names other images.
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
	next := answer{question: question, until: now.Add(c.Refresh)}
	var err error
	next.missing, err = c.Images.Missing(ctx, ids)
	if last.question == question {
		next.failures = last.failures + 1
	}
	switch {
	case err != nil: // The last answer is the best that is known.
		next.missing = slices.DeleteFunc(slices.Clone(last.missing), func(id string) bool { return !slices.Contains(ids, id) })
		next.until = now.Add(lifecycle.Backoff(firstRetry, c.Refresh, next.failures+1))
	case len(next.missing) > 0: // The image may come back, for example after a change of its permissions.
		next.until = now.Add(lifecycle.Backoff(firstRetry, c.Refresh, next.failures+1))
	default:
		next.failures = 0
	}
	c.existence[r.Name] = next
	return next.missing
}

// wanted returns the image to which spec.image refers.
func (c *Controller) wanted(ctx context.Context, r *v1alpha1.GPUImageRollout, family string, architectures []string) (*v1alpha1.GPUImage, *rollout.Fault) {
	name := r.Spec.Image
	if name != v1alpha1.ImageNewest {
		// A known image needs no answer from the cloud, so a rollback to it always works.
		if known := knownImage(r, name, architectures); known != nil {
			return known, nil
		}
	}
	kubernetes, err := c.KubernetesVersion()
	if err != nil {
		return nil, &rollout.Fault{Reason: "KubernetesVersionUnknown", Message: "the API server does not tell its version: " + err.Error()}
	}
	question := strings.Join(append([]string{name, family, kubernetes}, architectures...), " ")
	now, last := c.Clock.Now(), c.lookups[r.Name]
	if last.question == question && now.Before(last.until) {
		return last.image, last.fault
	}
	next := answer{question: question, until: now.Add(c.Refresh)}
	if next.image, err = c.Images.Find(ctx, family, name, kubernetes, architectures); err != nil {
		e := &cloud.ImageError{Reason: "ImageUnknown", Message: err.Error()}
		errors.As(err, &e)
		next.fault = &rollout.Fault{Reason: e.Reason, Message: e.Message}
		if last.question == question {
			next.failures = last.failures + 1
		}
		next.until = now.Add(lifecycle.Backoff(firstRetry, c.Refresh, next.failures+1))
	}
	c.lookups[r.Name] = next
	return next.image, next.fault
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
