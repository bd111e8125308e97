package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/ui"
)

type explainOptions struct {
	planOptions
}

const explainLong = `Explain why a pod or the pods of a workload wait or run where they do, or why a node stays or when Karve deletes
it. The answers come from the controller's own code: the planner has verified each proposed change, and nodes stay for the
controller's reasons. The command changes nothing.

Prices are those of the controller.`

const explainExample = `  # Why does this pod wait, what would help, and what would that cost?
  kubectl karve explain pod/train-7 -n team

  # Which pods of this Deployment wait, and why?
  kubectl karve explain deployment/web -n team

  # The same for any kind that creates pods, or what creates them
  kubectl karve explain pytorchjob/llm -n team

  # Why does this node stay, or when will it be deleted?
  kubectl karve explain node/ip-10-0-1-7`

func explainCommand(ctx context.Context, s streams) *cobra.Command {
	o := explainOptions{planOptions{kube: clusterFlags()}}
	o.kube.Namespace = genericclioptions.NewConfigFlags(true).Namespace
	cmd := &cobra.Command{
		Use: "explain (pod/NAME | node/NAME | deployment/NAME | KIND/NAME)", Short: "Explain why pods wait, or why a node stays", Long: explainLong, Example: explainExample,
		RunE: func(_ *cobra.Command, args []string) error {
			kind, name, err := object(args)
			if err != nil {
				return err
			}
			return o.run(ctx, s, kind, name)
		},
	}
	fs := cmd.Flags()
	o.addInstanceTypeFlags(fs)
	o.output.addFlag(fs, "the planner's messages and everything that was checked")
	o.kube.AddFlags(fs)
	return cmd
}

const (
	kindPod  = "pod"
	kindNode = "node"
)

// kinds are the kinds by the names that users may type.
var kinds = map[string]string{
	"cronjob": "CronJob", "cronjobs": "CronJob", "cj": "CronJob",
	"deployment": "Deployment", "deployments": "Deployment", "deploy": "Deployment",
	"job": "Job", "jobs": "Job",
	"replicaset": "ReplicaSet", "replicasets": "ReplicaSet", "rs": "ReplicaSet",
	"statefulset": "StatefulSet", "statefulsets": "StatefulSet", "sts": "StatefulSet",
	"pod": kindPod, "pods": kindPod, "po": kindPod,
	"node": kindNode, "nodes": kindNode, "no": kindNode, "nodeclaim": kindNode, "nodeclaims": kindNode,
}

// object returns the kind and the name of the object in the arguments, which are KIND/NAME or KIND NAME. A kind that is not in kinds is returned as it is typed.
func object(args []string) (kind, name string, err error) {
	wrong := errors.New("name one object: pod/NAME, node/NAME or a workload such as deployment/NAME")
	switch len(args) {
	case 1:
		kind, name, _ = strings.Cut(args[0], "/")
	case 2:
		kind, name = args[0], args[1]
	default:
		return "", "", wrong
	}
	if kind == "" || name == "" || strings.Contains(name, "/") {
		return "", "", wrong
	}
	if known := kinds[strings.ToLower(kind)]; known != "" {
		kind = known
	}
	return kind, name, nil
}

// workloadKind returns the kind of workloads that the cluster serves under a name that is not in kinds, such as PyTorchJob for pytorchjob or pytorchjobs.kubeflow.org.
func (c connection) workloadKind(typed string) (string, error) {
	if slices.Contains(slices.Collect(maps.Values(kinds)), typed) {
		return typed, nil
	}
	found, err := c.RESTMapper().KindFor(schema.ParseGroupResource(strings.ToLower(typed)).WithVersion(""))
	switch {
	case meta.IsNoMatchError(err), err == nil && found.Group == "" && found.Kind != "ReplicationController":
		return "", fmt.Errorf("%q is not a kind that can be explained: name a pod, a node, or what creates pods, such as deployment/NAME", typed)
	case err != nil:
		return "", fmt.Errorf("asking the cluster for %s: %w", typed, err)
	}
	return found.Kind, nil
}

type answer interface {
	Text(now time.Time, wide bool) string
}

