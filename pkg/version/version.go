// Package version reports from which sources a program was built.
package version

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Build describes how a program was built. Unknown fields are "".
type Build struct {
	// Version is the version of the module: a tag such as v0.1.0, or a pseudo-version with the time and the revision of the commit. It is "devel" with the revision if
	// it was built without one.
	Version string `json:"version"`
	// Revision is the commit. Modified reports whether the sources differed from it.
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	// Time is when the commit was made, in RFC 3339.
	Time string `json:"time,omitempty"`
	// Go is the version of Go. Platform is the operating system and the architecture.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// shortRevision is the number of characters of a revision in a version, as in pseudo-versions.
const shortRevision = 12

// Of returns the build that a program's build information describes.
func Of(info *debug.BuildInfo) Build {
	b := Build{Version: info.Main.Version, Go: cmp.Or(info.GoVersion, runtime.Version()), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
		if b.Revision != "" {
			b.Version += "-" + b.Revision[:min(len(b.Revision), shortRevision)]
		}
		if b.Modified {
			b.Version += "+dirty"
		}
	}
	return b
}

// This returns the build of the running program.
func This() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return Of(info)
}
