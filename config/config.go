// Package config holds the roles of the controller, which are generated from its code.
package config

import "embed"

// Roles has a file for what the controller always needs, rbac/role.yaml, and one for each feature, such as rbac/nominations.yaml.
//
//go:embed rbac/*.yaml
var Roles embed.FS
