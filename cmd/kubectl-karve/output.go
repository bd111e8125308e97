package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/plain"
)

// output is a command's output format: "" for a table, "wide", "json" or "yaml".
type output struct{ format string }

// addFlag adds the flag -o. wide describes what -o wide adds.
func (o *output) addFlag(fs *pflag.FlagSet, wide string) {
	fs.StringVarP(&o.format, "output", "o", "", "output format: wide ("+wide+"), json or yaml")
}

func (o *output) validate() error {
	if slices.Contains([]string{"", "wide", "json", "yaml"}, o.format) {
		return nil
	}
	return fmt.Errorf("--output must be wide, json or yaml, not %q", o.format)
}

func (o *output) wide() bool { return o.format == "wide" }

func (o *output) isData() bool { return o.format == "json" || o.format == "yaml" }

func (o *output) print(out io.Writer, v any, text func() string) error {
	if o.isData() {
		return o.data(out, v)
	}
	_, err := io.WriteString(out, text())
	return err
}

func (o *output) data(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	text = plain.Escaped(text)
	if o.format == "yaml" { // The printer leaves out hidden characters that YAML does not escape.
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, strings.TrimSuffix(string(text), "\n"))
	return err
}

type streams struct {
	in       io.Reader
	out, err io.Writer
}

func (s streams) note(text string) { fmt.Fprintf(s.err, "note: %s\n", plain.Line(text)) }

func (s streams) notes(texts ...string) {
	for _, text := range texts {
		if text != "" {
			s.note(text)
		}
	}
}

func (s streams) warn(controller *leader.Leader) {
	if text := controller.Warning(); text != "" {
		fmt.Fprintf(s.err, "warning: %s\n", plain.Line(text))
	}
}

// error prints an error, which may consist of several, one on each line.
func (s streams) error(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(s.err, "error: %s\n", plain.Line(line))
	}
}
