// Package chart renders the repository's Helm charts. It uses its own helm, whose version is pinned in test/harness/cluster/build/kubernetes.
package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
)

// Helm builds helm into _output/bin, below the repository's root, if it is missing, and returns its path.
var Helm = sync.OnceValues(func() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	if err := builder.Build(context.Background(), root, io.Discard, builder.Helm); err != nil {
		return "", err
	}
	return filepath.Join(root, "_output", "bin", "helm"), nil
})

// Version returns the version of the charts.
func Version() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "charts", "karve", "Chart.yaml"))
	if err != nil {
		return "", fmt.Errorf("reading the version of the charts: %w", err)
	}
	var c struct{ Version string }
	if err := yaml.Unmarshal(text, &c); err != nil {
		return "", fmt.Errorf("reading the version of the charts: %w", err)
	}
	return c.Version, nil
}

// Chart is a chart of the repository.
type Chart struct {
	// Name is the name of its folder below charts, or the path of a packaged chart.
	Name string
	// Release and Namespace are the name and namespace of the installation.
	Release, Namespace string
}

// Lint runs helm's linter and treats warnings as errors. options are helm's, such as "--set=strict=true".
func (c Chart) Lint(ctx context.Context, options ...string) error {
	_, err := c.helm(ctx, append([]string{"lint", "--strict"}, options...)...)
	return err
}

// Template renders the chart.
func (c Chart) Template(ctx context.Context, options ...string) (Objects, error) {
	out, err := c.helm(ctx, append([]string{"template", c.Release, "--namespace=" + c.Namespace}, options...)...)
	if err != nil {
		return nil, err
	}
	var objects Objects
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading what the chart %s makes: %w", c.Name, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// Package packages the chart into a folder and returns the path of the archive.
func (c Chart) Package(ctx context.Context, folder string) (string, error) {
	if _, err := c.helm(ctx, "package", "--destination="+folder); err != nil {
		return "", err
	}
	paths, err := filepath.Glob(filepath.Join(folder, filepath.Base(c.Name)+"-[0-9]*.tgz"))
	if err != nil || len(paths) != 1 {
		return "", fmt.Errorf("packing the chart %s made %q: %w", c.Name, paths, err)
	}
	return paths[0], nil
}

func (c Chart) helm(ctx context.Context, args ...string) ([]byte, error) {
	helm, err := Helm()
	if err != nil {
		return nil, err
	}
	root, err := cluster.Root()
	if err != nil {
		return nil, err
	}
	path := c.Name
	if !filepath.IsAbs(path) {
		path = filepath.Join(root, "charts", path)
	}
	cmd := exec.CommandContext(ctx, helm, append(args, path)...)
	// Use nothing of the user's own, such as plugins. The folder is never created.
	cmd.Env = os.Environ()
	for _, home := range []string{"HELM_CONFIG_HOME", "HELM_DATA_HOME", "HELM_CACHE_HOME"} {
		cmd.Env = append(cmd.Env, home+"="+filepath.Join(root, "_output", "helm"))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("helm %s of the chart %s: %w\n%s%s", args[0], c.Name, err, stderr.String(), out)
	}
	return out, nil
}

// Objects are the objects of a rendered chart.
type Objects []*unstructured.Unstructured

// Into converts the only object of a kind. It returns an error if there is not exactly one, or if the object has unknown fields.
func (o Objects) Into(kind string, into any) error {
	found := o.Kind(kind)
	if len(found) != 1 {
		return fmt.Errorf("there are %d objects of the kind %s, want one", len(found), kind)
	}
	return Convert(found[0], into)
}

// Convert converts an object. It returns an error if the object has fields that into does not have.
func Convert(o *unstructured.Unstructured, into any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true)
}

// Kind returns the objects of a kind.
func (o Objects) Kind(kind string) Objects {
	var found Objects
	for _, object := range o {
		if object.GetKind() == kind {
			found = append(found, object)
		}
	}
	return found
}
