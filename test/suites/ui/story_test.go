package ui

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

// TestPageFollowsExamples applies examples/ to a cluster while the page of kubectl karve ui is open, sees the nodes come and fill, and deletes what it
// has applied.
func TestPageFollowsExamples(t *testing.T) {
	cluster.Long(t)
	browser := browse(t)
	c := cluster.ForTest(t, cluster.Config{Components: cluster.Everything(), NodeDelay: time.Second})
	if _, err := karve.Start(t.Context(), c, karve.Options{}); err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	kubectl := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), c.Kubectl(), append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
		cmd.Dir = filepath.Join(root, "examples")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	url, token := serveCluster(t, root, c.Kubeconfig())
	if status := ask(t, url+"/karve/overview", "wrong"); status != http.StatusForbidden {
		t.Errorf("a wrong token gets status %d", status)
	}

	p := open(t, browser, url+"/#token="+token)
	p.patience = 3 * time.Minute // Machines start.
	p.untilText("nodes", "0")
	kubectl("apply", "-f", "nodeclass.yaml", "-f", "gpunodeclass.yaml", "-f", "nodepool.yaml", "-f", "deployment.yaml")
	p.until("document.querySelectorAll('.tile.busy').length > 0")
	picture(p, "starting")
	p.untilText("nodes", "8")
	p.untilText("used", "80")
	p.untilText("price", "$4.208")
	p.until("document.getElementById('bound').textContent.startsWith('bound $4.208\\noptimal')")
	p.until("document.querySelectorAll('.tile:not(.busy)').length === 8")
	if cells := value[int](p, "document.querySelectorAll('#map [data-pod]').length"); cells != 80 {
		t.Errorf("the map shows %d pods, want 80", cells)
	}
	p.run(chromedp.Click(".tile", chromedp.ByQuery))
	p.until("document.querySelectorAll('.causes b').length > 0 && document.querySelectorAll('#details .pods tbody tr').length === 10")
	p.until("document.getElementById('sweep-note').textContent.startsWith('8 machines')")
	p.untilText("sweep-price", "$4.208")
	picture(p, "examples")
	p.press(kb.Escape) // An open panel would ask about a machine that ends.

	kubectl("scale", "deployment/inference", "--replicas=40")
	p.untilText("used", "40")
	kubectl("delete", "-f", "deployment.yaml", "--wait=false")
	p.untilText("used", "0")
	p.until("document.querySelectorAll('.tile.idle, .tile.busy').length > 0")
	p.untilText("nodes", "0")
	p.untilText("price", "$0.000")
	p.clean(url, token)
}

// serveCluster runs kubectl karve ui, and returns the address of the page and its token.
func serveCluster(t *testing.T, root, kubeconfig string) (url, token string) {
	t.Helper()
	path := t.TempDir()
	build := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+path, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(path, "kubectl-karve"), "ui", "--kubeconfig="+kubeconfig)
	cmd.Stderr = t.Output()
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// The test's context has ended, which interrupts the command.
		if err, status := cmd.Wait(), cmd.ProcessState.ExitCode(); status != 128+int(syscall.SIGINT) {
			t.Errorf("after an interrupt: exit status %d, %v", status, err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("kubectl karve ui printed %q: %v", line, err)
	}
	url, token, ok := strings.Cut(strings.TrimSpace(line), "/#token=")
	if !ok {
		t.Fatalf("kubectl karve ui printed %q", line)
	}
	return url, token
}

func ask(t *testing.T, url, token string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answered, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := answered.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return answered.StatusCode
}
