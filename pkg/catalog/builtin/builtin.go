// Package builtin holds the instance types that Karve knows without being told: those of EC2 with whole NVIDIA GPUs, at the on-demand
// prices of us-east-1. README.md beside it says where each figure is from, and from when.
package builtin

import (
	"bytes"
	_ "embed"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
)

//go:embed instance-types.json
var file []byte

// InstanceTypes are the built-in instance types, by name.
func InstanceTypes() ([]catalog.InstanceType, error) {
	return catalog.ReadKWOK(bytes.NewReader(file), aws.GPULabels)
}
