package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// output is the format in which a command prints: "" for a table, "wide", "json" or "yaml".
type output struct{ format string }

// addFlag adds the flag -o. wide says what more there is with -o wide.
func (o *output) addFlag(fs *pflag.FlagSet, wide string) {
	fs.StringVarP(&o.format, "output", "o", "", "output format: wide ("+wide+"), json or yaml")
}

// validate returns an error for a format that is not known.
func (o *output) validate() error {
	switch o.format {
	case "", "wide", "json", "yaml":
		return nil
	}
	return fmt.Errorf("--output must be wide, json or yaml, not %q", o.format)
}

func (o *output) wide() bool { return o.format == "wide" }

// isData reports whether values are printed as JSON or YAML.
func (o *output) isData() bool { return o.format == "json" || o.format == "yaml" }

// data writes a value as JSON or YAML.
func (o *output) data(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if o.format == "yaml" {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, strings.TrimSuffix(string(text), "\n"))
	return err
}
