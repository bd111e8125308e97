package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/promquery/promquerytest"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// placeholders are what commands have instead of something of the reader's, each before what it is in the test.
var placeholders = strings.NewReplacer(
	"PATH=$PWD/_output/bin:$PATH", "", "_output/bin/", "", "export KUBECONFIG=_output/clusters/default/kubeconfig", "",
	"NAMESPACE", "default", "/NAME", "/name", " NAME ", " name ",
	"replay trace.csv -f manifests/", "replay examples/replay/trace.csv -f examples/", "overlays/production", "test/suites/install/testdata/overlay", "--values slots.yaml", "--values docs/migrate/gpushare/own-nodes.yaml", "http://localhost:9090", "$PROMETHEUS",
)

// commanded is a line of a block that is no script which is a command, after the prompt if it has one.
var commanded = regexp.MustCompile(`^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:_output/bin/)?(?:curl|docker|export|git|terraform|` + strings.Join(programs, "|") + `) .*)`)

// TestCommandsOfPagesRun runs the commands in the code blocks of all pages on an API server with the objects that they name. What they do has no effect, so their order
// does not matter.
func TestCommandsOfPagesRun(t *testing.T) {
	w := newWorld(t)
	w.forgetCRDs(t)
	for _, text := range []string{
		"helm upgrade --install karve-crd charts/karve-crd --namespace karve-system --create-namespace",
		"helm upgrade --install karve charts/karve --namespace karve-system --skip-crds --set controller.image.repository=example.com/controller,node.image.repository=example.com/node,ui.enabled=true",
	} {
		w.shell(t, text)
	}
	w.addNodes(t, "a", "name", "ip-10-0-1-7.ec2.internal", "my-node", "ds-node1")
	log := filepath.Join(t.TempDir(), "log")
	prometheus := httptest.NewServer(promquerytest.WithAPod(model.Metric{"namespace": "ml", "pod": "chat-1", "nodepool": "gpu-shared", "gpunodeclass": "gpu-shared", "owner_kind": "Deployment", "owner": "chat"}))
	t.Cleanup(prometheus.Close)
	env := slices.Concat(w.env, w.playPrograms(t), []string{"COMMANDS=" + log, "PROMETHEUS=" + prometheus.URL, "registry=registry.example.com/karve", "cluster=my-cluster"})
	var there []string
	for _, page := range pages(t, w.root) {
		text, needs := scriptOf(t, w.root, page), manifestsFor(w.root, page)
		if text == "" {
			continue
		}
		if testing.Short() && len(needs) == 2 { // TestMigrationGuidesWork runs them too.
			if out, err := exec.CommandContext(t.Context(), "bash", "-n", "-c", text).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", page, err, out)
			}
			continue
		}
		if !slices.Equal(needs, there) {
			w.shell(t, `kubectl delete --all --wait=false deployments,statefulsets,pods,nodepools,gpunodeclasses,gpuimagerollouts,nodeoverlays,ec2nodeclasses
kubectl --namespace kube-system delete --all --wait=false daemonsets
kubectl apply -f test/suites/install/testdata/pages.yaml -f `+strings.Join(needs, " -f ")+`
for class in $(kubectl get ec2nodeclasses -o name); do
  kubectl patch $class --subresource=status --type=merge --patch '{"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}'
done`)
			there = needs
		}
		began := time.Now()
		cmd := exec.CommandContext(t.Context(), "bash", "-c", text)
		var said bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stderr = w.root, env, &said
		if err := cmd.Run(); err != nil {
			t.Errorf("%s: %v\n%s", page, err, &said)
		}
		t.Logf("%s: %s", page, time.Since(began).Round(time.Millisecond))
	}
	ran, not := 0, map[string]bool{}
	decoder := json.NewDecoder(must(os.Open(log)))
	for {
		var p played
		if err := decoder.Decode(&p); err != nil {
			break
		}
		if p.NotRun == "" {
			ran++
		} else {
			not[p.Command+": "+p.NotRun] = true
		}
	}
	for _, line := range slices.Sorted(maps.Keys(not)) {
		t.Logf("not run: %s", line)
	}
	if t.Logf("%d commands ran", ran); ran < 100 {
		t.Errorf("only %d commands ran", ran)
	}
}

