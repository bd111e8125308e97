package main

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"karve.sh/karve/pkg/overview/overviewtest"
)

// TestPluginsOfK9sRunVerbs reads the example as k9s does, and runs each command with a cluster, as far as that cluster goes.
func TestPluginsOfK9sRunVerbs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../examples/integrations/k9s-plugins.yaml")
	if err != nil {
		t.Fatal(err)
	}
	// The fields that k9s' schema allows and this example uses. Those without omitempty are required.
	var file struct {
		Plugins map[string]struct {
			ShortCut    string   `json:"shortCut"`
			Description string   `json:"description"`
			Scopes      []string `json:"scopes"`
			Command     string   `json:"command"`
			Background  bool     `json:"background"`
			Args        []string `json:"args"`
		} `json:"plugins"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Plugins) < 5 {
		t.Fatalf("there are %d plugins", len(file.Plugins))
	}
	kubeconfig := serve(t, overviewtest.Example())
	keys := map[string]string{}
	for name, p := range file.Plugins {
		if p.ShortCut == "" || p.Description == "" || p.Command != "sh" || p.Background || len(p.Scopes) != 1 || len(p.Args) != 2 || p.Args[0] != "-c" {
			t.Errorf("%s: %+v", name, p)
			continue
		}
		key := p.ShortCut + " of " + p.Scopes[0]
		if keys[key] != "" {
			t.Errorf("%s and %s have the shortcut %s", name, keys[key], key)
		}
		keys[key] = name
		command, pager, _ := strings.Cut(p.Args[1], " 2>&1 | ")
		args := strings.Fields(strings.NewReplacer("$NAMESPACE", "team", "$CONTEXT", "c", "$NAME", "busy").Replace(command))
		if pager != "less" || len(args) < 3 || !slices.Equal(args[:2], []string{"kubectl", "karve"}) {
			t.Errorf("%s: %s", name, p.Args[1])
			continue
		}
		var out, errOut bytes.Buffer
		status := run(t.Context(), append(args[2:], "--kubeconfig", kubeconfig), streams{strings.NewReader(""), &out, &errOut})
		// This cluster answers what inspect and top read. explain needs more, after its arguments were understood.
		understood := status == 0 || strings.Contains(errOut.String(), "listing ") || strings.Contains(errOut.String(), "reading ")
		if !understood || strings.Contains(errOut.String(), "unknown flag") {
			t.Errorf("%s: %v: status %d, %s%s", name, args, status, &out, &errOut)
		}
	}
}
