package main

import (
	"context"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// componentLabel identifies the component of Karve in a Deployment of its chart.
const componentLabel = "app.kubernetes.io/component"

// controllers returns the Deployments of Karve's controller. There should be one.
func (c connection) controllers(ctx context.Context) ([]appsv1.Deployment, error) {
	var list appsv1.DeploymentList
	if err := c.List(ctx, &list, client.MatchingLabels{componentLabel: "controller"}); err != nil {
		return nil, err
	}
	var found []appsv1.Deployment
	for _, d := range list.Items {
		if flagOf(&d, "settle-duration") != "" {
			found = append(found, d)
		}
	}
	return found, nil
}

// flagOf returns the value of a flag of a Deployment's containers, or "" if it is not set.
func flagOf(d *appsv1.Deployment, name string) string {
	for _, ctr := range d.Spec.Template.Spec.Containers {
		for _, arg := range ctr.Args {
			if value, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
				return value
			}
		}
	}
	return ""
}
