package main

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

const completionTimeout = 2 * time.Second

// completed are the kinds whose names complete the first argument of a command, by the path of the command.
var completed = map[string]schema.GroupVersionKind{
	"kubectl karve rollout status":  v1alpha1.GroupVersion.WithKind(imageRolloutKind),
	"kubectl karve rollout pause":   v1alpha1.GroupVersion.WithKind(imageRolloutKind),
	"kubectl karve rollout resume":  v1alpha1.GroupVersion.WithKind(imageRolloutKind),
	"kubectl karve rollout promote": v1alpha1.GroupVersion.WithKind(imageRolloutKind),
	"kubectl karve rollout undo":    v1alpha1.GroupVersion.WithKind(imageRolloutKind),
	"kubectl karve inspect":         {Version: "v1", Kind: "Node"},
}

// addCompletions makes the shell complete names of objects and of contexts, and output formats.
func addCompletions(ctx context.Context, cmd *cobra.Command) {
	for _, child := range cmd.Commands() {
		addCompletions(ctx, child)
	}
	if kind, ok := completed[cmd.CommandPath()]; ok {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return names(ctx, flagsOf(cmd), kind, ""), cobra.ShellCompDirectiveNoFileComp
		}
	}
	if cmd.CommandPath() == "kubectl karve explain" {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return explainable(ctx, flagsOf(cmd), typed)
		}
	}
	if cmd.Runnable() && cmd.ValidArgsFunction == nil && cmd.Name() != "replay" { // Only replay takes a file as argument.
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	// The flag is missing on commands that do not have it, which is not an error.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("context", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return contexts(flagsOf(cmd)), cobra.ShellCompDirectiveNoFileComp
	})
	for _, flag := range []string{"namespace", "karve-namespace"} {
		_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return names(ctx, flagsOf(cmd), schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, ""), cobra.ShellCompDirectiveNoFileComp
		})
	}
}

// explainable returns the completions for explain: kinds until one is typed, then the nodes, or the pods of the namespace.
func explainable(ctx context.Context, flags *genericclioptions.ConfigFlags, typed string) ([]string, cobra.ShellCompDirective) {
	kind, _, ok := strings.Cut(typed, "/")
	if !ok {
		return []string{"pod/", "deployment/", "job/", "cronjob/", "statefulset/", "node/"}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	var all []string
	switch kind {
	case "node":
		all = names(ctx, flags, schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "")
	case "pod":
		namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all = names(ctx, flags, schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, namespace)
	}
	for i := range all {
		all[i] = kind + "/" + all[i]
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

// flagsOf returns the flags that select the cluster, with the values that were typed so far.
func flagsOf(cmd *cobra.Command) *genericclioptions.ConfigFlags {
	flags := clusterFlags()
	if cmd.Flags().Lookup("namespace") != nil {
		flags.Namespace = new(string)
	}
	for name, value := range map[string]*string{
		"kubeconfig": flags.KubeConfig, "context": flags.Context, "cluster": flags.ClusterName, "user": flags.AuthInfoName, "as": flags.Impersonate,
		"namespace": flags.Namespace,
	} {
		if flag := cmd.Flags().Lookup(name); flag != nil && value != nil {
			*value = flag.Value.String()
		}
	}
	return flags
}

// names returns the sorted names of all objects of a kind, in a namespace if that is not "". It returns none if the cluster does not answer soon. It
// reads only the metadata of the objects.
func names(ctx context.Context, flags *genericclioptions.ConfigFlags, kind schema.GroupVersionKind, namespace string) []string {
	config, err := flags.ToRESTConfig()
	if err != nil {
		return nil
	}
	config.Timeout = completionTimeout
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	return completable(all)
}

func contexts(flags *genericclioptions.ConfigFlags) []string {
	config, err := flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil
	}
	var all []string
	for name := range config.Contexts {
		all = append(all, name)
	}
	return completable(all)
}

// plainName matches names in which a shell finds nothing to do. Completion scripts of old versions of kubectl do not quote names.
var plainName = regexp.MustCompile(`^[\w.:/@,+=-]+$`)

// completable returns the names that a shell may complete, sorted.
func completable(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !plainName.MatchString(name) })
	slices.Sort(names)
	return names
}
