package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

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
			out, in := terminal(s.out), terminal(s.in)
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

// reading is the result of reading the cluster.
type reading struct {
	all *overview.Overview
	err error
}

// watchNodes draws a view of the nodes on a terminal until the user quits or ctx ends.
func watchNodes(ctx context.Context, in, out *os.File, v view, read func(context.Context) (*overview.Overview, error)) error {
	first, err := read(ctx)
	if err != nil {
		return err
	}
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return fmt.Errorf("setting up the terminal (--watch=false does not need it): %w", err)
	}
	// Switch to the alternate screen, hide the cursor and turn off line wrapping.
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l\x1b[?7l")
	defer func() {
		fmt.Fprint(out, "\x1b[?7h\x1b[?25h\x1b[?1049l")
		_ = term.Restore(int(in.Fd()), before) // There is nothing else to try.
	}()
	// The program may be about to end although the terminal accepts no output.
	defer context.AfterFunc(ctx, func() { _ = term.Restore(int(in.Fd()), before) })()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	keys, readings := make(chan key), make(chan reading)
	go readKeys(ctx, in, keys)
	go reread(ctx, read, readings)

	v.all, v.colors, v.updated = first, paletteOf(out), first.AsOf
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		v.now = time.Now()
		v.width, v.height = sizeOf(out)
		fmt.Fprint(out, v.frame())
		select {
		case <-ctx.Done():
			return nil
		case k, ok := <-keys:
			if !ok || k == keyQuit {
				return nil
			}
			v.press(k)
		case r := <-readings:
			if v.err = r.err; r.err == nil {
				v.all, v.updated = r.all, r.all.AsOf
			}
		case <-tick.C:
		}
	}
}

// reread reads the cluster repeatedly until ctx ends.
func reread(ctx context.Context, read func(context.Context) (*overview.Overview, error), readings chan<- reading) {
	wait := refreshEvery
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		start := time.Now()
		all, err := read(ctx)
		wait = max(refreshEvery, refreshShare*time.Since(start))
		select {
		case readings <- reading{all, err}:
		case <-ctx.Done():
			return
		}
	}
}

// The size of a terminal that does not report its size.
const defaultWidth, defaultHeight = 80, 24

func sizeOf(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return defaultWidth, defaultHeight
	}
	return width, height
}

// key is a key that the live view handles.
type key int

const (
	keyOther key = iota
	keyQuit
	keySort
	keyPods
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyEnd
)

// readKeys sends the pressed keys until ctx or the input ends. It closes the channel at the end of the input.
func readKeys(ctx context.Context, in io.Reader, keys chan<- key) {
	defer close(keys)
	input := bufio.NewReader(in)
	for {
		k, err := readKey(input)
		if err != nil {
			return
		}
		select {
		case keys <- k:
		case <-ctx.Done():
			return
		}
	}
}

// readKey reads one key. Arrow keys and similar keys are sequences that begin with ESC [ or ESC O.
func readKey(in *bufio.Reader) (key, error) {
	const escape, interrupt, endOfInput = 0x1b, 0x03, 0x04
	c, err := in.ReadByte()
	if err != nil {
		return keyOther, err
	}
	switch c {
	case 'q', 'Q', interrupt, endOfInput:
		return keyQuit, nil
	case 's', 'S':
		return keySort, nil
	case 'p', 'P':
		return keyPods, nil
	case 'k':
		return keyUp, nil
	case 'j':
		return keyDown, nil
	case ' ':
		return keyPageDown, nil
	case 'g':
		return keyHome, nil
	case 'G':
		return keyEnd, nil
	case escape:
		if in.Buffered() == 0 {
			return keyQuit, nil // The key Esc itself.
		}
		return readSequence(in)
	}
	return keyOther, nil
}

func readSequence(in *bufio.Reader) (key, error) {
	if c, err := in.ReadByte(); err != nil || c != '[' && c != 'O' {
		return keyOther, err
	}
	number := byte(0)
	for {
		c, err := in.ReadByte()
		if err != nil {
			return keyOther, err
		}
		if c >= '0' && c <= '9' || c == ';' {
			number = c
			continue
		}
		if c == '~' {
			return numberedKey(number), nil
		}
		return letteredKey(c), nil
	}
}

// letteredKey returns the key of a sequence that ends in a letter.
func letteredKey(letter byte) key {
	switch letter {
	case 'A':
		return keyUp
	case 'B':
		return keyDown
	case 'H':
		return keyHome
	case 'F':
		return keyEnd
	}
	return keyOther
}

// numberedKey returns the key of a sequence that has a number.
func numberedKey(number byte) key {
	switch number {
	case '1', '7':
		return keyHome
	case '4', '8':
		return keyEnd
	case '5':
		return keyPageUp
	case '6':
		return keyPageDown
	}
	return keyOther
}
