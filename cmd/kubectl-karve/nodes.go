package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
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

// nodesOptions are the flags of the nodes command.
type nodesOptions struct {
	namespace string
	selection nodeSelection
	watch     bool
	output    output
	kube      *genericclioptions.ConfigFlags
}

const nodesLong = `Watch the nodes with shared GPUs: how many replicas pods hold, what the nodes cost, and what happens to them. Keys: q quits, s sorts by
another column, p switches to pods, and the arrow keys, PgUp, PgDn, Home and End scroll. If standard output is not a terminal, and with -o json and -o yaml,
the nodes are printed once.`

func nodesCommand(ctx context.Context, s streams) *cobra.Command {
	o := nodesOptions{kube: clusterFlags()}
	cmd := &cobra.Command{
		Use: "nodes", Short: "Watch the nodes with shared GPUs", Long: nodesLong, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := o.output.validate(); err != nil {
				return err
			}
			by, err := o.selection.order()
			if err != nil {
				return err
			}
			c, err := connect(o.kube, "")
			if err != nil {
				return err
			}
			read := func(ctx context.Context) (*overview.Overview, error) {
				seen, err := c.overview(ctx, o.namespace)
				if err != nil {
					return nil, err
				}
				return o.selection.apply(seen)
			}
			out, in := terminalOf(s.out), terminalOf(s.in)
			if !o.watch || out == nil || in == nil || o.output.isData() {
				return printNodes(ctx, s.out, o.output, by, read)
			}
			return watchNodes(ctx, in, out, view{wide: o.output.wide(), order: by}, read)
		},
	}
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", true, "watch the nodes if standard output is a terminal")
	o.output.addFlag(cmd.Flags(), "zone and NodeClaim")
	o.selection.addFlags(cmd.Flags(), true)
	addNamespaceFlag(cmd.Flags(), &o.namespace)
	o.kube.AddFlags(cmd.Flags())
	return cmd
}

// printNodes prints the nodes once.
func printNodes(ctx context.Context, out io.Writer, format output, by int, read func(context.Context) (*overview.Overview, error)) error {
	all, err := read(ctx)
	if err != nil {
		return err
	}
	if format.isData() {
		return format.data(out, all)
	}
	v := view{all: all, wide: format.wide(), order: by, colors: paletteFor(out)}
	_, err = io.WriteString(out, v.text())
	return err
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

// reread reads the cluster after a time.
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
