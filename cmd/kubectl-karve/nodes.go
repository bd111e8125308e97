package main

import (
	"context"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"karve.sh/karve/pkg/overview"
)

// The live view reads the cluster every refreshEvery, and less often if reading takes longer than a tenth of that, so that a large cluster is not read
// all the time.
const (
	refreshEvery = 2 * time.Second
	refreshShare = 10
)

type (
	nodesOptions struct {
		liveOptions
		selection nodeSelection
	}
	podsOptions struct {
		liveOptions
		selection podSelection
		sortBy    string
	}
)

type liveOptions struct {
	namespace string
	watch     bool
	output    output
	kube      *genericclioptions.ConfigFlags
}

func (o *liveOptions) addFlags(fs *pflag.FlagSet, wide string) {
	o.output.addFlag(fs, wide)
	addNamespaceFlag(fs, &o.namespace)
	o.kube.AddFlags(fs)
}

const nodesLong = `Watch the nodes with shared GPUs: how many replicas pods hold, what the nodes cost, and what happens to them. Keys: q quits, s sorts by
another column, p switches to pods, and the arrow keys, PgUp, PgDn, Home and End scroll. If standard output is not a terminal, and with -o json and -o yaml,
the nodes are printed once.`

func nodesCommand(ctx context.Context, s streams) *cobra.Command {
	o := nodesOptions{liveOptions: liveOptions{kube: clusterFlags()}}
	cmd := &cobra.Command{
		Use: "nodes", Short: "Watch the nodes with shared GPUs", Long: nodesLong, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return o.run(ctx, s, o.selection.sortBy, o.selection.apply, false)
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", true, "watch the nodes if standard output is a terminal")
	o.selection.addFlags(cmd.Flags(), true)
	o.addFlags(cmd.Flags(), "zone and NodeClaim")
	return cmd
}

const podsLong = `List the pods that hold replicas of GPUs, and those that wait for some: where they run, on which GPUs, what they cost, and since when they do not
use their GPUs. With -w on a terminal, the list is live. Its keys are those of kubectl karve nodes.`

const podsExample = `  # The pods of a team
  kubectl karve pods -n team

  # The pods of an application, those that cost most first
  kubectl karve pods -n team -l app=infer --sort-by price

  # Watch them
  kubectl karve pods -n team -w`

func podsCommand(ctx context.Context, s streams) *cobra.Command {
	o := podsOptions{liveOptions: liveOptions{kube: clusterFlags()}}
	cmd := &cobra.Command{
		Use: "pods", Aliases: []string{"pod", "po"}, Short: "List the pods that hold replicas, and those that wait", Long: podsLong, Example: podsExample, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return o.run(ctx, s, o.sortBy, o.selection.apply, true) },
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "watch the pods if standard output is a terminal")
	o.selection.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&o.sortBy, "sort-by", "", sortUsage+"(waiting ones first, then those that have not used their GPUs for longest)")
	o.addFlags(cmd.Flags(), "NodePool and resource")
	return cmd
}

// run prints or watches a view of the selected part of the cluster.
func (o *liveOptions) run(ctx context.Context, s streams, sortBy string, selected func(seen) (*overview.Overview, error), pods bool) error {
	if err := o.output.validate(); err != nil {
		return err
	}
	by, err := orderNamed(sortBy)
	if err != nil {
		return err
	}
	c, err := connect(o.kube, "")
	if err != nil {
		return err
	}
	note := ""
	read := func(ctx context.Context) (*overview.Overview, error) {
		seen, err := c.overview(ctx, o.namespace)
		if err != nil {
			return nil, err
		}
		note = seen.note
		return selected(seen)
	}
	v := view{wide: o.output.wide(), order: by, pods: pods}
	out, in := terminalOf(s.out), terminalOf(s.in)
	if o.watch && out != nil && in != nil && !o.output.isData() {
		return watchNodes(ctx, in, out, v, read)
	}
	if v.all, err = read(ctx); err != nil {
		return err
	}
	s.notes(note)
	if !o.output.isData() && pods && len(v.all.Pods)+len(v.all.Waiting) == 0 {
		s.warn(v.all.Controller)
		_, err = fmt.Fprintln(s.out, "No such pod holds a shared GPU or waits for one.")
		return err
	}
	v.colors = paletteFor(s.out)
	return o.output.print(s.out, v.data(), v.text)
}

// live is the live view as a program of bubbletea.
type live struct {
	view

	read func() (*overview.Overview, error)
}

// reading is the result of reading the cluster. took is how long it took.
type reading struct {
	all  *overview.Overview
	err  error
	took time.Duration
}

// watchNodes draws a view of the nodes on a terminal until the user quits or ctx ends.
func watchNodes(ctx context.Context, in, out *os.File, v view, read func(context.Context) (*overview.Overview, error)) error {
	first, err := read(ctx)
	if err != nil {
		return err
	}
	before, err := term.GetState(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("setting up the terminal (--watch=false does not need it): %w", err)
	}
	// The program may be about to end although the terminal accepts no output.
	defer context.AfterFunc(ctx, func() { _ = term.Restore(int(in.Fd()), before) })()
	v.all, v.colors, v.now, v.updated = first, paletteOf(out), time.Now(), first.AsOf
	l := &live{v, func() (*overview.Overview, error) { return read(ctx) }}
	_, err = tea.NewProgram(l, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler()).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// tick is sent every second, so that ages grow.
type tick time.Time

func everySecond() tea.Cmd {
	return tea.Tick(time.Second, func(now time.Time) tea.Msg { return tick(now) })
}

func (l *live) reread(after time.Duration) tea.Cmd {
	return tea.Tick(after, func(start time.Time) tea.Msg {
		all, err := l.read()
		return reading{all, err, time.Since(start)}
	})
}

// Init begins to read the cluster again and again.
func (l *live) Init() tea.Cmd { return tea.Batch(l.reread(refreshEvery), everySecond()) }

// Update handles keys, readings, and the size of the terminal.
func (l *live) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		l.width, l.height = m.Width, m.Height
	case tea.KeyPressMsg:
		if l.press(m.String()) {
			return l, tea.Quit
		}
	case reading:
		if l.err = m.err; m.err == nil {
			l.all, l.updated = m.all, m.all.AsOf
		}
		return l, l.reread(max(refreshEvery, refreshShare*m.took))
	case tick:
		l.now = time.Time(m)
		return l, everySecond()
	}
	return l, nil
}

// View draws the view on the alternate screen.
func (l *live) View() tea.View {
	v := tea.NewView(l.frame())
	v.AltScreen = true
	return v
}
