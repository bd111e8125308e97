// Package crds holds the generated CustomResourceDefinitions, so that tests and tools install what a user installs.
package crds

import "embed"

// FS holds one YAML file for each kind, named group_plural.yaml. `make generate` writes them from pkg/apis.
//
//go:embed *.yaml
var FS embed.FS
