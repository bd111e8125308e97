package ui

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLinksAreAddressesOfWebPages(t *testing.T) {
	t.Parallel()
	const logs = "https://logs.example.com/?q={namespace}/{pod}&on={node}"
	got, err := LinksTo("https://grafana.example.com/team/", logs)
	want := []Link{{"Grafana", "https://grafana.example.com/team/d/karve-gpus?var-namespace={namespace}&var-pod={pod}"}, {"Logs", logs}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err := LinksTo("", ""); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, wrong := range [][2]string{
		{"javascript:alert(1)", ""}, {"grafana.example.com", ""}, {"", "https://logs.example.com/{namespace}"}, {"", "javascript://x/%0aalert('{pod}')"}, {"", "https://{pod}/"}, {"", "//{pod}"}, {"https://", ""},
	} {
		if got, err := LinksTo(wrong[0], wrong[1]); err == nil || !strings.HasPrefix(err.Error(), "the URL of ") {
			t.Errorf("%q is %v, %v", wrong, got, err)
		}
	}
}
