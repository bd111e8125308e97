package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/plain"
)

type doctorOptions struct {
	namespace string
	output    output
	kube      *genericclioptions.ConfigFlags
}

const doctorLong = `Check the installation: versions, CRDs, the controller's permissions, settings that must match Karpenter's, NodePools and classes, quotas
and limits, agents, metrics, and pods that request a resource that nothing serves. Each finding comes with a fix. The command changes
nothing. It skips what you may not read, and names the missing permission.

The exit code is 1 if there is a finding of severity error, if neither the controller nor the NodePools can be read, or if the
command fails, and 0 otherwise.`

func doctorCommand(ctx context.Context, s streams) *cobra.Command {
	o := doctorOptions{kube: clusterFlags()}
	cmd := &cobra.Command{
		Use: "doctor", Short: "Check the installation and show how to fix problems", Long: doctorLong, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(ctx, s) },
	}
	o.output.addFlag(cmd.Flags(), "the same as the default")
	addNamespaceFlag(cmd.Flags(), &o.namespace)
	o.kube.AddFlags(cmd.Flags())
	return cmd
}

type diagnosis struct {
	Findings []doctor.Finding `json:"findings"`
}

func (o *doctorOptions) run(ctx context.Context, s streams) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	live, err := reach(o.kube, "")
	if err != nil {
		return err
	}
	facts := live.facts(ctx, o.namespace)
	d := diagnosis{Findings: append([]doctor.Finding{}, doctor.Check(facts)...)}
	if err := o.output.print(s.out, &d, func() string { return d.text(paletteFor(s.out)) }); err != nil {
		return err
	}
	return d.verdict(facts)
}

// verdict returns an error if there is a finding of severity error, or if too little could be read to find any.
func (d *diagnosis) verdict(facts *doctor.Facts) error {
	n := 0
	for _, f := range d.Findings {
		if f.Severity == doctor.Error {
			n++
		}
	}
	switch n {
	case 0:
		if facts.Controllers == nil && facts.Cluster == nil {
			return errors.New("nothing could be checked: neither the controller nor the NodePools, nodes and pods could be read")
		}
		return nil
	case 1:
		return fmt.Errorf("1 problem must be fixed")
	}
	return fmt.Errorf("%d problems must be fixed", n)
}

func (d *diagnosis) text(colors palette) string {
	if len(d.Findings) == 0 {
		return "No problems found.\n"
	}
	var out strings.Builder
	for i, f := range d.Findings {
		if i > 0 {
			out.WriteString("\n")
		}
		severity := string(f.Severity)
		switch f.Severity {
		case doctor.Error:
			severity = colors.red(severity)
		case doctor.Warning:
			severity = colors.yellow(severity)
		case doctor.Unknown:
			severity = colors.faint(severity)
		}
		fmt.Fprintf(&out, "%s  %s\n  %s\n  fix: %s\n", severity, colors.bold(plain.Line(f.Object)), plain.Line(f.Message), plain.Line(f.Fix))
	}
	return out.String()
}
