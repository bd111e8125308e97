package version_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"karve.sh/karve/pkg/version"
)

func TestDocsNameTestedVersions(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/versions.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, pair := range [][2]int{{version.NewestKubernetes, version.NewestKarpenter}, {version.OldestKubernetes, version.OldestKarpenter}} {
		if kubernetes, karpenter := fmt.Sprintf("\n| 1.%d (", pair[0]), fmt.Sprintf(") | 1.%d (", pair[1]); !strings.Contains(string(page), kubernetes) || !strings.Contains(string(page), karpenter) {
			t.Errorf("docs/versions.md has no row %s…%s", kubernetes, karpenter)
		}
	}
}
