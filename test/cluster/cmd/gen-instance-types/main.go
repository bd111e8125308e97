// Command gen-instance-types writes the instance types of the local cluster, in the schema that Karpenter's kwok provider
// reads. The shapes and on-demand prices of the GPU types are those of EC2 in us-east-1. Spot prices are made up: a fixed
// share of the on-demand price that differs by zone.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	source := flag.String("source", "../shared/data/ec2-gpu-instance-types.json", "the EC2 GPU instance types to read")
	out := flag.String("out", "test/cluster/instance-types.json", "the file to write")
	flag.Parse()
	if err := run(*source, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen-instance-types:", err)
		os.Exit(1)
	}
}

func run(source, out string) error {
	content, err := os.ReadFile(source)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the EC2 instance types are not at %s, name their place with -source", source)
	}
	if err != nil {
		return err
	}
	generated, err := generate(content)
	if err != nil {
		return err
	}
	return os.WriteFile(out, generated, 0o644) //nolint:gosec // a file of the repository
}
