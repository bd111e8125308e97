// Package builtin holds the built-in instance types: those of EC2 with whole NVIDIA GPUs, at the on-demand prices of us-east-1. README.md in this directory
// gives the sources and their dates.
package builtin

import (
	"bytes"
	_ "embed"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
)

//go:embed instance-types.json
var file []byte

// InstanceTypes returns the built-in instance types, sorted by name.
func InstanceTypes() ([]catalog.InstanceType, error) {
	return catalog.ReadKWOK(bytes.NewReader(file), aws.GPULabels)
}
