// Command bom writes the modules that a Go program is made of as a CycloneDX bill of materials. What the linker put into the program is what counts: no
// network, no go.mod.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: bom PROGRAM")
		os.Exit(2)
	}
	if err := write(os.Stdout, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "bom:", err)
		os.Exit(1)
	}
}

func write(w io.Writer, program string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{
		BOMRef: info.Path, Type: cyclonedx.ComponentTypeApplication, Name: filepath.Base(program), Version: info.Main.Version, PackageURL: purl(info.Main.Path, info.Main.Version),
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(content))}},
	}}
	components := []cyclonedx.Component{{
		BOMRef: "std", Type: cyclonedx.ComponentTypeLibrary, Name: "std", Version: info.GoVersion, PackageURL: purl("std", strings.TrimPrefix(info.GoVersion, "go")),
	}}
	refs := []string{"std"}
	for _, module := range info.Deps {
		for module.Replace != nil {
			module = module.Replace
		}
		c := cyclonedx.Component{
			BOMRef: purl(module.Path, module.Version), Type: cyclonedx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: purl(module.Path, module.Version),
		}
		// go.sum's h1 is a SHA-256 over the module's files.
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:")); err == nil && len(sum) == sha256.Size {
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: info.Path, Dependencies: &refs}}
	return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// purl is how a module is named among packages of all kinds. What was built from a working tree has no version.
func purl(path, version string) string {
	if version == "(devel)" {
		return "pkg:golang/" + path
	}
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}
