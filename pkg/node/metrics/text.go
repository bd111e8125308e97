package metrics

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// ContentType is the content type of what Text writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is the type of a metric.
type Kind string

// Kinds.
const (
	Gauge   Kind = "gauge"
	Counter Kind = "counter"
)

// Text writes metrics in the Prometheus text format. It does not use the Prometheus client library, which would add 0.8 MB to the agent's binary for about
// forty lines of code. The tests parse the output with the Prometheus parser.
type Text struct {
	w    *bufio.Writer
	name string
	help string
	kind Kind
	open bool
}

// NewText returns a Text that writes to w. Flush must be called at the end.
func NewText(w io.Writer) *Text { return &Text{w: bufio.NewWriter(w)} }

// Flush writes buffered data and returns the first error of all writes.
func (t *Text) Flush() error { return t.w.Flush() }

// Family begins a metric. All its samples must be written before the next metric begins. A metric without samples is not written.
func (t *Text) Family(name string, kind Kind, help string) {
	t.name, t.kind, t.help, t.open = name, kind, help, false
}

// Sample writes a value of the metric. labels are alternating names and values.
func (t *Text) Sample(value float64, labels ...string) {
	if !t.open {
		t.open = true
		t.write("# HELP ", t.name, " ", helpEscapes.Replace(t.help), "\n# TYPE ", t.name, " ", string(t.kind), "\n")
	}
	t.write(t.name)
	for i := 0; i+1 < len(labels); i += 2 {
		separator := ","
		if i == 0 {
			separator = "{"
		}
		t.write(separator, labels[i], `="`, valueEscapes.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")), `"`)
	}
	if len(labels) > 1 {
		t.write("}")
	}
	t.write(" ", strconv.FormatFloat(value, 'g', -1, 64), "\n")
}

func (t *Text) write(parts ...string) {
	for _, part := range parts {
		_, _ = t.w.WriteString(part) // Flush returns the error.
	}
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	valueEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)
