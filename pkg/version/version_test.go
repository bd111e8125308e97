package version_test

import (
	"runtime/debug"
	"testing"

	"karve.sh/karve/pkg/version"
)

func TestAVersionNamesTheCommit(t *testing.T) {
	t.Parallel()
	const revision = "c7c42f1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6a7b"
	settings := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: revision}, {Key: "vcs.time", Value: "2026-11-24T00:38:00Z"}, {Key: "vcs.modified", Value: modified}}
	}
	for name, c := range map[string]struct {
		main     string
		settings []debug.BuildSetting
		want     string
	}{
		"a tag":                  {"v0.1.0", settings("false"), "v0.1.0"},
		"a commit":               {"v0.0.0-20261124003800-c7c42f1d2e3f", settings("false"), "v0.0.0-20261124003800-c7c42f1d2e3f"},
		"no version":             {"(devel)", settings("false"), "devel-c7c42f1d2e3f"},
		"other sources":          {"(devel)", settings("true"), "devel-c7c42f1d2e3f+dirty"},
		"nothing":                {"", nil, "devel"},
		"an abbreviated release": {"(devel)", []debug.BuildSetting{{Key: "vcs.revision", Value: "c7c42f1"}}, "devel-c7c42f1"},
	} {
		got := version.Of(&debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: c.main}, Settings: c.settings})
		if got.Version != c.want || got.Go != "go1.26.8" || len(c.settings) == 4 && (got.Revision != revision || got.Time != "2026-11-24T00:38:00Z") {
			t.Errorf("%s: %+v, want %s", name, got, c.want)
		}
	}
	if this := version.This(); this.Version == "" || this.Platform == "" {
		t.Errorf("%+v", this)
	}
}
