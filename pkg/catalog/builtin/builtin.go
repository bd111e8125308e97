// Package builtin holds the built-in instance types: those of EC2 with whole NVIDIA GPUs, at the on-demand prices of us-east-1. README.md in this directory
// gives the sources and their dates.
package builtin

import (
	"bytes"
	_ "embed"
	"time"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
)

//go:embed instance-types.json
var file []byte

// Read is the date of the built-in instance types.
var Read = time.Date(2026, time.August, 21, 0, 0, 0, 0, time.UTC)

// Region is the region of their zones and prices.
const Region = "us-east-1"

// InstanceTypes returns the built-in instance types, sorted by name.
func InstanceTypes() ([]catalog.InstanceType, error) {
	return catalog.ReadKWOK(bytes.NewReader(file), aws.GPULabels)
}
