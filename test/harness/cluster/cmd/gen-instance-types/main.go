// Command gen-instance-types writes two files in the schema of Karpenter's kwok provider: the instance types that are built into Karve, and a file as a
// user may provide it, for plans with spot prices. The shapes and on-demand prices of the GPU types are those of EC2 in us-east-1. Only the second file
// has spot prices. They are made up: a fixed share of the on-demand price that differs by zone.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	source := flag.String("source", "../../shared/data/ec2-gpu-instance-types.json", "the EC2 GPU instance types to read")
	out := flag.String("out", "harness/cluster/instance-types.json", "the file with spot prices to write")
	builtin := flag.String("builtin", "../pkg/catalog/builtin/instance-types.json", "the built-in file to write")
	flag.Parse()
	if err := run(*source, *out, *builtin); err != nil {
		fmt.Fprintln(os.Stderr, "gen-instance-types:", err)
		os.Exit(1)
	}
}

func run(source, out, builtin string) error {
	content, err := os.ReadFile(source)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the EC2 instance types are not at %s, name their place with -source", source)
	}
	if err != nil {
		return err
	}
	for _, file := range []struct {
		path     string
		generate func([]byte) ([]byte, error)
	}{{out, generate}, {builtin, generateBuiltin}} {
		generated, err := file.generate(content)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file.path, generated, 0o644); err != nil { //nolint:gosec // a file of the repository
			return err
		}
	}
	return nil
}
