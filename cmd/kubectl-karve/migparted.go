package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/manifests/migparted"
)

const (
	layoutsLong = `Print the MIG layouts of a GPUNodeClass that divide GPUs as configurations of NVIDIA's mig-parted do.

The file is a configuration of mig-parted, or the ConfigMap with config.yaml that the MIG manager of the GPU Operator reads. The arguments are
names in mig-configs, which are the values of the label nvidia.com/mig.config. Karve chooses among the layouts of several names for each node.`
	layoutsExample = `  kubectl get configmap -n gpu-operator mig-parted-config -o yaml | kubectl karve mig-layouts -f - all-3x1g.5gb_2x2g.10gb
  kubectl karve mig-layouts -f config.yaml all-1g.10gb all-balanced --gpu=h100`
)

func layoutsCommand(ctx context.Context, s streams) *cobra.Command {
	gpu, files := "", fileFlags("a configuration of mig-parted, or a ConfigMap with one: a file, a URL, or - for standard input")
	cmd := &cobra.Command{
		Use: "mig-layouts NAME...", Short: "Print the layouts of a configuration of NVIDIA's mig-parted", Long: layoutsLong, Example: layoutsExample,
		RunE: func(_ *cobra.Command, names []string) error {
			read, err := readFiles(ctx, files.ToOptions(), s.in)
			if err != nil {
				return err
			}
			if len(read) != 1 {
				return errors.New("-f names one file, with a configuration of mig-parted")
			}
			text, err := layoutsOf(read[0].Content, names, gpu)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(s.out, text)
			return err
		},
	}
	cmd.Flags().StringVar(&gpu, "gpu", "", "only for GPUs with this name, as in the label karpenter.k8s.aws/instance-gpu-name")
	cmd.Flags().StringSliceVarP(files.Filenames, "filename", "f", nil, files.Usage)
	return cmd
}

// layoutsOf returns the sharing of a GPUNodeClass with the layouts of configurations, as YAML.
func layoutsOf(data []byte, names []string, gpu string) (string, error) {
	configs, err := migparted.Read(data)
	if err != nil {
		return "", err
	}
	if len(names) == 0 {
		return "", fmt.Errorf("name one or more of the configurations: %s", strings.Join(configs.Names(), ", "))
	}
	sharing := v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{}}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		layouts, err := configs.Layouts(name, gpu)
		if err != nil {
			return "", err
		}
		sharing.MIG.Layouts = append(sharing.MIG.Layouts, layouts...)
	}
	if err := sharing.LayoutsError(); err != nil {
		return "", err
	}
	text, err := yaml.Marshal(map[string]v1alpha1.Sharing{"sharing": sharing})
	return string(text), err
}
