package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/plain"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/table"
	"karve.sh/karve/pkg/words"
)

const imageRolloutKind = "GPUImageRollout"

const rolloutLong = `Show and control GPUImageRollouts, which test new machine images on a canary node and promote those that work.

pause, resume, promote and undo edit spec.promotion, spec.promoteNow and spec.image. If a tool such as Argo CD applies your
manifests, edit them there instead.`

const rolloutExample = `  # What is being rolled out, and what does it wait for?
  kubectl karve rollout status

  # Promote the image that is being tested, without the rest of the soak and outside windows
  kubectl karve rollout promote gpu

  # Roll back to the previous image
  kubectl karve rollout undo gpu`

func rolloutCommand(ctx context.Context, s streams) *cobra.Command {
	cmd := &cobra.Command{Use: "rollout", Short: "Show and control rollouts of GPU images", Long: rolloutLong, Example: rolloutExample}
	cmd.AddCommand(
		rolloutStatusCommand(ctx, s),
		rolloutEditCommand(ctx, s, "pause NAME", "Pause a rollout: test and promote no image, and replace no node for its image", rollout.Pause),
		rolloutEditCommand(ctx, s, "resume NAME", "Resume a paused rollout", rollout.Resume),
		rolloutEditCommand(ctx, s, "promote NAME", "Promote the image that is being tested as soon as its GPU check has passed", rollout.Promote),
		rolloutUndoCommand(ctx, s),
	)
	return cmd
}

func rolloutStatusCommand(ctx context.Context, s streams) *cobra.Command {
	kube, format, namespace := clusterFlags(), output{}, ""
	cmd := &cobra.Command{
		Use: "status [NAME]", Short: "Show the step of a rollout, its nodes, and what it waits for", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := format.validate(); err != nil {
				return err
			}
			c, err := connectForRollouts(ctx, s, kube, namespace)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return c.rolloutList(ctx, s.out, format, time.Now())
			}
			return c.rolloutStatus(ctx, s.out, args[0], format, time.Now())
		},
	}
	format.addFlag(cmd.Flags(), "what each rollout waits for")
	addNamespaceFlag(cmd.Flags(), &namespace)
	kube.AddFlags(cmd.Flags())
	return cmd
}

func rolloutEditCommand(ctx context.Context, s streams, use, short string, edit func(*v1alpha1.GPUImageRollout) (string, error)) *cobra.Command {
	kube, namespace := clusterFlags(), ""
	cmd := &cobra.Command{
		Use: use, Short: short, Args: oneRollout,
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := connectForRollouts(ctx, s, kube, namespace)
			if err != nil {
				return err
			}
			return c.editRollout(ctx, s.out, args[0], edit)
		},
	}
	addNamespaceFlag(cmd.Flags(), &namespace)
	kube.AddFlags(cmd.Flags())
	return cmd
}

func rolloutUndoCommand(ctx context.Context, s streams) *cobra.Command {
	to := ""
	undo := func(r *v1alpha1.GPUImageRollout) (string, error) { return rollout.Undo(r, to) }
	cmd := rolloutEditCommand(ctx, s, "undo NAME", "Roll back to the previous image, or to another one", undo)
	cmd.Flags().StringVar(&to, "to", "", "release or ID of the image, or Newest to follow new images; default: the latest other image that ran well")
	return cmd
}

func oneRollout(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name one GPUImageRollout, not %d: kubectl karve rollout status lists them", len(args))
	}
	return nil
}

// connectForRollouts returns a client of a cluster with GPUImageRollouts, and warns the user if no controller works.
func connectForRollouts(ctx context.Context, s streams, kube *genericclioptions.ConfigFlags, namespace string) (connection, error) {
	c, err := connect(kube, "")
	if err != nil {
		return c, err
	}
	served, err := serves(c.RESTMapper(), schema.GroupKind{Group: v1alpha1.Group, Kind: imageRolloutKind})
	if err == nil && !served {
		err = fmt.Errorf("the cluster has no kind %s: upgrade Karve's CRDs", imageRolloutKind)
	}
	if err == nil {
		s.warn(c.leader(ctx, namespace)())
	}
	return c, err
}

func (c connection) rollout(ctx context.Context, name string) (*v1alpha1.GPUImageRollout, error) {
	var r v1alpha1.GPUImageRollout
	err := c.Get(ctx, client.ObjectKey{Name: name}, &r)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("no GPUImageRollout is named %q: kubectl karve rollout status lists them", name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading GPUImageRollout %s: %w", name, err)
	}
	return &r, nil
}