// TestCommandsAreFound checks that a script has all commands of a page, and nothing else.
func TestCommandsAreFound(t *testing.T) {
	t.Parallel()
	const page = "# A\nSome `make test`.\n```\n$ kubectl karve plan -f x\nNODEPOOL\nkubectl get nodes    # why\nmake a \\\n  b\n```\n```yaml\nkubectl: {}\n```\n" +
		"1. First\n   ```sh\n   helm version\n   no-such-program\n   ```\n```\nkubectl patch \\\n  x <<'EOF'\nspec:\nEOF\nKUBEX=1 go test\n```\n"
	const want = "block=p:4\nkubectl karve plan -f x\nkubectl get nodes    # why\nmake a \\\n  b\nblock=p:15\n   helm version\n   no-such-program\nblock=p:19\nkubectl patch \\\n  x <<'EOF'\nspec:\nEOF\nKUBEX=1 go test\n"
	if got := commandsOf("p", page); got != want {
		t.Errorf("got\n%s", got)
	}
	for command, run := range map[string]string{
		"kubectl -n team delete pods a":                      "kubectl -n team delete pods a --dry-run=server",
		"kubectl patch --local -f a":                         "kubectl patch --local -f a",
		"kubectl rollout status deployment/a --timeout=2m":   "kubectl get deployment/a",
		"kubectl -n a port-forward deployment/b 8082":        "kubectl -n a get deployment/b",
		"kubectl karve cost --by pod":                        "kubectl karve cost --by pod --prometheus=p",
		"kubectl karve replay a.csv":                         "kubectl karve replay a.csv",
		"helm uninstall karve":                               "helm uninstall karve --dry-run",
		"helm get values karve":                              "helm get values karve",
		"helm upgrade a b":                                   "helm upgrade a b --dry-run=server --take-ownership",
		"make demo UI=1":                                     "make --dry-run demo UI=1",
		"go -C test test -count=1 -run A|B ./a ./b":          "go -C test list ./a ./b",
		"kubectl exec a":                                     "",
		"helm push a":                                        "",
		"go build ./...":                                     "",
		"kubectl get configmap -n gpu-operator mig -o yaml":  "kubectl get configmap -n gpu-operator mig -o yaml",
		"kubectl karve plan -f a --prometheus http://a/b":    "kubectl karve plan -f a --prometheus http://a/b",
		"kubectl karve cost --prometheus http://a/b --month": "kubectl karve cost --prometheus http://a/b --month",
	} {
		got, err := withoutEffect(strings.Fields(command), "p")
		if strings.Join(got, " ") != run || (err != nil) != (run == "") {
			t.Errorf("%s: got %q, %v", command, got, err)
		}
	}
}

// pages returns the pages of the documentation, those below the same folder together.
func pages(t *testing.T, root string) []string {
	t.Helper()
	all := []string{"README.md", "CONTRIBUTING.md"}
	for _, folder := range []string{"charts", "docs", "examples", "test"} {
		if err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
			if err == nil && filepath.Ext(path) == ".md" {
				path, err = filepath.Rel(root, path)
				all = append(all, path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// manifestsFor returns the folders with the manifests that the commands of a page expect in the cluster: those of a migration, or the examples.
func manifestsFor(root, page string) []string {
	for _, name := range []string{"before", "after"} {
		if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), name)); err != nil {
			return []string{"examples", "examples/two-pools", "examples/image-rollout"}
		}
	}
	return []string{filepath.Join(filepath.Dir(page), "before"), filepath.Join(filepath.Dir(page), "after")}
}

// scriptOf returns a script with the commands of a page, or "" if it has none. It goes on after a command that fails.
func scriptOf(t *testing.T, root, page string) string {
	t.Helper()
	text := commandsOf(page, string(must(os.ReadFile(filepath.Join(root, page)))))
	if text == "" {
		return ""
	}
	return "set -o pipefail\ntrap 'echo \"^^^ $block: $BASH_COMMAND\" >&2; failed=1' ERR\nfailed=0\n" + placeholders.Replace(text) + "wait\nexit $failed\n"
}

// commandsOf returns the commands in the code blocks of a page.
func commandsOf(page, text string) string {
	var b strings.Builder
	number, language, block, until := 0, "", "", ""
	open, more := false, false
	for line := range strings.Lines(text) {
		number++
		if info, fence := strings.CutPrefix(strings.TrimSpace(line), "```"); fence {
			if open = !open; open {
				language, block, more, until = info, fmt.Sprintf("block=%s:%d\n", page, number+1), false, ""
			}
			continue
		}
		command := line
		switch {
		case !open, language != "" && language != "sh" && language != "bash" && language != "shell" && language != "console":
			continue
		case language == "sh" || language == "bash" || language == "shell", more, until != "":
		default:
			m := commanded.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			command = m[1] + "\n"
		}
		if _, end, found := strings.Cut(command, "<<'"); found {
			until, _, _ = strings.Cut(end, "'")
		}
		if strings.TrimSpace(line) == until {
			until = ""
		}
		more = strings.HasSuffix(command, "\\\n")
		b.WriteString(block + command)
		block = ""
	}
	return b.String()
}

// addNodes adds nodes of the NodePool gpu-shared.
func (w *world) addNodes(t *testing.T, names ...string) {
	t.Helper()
	api := must(client.New(w.cluster.RESTConfig(), client.Options{Scheme: must(gather.Scheme())}))
	pool := snapshottest.Pool("gpu-shared", "gpu-shared")
	machine := snapshottest.TypeNamed("g4dn.xlarge")
	for _, name := range names {
		claim := snapshottest.Claim(name, &pool, machine, snapshottest.Initialized(time.Now().Add(-time.Hour)))
		node := snapshottest.Node(&claim, machine, 10)
		node.OwnerReferences = nil
		ofClaim, ofNode := claim.Status, node.Status
		err := errors.Join(api.Create(t.Context(), &claim), api.Create(t.Context(), &node))
		claim.Status, node.Status = ofClaim, ofNode
		if err := errors.Join(err, api.Status().Update(t.Context(), &claim), api.Status().Update(t.Context(), &node)); err != nil {
			t.Fatal(err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
