package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTargetsOfMakeExist checks the targets that sentences name. TestCommandsOfPagesRun runs the commands in code blocks.
func TestTargetsOfMakeExist(t *testing.T) {
	t.Parallel()
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):( |$)`).FindAllStringSubmatch(read(t, filepath.Join(root, "Makefile")), -1) {
		targets[m[1]] = true
	}
	named := 0
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile("`(?:[A-Z_]+=\\S+ )*make ([^`\n]+)`").FindAllStringSubmatch(read(t, page), -1) {
			for target := range strings.FieldsSeq(m[1]) {
				if named++; !strings.Contains(target, "=") && !targets[target] {
					t.Errorf("%s names make %s, which does not exist", page, target)
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("found %d targets only", named)
	}
}