// editRollout edits the spec of a rollout, unless somebody else edits it meanwhile.
func (c connection) editRollout(ctx context.Context, out io.Writer, name string, edit func(*v1alpha1.GPUImageRollout) (string, error)) error {
	r, err := c.rollout(ctx, name)
	if err != nil {
		return err
	}
	before := r.DeepCopy()
	follows, err := edit(r)
	if err != nil {
		return err
	}
	err = c.Patch(ctx, r, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		return fmt.Errorf("GPUImageRollout %s was changed at the same time: run the command again", name)
	}
	if err != nil {
		return fmt.Errorf("changing GPUImageRollout %s: %w", name, err)
	}
	_, err = fmt.Fprintf(out, "gpuimagerollout/%s %s\n", name, plain.Line(follows))
	return err
}

func (c connection) rolloutStatus(ctx context.Context, out io.Writer, name string, format output, now time.Time) error {
	r, err := c.rollout(ctx, name)
	if err != nil {
		return err
	}
	seen := rollout.Summarize(r)
	return format.print(out, &seen, func() string { return rolloutText(&seen, now) })
}

func (c connection) rolloutList(ctx context.Context, out io.Writer, format output, now time.Time) error {
	var list v1alpha1.GPUImageRolloutList
	if err := gather.List(ctx, c.Client, &list); err != nil {
		return fmt.Errorf("listing GPUImageRollouts: %w", err)
	}
	seen := []rollout.Summary{}
	for i := range list.Items {
		seen = append(seen, rollout.Summarize(&list.Items[i]))
	}
	slices.SortFunc(seen, func(a, b rollout.Summary) int { return cmp.Compare(a.Name, b.Name) })
	return format.print(out, seen, func() string {
		if len(seen) == 0 {
			return "There are no GPUImageRollouts.\n"
		}
		t := rolloutTable(seen, now, format.wide())
		return t.String()
	})
}

func rolloutTable(all []rollout.Summary, now time.Time, wide bool) table.Table {
	t := table.Table{Columns: []table.Column{
		{Title: "NAME"},
		{Title: "NODECLASS"},
		{Title: "CURRENT"},
		{Title: "CANDIDATE"},
		{Title: "STEP"},
		{Title: "SINCE"},
		{Title: "UPDATED"},
		{Title: "PROMOTION"},
		{Title: "PROBLEM"},
	}}
	if wide {
		t.Columns = append(t.Columns, table.Column{Title: "WAITS FOR"})
	}
	for i := range all {
		s := &all[i]
		since, updated, promotion, problem := unknown, unknown, string(v1alpha1.PromotionAutomatic), "no"
		if s.Since != nil {
			since = words.Age(now.Sub(*s.Since))
		}
		if s.Step != "" {
			updated = fmt.Sprintf("%d of %d", s.Updated, s.Nodes)
		}
		if s.Paused {
			promotion = string(v1alpha1.PromotionPaused)
		}
		if s.Problem != "" {
			problem = "yes"
		}
		row := []string{
			s.Name, s.NodeClass, cmp.Or(s.Current, unknown), cmp.Or(s.Candidate, unknown), cmp.Or(string(s.Step), unknown), since, updated, promotion, problem,
		}
		if wide {
			row = append(row, cmp.Or(s.WaitsFor, unknown))
		}
		t.Add(row...)
	}
	return t
}

func rolloutText(s *rollout.Summary, now time.Time) string {
	t := rolloutTable([]rollout.Summary{*s}, now, false)
	text := t.String()
	if len(s.Stages) > 0 {
		steps := table.Table{Columns: []table.Column{{Title: "STEP"}, {Title: "STATE"}, {}}}
		for _, stage := range s.Stages {
			steps.Add(string(stage.Step), stage.State, stage.Words)
		}
		text += "\n" + steps.String()
	}
	more := table.Table{Columns: []table.Column{{}, {}}}
	if s.WaitsFor != "" {
		more.Add("Now", s.WaitsFor)
	}
	if s.Problem != "" {
		more.Add("Problem", s.Problem)
	}
	for _, d := range s.Distrusted {
		more.Add("Distrusted", fmt.Sprintf("%s since %s: %s", d.Release, d.Since.UTC().Format(time.RFC3339), d.Message))
	}
	if len(more.Rows) > 0 {
		text += "\n" + more.String()
	}
	return text
}
