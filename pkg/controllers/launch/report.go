package launch

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/fleet/launching"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/words"
)

// refuse writes refusals to the status of the GPUNodeClass. It is idempotent.
func (c *Controller) refuse(ctx context.Context, shape launching.Shape, at time.Time, refusals ...launching.Refusal) error {
	class := &v1alpha1.GPUNodeClass{}
	if err := c.Client.Get(ctx, client.ObjectKey{Name: shape.Class}, class); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("reading GPUNodeClass %s: %w", shape.Class, err)
	}
	c.Ledger.Learn(class.Name, class.Status.RefusedOfferings, c.Clock.Now())
	for _, r := range refusals {
		news := c.Ledger.Refuse(class.Name, r, at)
		if len(news) == 0 {
			continue
		}
		c.recordRefusal(class, shape, r, news)
		log.FromContext(ctx).Info("Launch refused", "nodePool", shape.Pool, "reason", r.Reason, "instanceTypes", r.InstanceTypes, "zones", r.Zones,
			"capacityType", r.CapacityType, "reservation", r.Reservation, "failures", news[0].Failures, "notBefore", news[0].NotBefore.Time, "message", r.Message)
	}
	stored := class.DeepCopy()
	class.Status.RefusedOfferings = c.Ledger.ForStatus(class.Name, c.Clock.Now())
	if equality.Semantic.DeepEqual(stored.Status, class.Status) {
		return nil
	}
	if err := c.Client.Status().Patch(ctx, class, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the refusal to GPUNodeClass %s: %w", class.Name, err)
	}
	return nil
}

// recordRefusal records one event on the GPUNodeClass for everything that was refused for one NodeClaim and one reason.
func (c *Controller) recordRefusal(class *v1alpha1.GPUNodeClass, shape launching.Shape, r launching.Refusal, news []v1alpha1.RefusedOffering) {
	var instanceTypes, zones []string
	latest := news[0].NotBefore
	for _, n := range news {
		instanceTypes, zones = append(instanceTypes, n.InstanceType), append(zones, n.Zone)
		if latest.Before(&n.NotBefore) {
			latest = n.NotBefore
		}
	}
	if news[0].PausesLaunches() {
		note := fmt.Sprintf("launches are paused until %s (%s): %s", latest.UTC().Format(time.RFC3339), r.Reason, r.Message)
		c.Recorder.Eventf(class, nil, corev1.EventTypeWarning, "LaunchesPaused", "Launch", "%s", plain.Shorten(note, plain.MaxNote))
		return
	}
	note := fmt.Sprintf("%s in zone %s (%s) for NodePool %s is left alone until %s (%s): %s",
		words.Distinct(instanceTypes), words.Distinct(zones), catalog.Capacity(r.CapacityType, r.Reservation), shape.Pool, latest.UTC().Format(time.RFC3339), r.Reason, r.Message)
	c.Recorder.Eventf(class, nil, corev1.EventTypeWarning, "LaunchRefused", "Launch", "%s", plain.Shorten(note, plain.MaxNote))
}
