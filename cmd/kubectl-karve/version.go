package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/version"
)

const serverTimeout = 5 * time.Second

type versions struct {
	Client version.Build `json:"client"`
	// Controller is the version of the controller, or "" if it is unknown. Note says why it is unknown, or that no controller works.
	Controller string `json:"controller,omitempty"`
	Note       string `json:"note,omitempty"`
}

func versionCommand(ctx context.Context, s streams) *cobra.Command {
	kube, format, namespace, clientOnly := clusterFlags(), output{}, "", false
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of this command and of the controller", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := format.validate(); err != nil {
				return err
			}
			v := versions{Client: version.This()}
			if !clientOnly {
				v.Controller, v.Note = controllerVersion(ctx, kube, namespace)
			}
			return v.print(s.out, format)
		},
	}
	format.addFlag(cmd.Flags(), "the commit and the Go version")
	cmd.Flags().BoolVar(&clientOnly, "client", false, "print only the version of this command")
	addNamespaceFlag(cmd.Flags(), &namespace)
	kube.AddFlags(cmd.Flags())
	return cmd
}

func (v *versions) print(out io.Writer, format output) error {
	if format.isData() {
		return format.data(out, v)
	}
	_, err := fmt.Fprintf(out, "Client: %s\n", v.Client.Version)
	if err == nil && format.wide() {
		_, err = fmt.Fprintf(out, "  commit %s of %s, %s, %s\n", cmp.Or(v.Client.Revision, unknown), cmp.Or(v.Client.Time, unknown), v.Client.Go, v.Client.Platform)
	}
	if err != nil || v.Controller+v.Note == "" {
		return err
	}
	note := ""
	if v.Note != "" {
		note = " (" + plain.Line(v.Note) + ")"
	}
	_, err = fmt.Fprintf(out, "Controller: %s%s\n", cmp.Or(plain.Line(v.Controller), unknown), note)
	return err
}

// controllerVersion returns the version that the controller wrote with its catalog, or why it is unknown.
func controllerVersion(ctx context.Context, kube *genericclioptions.ConfigFlags, namespace string) (v, note string) {
	config, err := kube.ToRESTConfig()
	if err != nil && *kube.Context+*kube.KubeConfig != "" {
		return "", err.Error()
	}
	if err != nil {
		return "", "no cluster is selected"
	}
	config.Timeout = serverTimeout
	c, err := client.New(config, client.Options{})
	if err != nil {
		return "", err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	var m corev1.ConfigMap
	key := client.ObjectKey{Namespace: namespace, Name: published.Name}
	switch err := c.Get(ctx, key, &m); {
	case apierrors.IsNotFound(err):
		return "", fmt.Sprintf("ConfigMap %s does not exist", key)
	case apierrors.IsForbidden(err):
		return "", fmt.Sprintf("you may not get ConfigMap %s", key)
	case err != nil:
		return "", unreachable(config, err, "").Error()
	}
	if v = published.Controller(&m); v == "" {
		return "", fmt.Sprintf("ConfigMap %s does not have it", key)
	}
	working := leader.Find(ctx, c, namespace, time.Now)
	return v, working.Warning()
}
