package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/karpenter"
)

// errKarpenterChanged ends the process when Karpenter has other options than at the start. The catalog is made with them.
var errKarpenterChanged = errors.New("Karpenter has other options than at the start") //nolint:staticcheck // Karpenter is a name.

// karpenterEvery is the interval of the check. Karpenter's options change when it is upgraded.
const karpenterEvery = 5 * time.Minute

// karpenterOptions reads the options that must be the same as Karpenter's from its Deployment. It is a Runnable of the manager.
type karpenterOptions struct {
	reader client.Reader
	// stated are flags of this process, which take precedence.
	stated map[string]string
	clock  clock.WithTicker
	start  instancetype.Options
}

// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=list

// read returns the options. A Karpenter that cannot be seen, such as one outside of the cluster, has its defaults.
func (k *karpenterOptions) read(ctx context.Context) (instancetype.Options, error) {
	var all appsv1.DeploymentList
	switch err := k.reader.List(ctx, &all, client.MatchingLabels{"app.kubernetes.io/name": "karpenter"}); {
	case apierrors.IsForbidden(err):
		log.FromContext(ctx).Error(err, "The options of Karpenter are unknown: allow the controller to list deployments.apps, or set its flags")
	case err != nil:
		return instancetype.Options{}, fmt.Errorf("reading Karpenter's options: %w", err)
	}
	options, problem := optionsOf(all.Items, k.stated)
	if problem != nil {
		log.FromContext(ctx).Error(problem, "Reading Karpenter's options")
	}
	return options, nil
}

// optionsOf returns the options of the Karpenter among Deployments, and what is wrong with them. Deployments without replicas do not count.
func optionsOf(deployments []appsv1.Deployment, stated map[string]string) (instancetype.Options, error) {
	var problems []error
	options, from := instancetype.DefaultOptions, ""
	for i := range deployments {
		d := &deployments[i]
		if d.Spec.Replicas != nil && *d.Spec.Replicas == 0 {
			continue
		}
		flags, variables := karpenter.Flags(&d.Spec.Template.Spec)
		found, name := instancetype.DefaultOptions, "Deployment "+d.Namespace+"/"+d.Name
		for variable, flag := range instancetype.Variables {
			if _, ok := flags[flag]; !ok && variables[variable] != "" {
				flags[flag] = variables[variable]
			}
		}
		if err := set(&found, flags); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if from != "" && found != options {
			problems = append(problems, fmt.Errorf("%s has other options than %s, which Karve goes by", name, from))
			continue
		}
		options, from = found, name
	}
	_ = set(&options, stated) // They have been validated.
	return options, errors.Join(problems...)
}

// set changes the options to flags. Other flags are not about them.
func set(options *instancetype.Options, flags map[string]string) error {
	var problems []error
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		problems = append(problems, options.Set(flag, flags[flag]))
	}
	return errors.Join(problems...)
}

// NeedLeaderElection returns false, because each replica has its own catalog.
func (k *karpenterOptions) NeedLeaderElection() bool { return false }

// Start returns errKarpenterChanged when Karpenter has other options than at the start. It returns nil when the context ends.
func (k *karpenterOptions) Start(ctx context.Context) error {
	return every(ctx, k.clock, karpenterEvery, func() error {
		switch now, err := k.read(ctx); {
		case err != nil:
			log.FromContext(ctx).V(1).Info("Reading Karpenter's options", "error", err.Error())
		case now != k.start:
			return fmt.Errorf("%w: %+v, not %+v", errKarpenterChanged, now, k.start)
		}
		return nil
	})
}
