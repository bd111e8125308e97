package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/cluster"
)

// plugin is kubectl karve, relative to the root of the repository.
const plugin = "_output/bin/kubectl-karve"

// buildPage builds kubectl karve, which serves the page.
func (d *demo) buildPage(ctx context.Context) error {
	build := exec.CommandContext(ctx, filepath.Join(d.root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "TRIMPATH=no") // The cache has what was compiled for the controller.
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building kubectl karve: %w\n%s", err, out)
	}
	return nil
}

// servePage runs kubectl karve ui and prints the URL of the page. It starts no browser: there may be none.
func (d *demo) servePage(ctx context.Context) error {
	port, err := d.cluster.FreePort(ctx)
	if err != nil {
		return err
	}
	const name = cluster.Component("page")
	err = d.cluster.StartProgram(ctx, cluster.Program{
		Name: name, Path: filepath.Join(d.root, plugin), Args: []string{"ui", "--kubeconfig=" + d.cluster.Kubeconfig(), fmt.Sprintf("--port=%d", port)},
		ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/", port),
	})
	if err != nil {
		return err
	}
	printed, err := os.ReadFile(d.cluster.Log(name))
	if err != nil {
		return fmt.Errorf("reading the URL of the page: %w", err)
	}
	url := urlIn(string(printed))
	if url == "" {
		return errors.New("kubectl karve ui has printed no URL")
	}
	d.print("`kubectl karve ui` serves what happens now as a web page. Open it in a browser of this computer:\n\n  %s\n", url)
	return nil
}

// urlIn returns the line of the output of kubectl karve ui that is the URL of the page, and "" if there is none.
func urlIn(output string) string {
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "http://") {
			return line
		}
	}
	return ""
}

// stay runs the pods of the example once more, and leaves the cluster up until Ctrl-C.
func (d *demo) stay(ctx context.Context, pods int) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: exampleDeployment}}
	scale := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec": {"replicas": %d}}`, pods))
	if err := d.client.Patch(ctx, deployment, scale); err != nil {
		return fmt.Errorf("scaling the Deployment: %w", err)
	}
	d.chapter("The cluster stays up until Ctrl-C")
	d.print("scaled %s to %d pods again; the page shows how their nodes come. More to try:\n", exampleDeployment, pods)
	fmt.Fprintf(d.out, "  export KUBECONFIG=%s PATH=%s:$PATH\n", d.cluster.Kubeconfig(), filepath.Join(d.root, "_output", "bin"))
	for _, command := range []string{"scale deployment/" + exampleDeployment + " --replicas=25", "karve inspect", "karve explain node NODE", "karve doctor"} {
		fmt.Fprintf(d.out, "  kubectl %s\n", command)
	}
	<-ctx.Done()
	fmt.Fprintln(d.out, "\nstopping the cluster")
	if errors.Is(context.Cause(ctx), errEnded) {
		return context.Cause(ctx)
	}
	return nil
}