// run reads, explains and writes. It writes nothing if it fails.
func (o *explainOptions) run(ctx context.Context, s streams, kind, name string) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	live, err := connect(o.kube, "")
	if err != nil {
		return err
	}
	if kind, err = live.workloadKind(kind); err != nil {
		return err
	}
	namespace, _, err := o.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	cluster, err := o.read(ctx, live)
	if err != nil {
		return err
	}
	x, failed := ui.Explain(ctx, live.Client, cluster.from.Settings, clock.RealClock{}, cluster.Cluster)
	var owned []explain.Owner
	if kind != kindPod && kind != kindNode {
		owned = live.ownedBy(ctx, kind, namespace, name, x.OwnersIn(namespace))
	}
	a, err := explained(x, kind, namespace, name, owned, cluster.controller)
	if err != nil {
		return err
	}
	s.warn(cluster.controller)
	if cluster.from.Assumed != "" && !slices.Contains(cluster.notes, cluster.from.Assumed) {
		cluster.notes = append(cluster.notes, cluster.from.Assumed)
	}
	if failed != nil {
		cluster.notes = append(cluster.notes, noBudgets(failed))
	}
	cluster.notes = append(cluster.notes, planningNotes(cluster.Cluster)...)
	s.notes(cluster.notes...)
	return o.output.print(s.out, a, func() string { return a.Text(cluster.Now, o.output.wide()) })
}

// ownedBy returns those of what controls pods that a workload controls itself, directly or through others, as a JobSet does with its Jobs. It lists each kind between
// them once, only if nothing else says so, and leaves out what you may not list.
func (c connection) ownedBy(ctx context.Context, kind, namespace, name string, all []explain.Owner) (owned []explain.Owner) {
	if slices.Contains([]string{"Deployment", "CronJob", "ReplicaSet", "StatefulSet", "Job", "DaemonSet"}, kind) ||
		slices.ContainsFunc(all, func(o explain.Owner) bool { return o.Kind == kind && o.Name == name }) {
		return nil
	}
	controllers := map[metav1.TypeMeta]map[string]explain.Owner{} // of the objects of a kind, by their names
	for _, o := range all {
		at := o
		for range maxOwners {
			of := metav1.TypeMeta{APIVersion: at.APIVersion, Kind: at.Kind}
			if controllers[of] == nil {
				controllers[of] = c.controllersOf(ctx, of, namespace)
			}
			next, controlled := controllers[of][at.Name]
			if !controlled {
				break
			}
			if at = next; at.Kind == kind && at.Name == name {
				owned = append(owned, o)
				break
			}
		}
	}
	return owned
}

// maxOwners is more than objects own each other in a row. Owners may be in a circle.
const maxOwners = 5

// controllersOf returns what controls the objects of a kind, by the names of the objects. It returns nothing for what you may not list.
func (c connection) controllersOf(ctx context.Context, of metav1.TypeMeta, namespace string) map[string]explain.Owner {
	controllers := map[string]explain.Owner{}
	list := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: of.APIVersion, Kind: of.Kind + "List"}}
	_ = c.List(ctx, list, client.InNamespace(namespace)) // Without it, nothing controls them.
	for i := range list.Items {
		if by := metav1.GetControllerOf(&list.Items[i]); by != nil {
			controllers[list.Items[i].Name] = explain.Owner{APIVersion: by.APIVersion, Kind: by.Kind, Name: by.Name}
		}
	}
	return controllers
}

func explained(x *explain.Explainer, kind, namespace, name string, owned []explain.Owner, controller *leader.Leader) (answer, error) {
	if kind == kindPod {
		a, err := x.Pod(namespace, name)
		a.Controller = controller
		return &a, err
	}
	if kind != kindNode {
		a, err := x.Workload(kind, namespace, name, owned...)
		a.Controller = controller
		return &a, err
	}
	a, err := x.Node(name)
	a.Controller = controller
	return &a, err
}

func noBudgets(err error) string {
	return fmt.Sprintf("PodDisruptionBudgets are ignored, because they cannot be read: %s", cmp.Or(missingRights(err), err.Error()))
}
