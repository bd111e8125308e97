package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

var crdResource = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// installCRDs installs Karpenter's CRDs, which the builder puts beside the binaries, Karve's own CRDs from the repository, and those of the config.
func (c *Cluster) installCRDs(ctx context.Context) error {
	return c.ApplyCRDs(ctx, append([]string{
		filepath.Join(c.root, binDir, "crds"),
		filepath.Join(c.root, "pkg", "apis", "crds"),
	}, c.config.CRDs...)...)
}

// ApplyCRDs installs or replaces the CRDs of files and folders.
func (c *Cluster) ApplyCRDs(ctx context.Context, paths ...string) error {
	crds, err := readCRDs(paths)
	if err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	client, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	for _, crd := range crds {
		if _, err := client.Resource(crdResource).Apply(ctx, crd.GetName(), crd, metav1.ApplyOptions{FieldManager: "karve-cluster", Force: true}); err != nil {
			return fmt.Errorf("installing %s: %w", crd.GetName(), err)
		}
	}
	disco, err := discovery.NewDiscoveryClientForConfig(c.admin)
	if err != nil {
		return fmt.Errorf("installing CRDs: %w", err)
	}
	for _, crd := range crds {
		if err := waitServed(ctx, disco, crd); err != nil {
			return fmt.Errorf("installing %s: %w", crd.GetName(), err)
		}
	}
	return nil
}

func readCRDs(paths []string) ([]*unstructured.Unstructured, error) {
	var files []string
	for _, path := range paths {
		if filepath.Ext(path) == ".yaml" {
			files = append(files, path)
			continue
		}
		in, err := filepath.Glob(filepath.Join(path, "*.yaml"))
		if err != nil {
			return nil, err
		}
		files = append(files, in...)
	}
	crds := make([]*unstructured.Unstructured, 0, len(files))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &crd.Object); err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if crd.GetKind() != "CustomResourceDefinition" {
			return nil, fmt.Errorf("%s holds no CustomResourceDefinition", file)
		}
		crds = append(crds, crd)
	}
	return crds, nil
}

// waitServed waits until discovery lists the resource in all its versions. This happens after the condition Established, and kubectl and REST mappers
// depend on it. Discovery cannot be watched.
func waitServed(ctx context.Context, disco discovery.DiscoveryInterface, crd *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	served := func(version string) bool {
		list, err := disco.ServerResourcesForGroupVersion(group + "/" + version)
		// The API server returns an error until it serves the version.
		return err == nil && slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == plural })
	}
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok {
			return errors.New("spec.versions is not a list of objects")
		}
		if version["served"] != true {
			continue
		}
		name, _ := version["name"].(string)
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, readyTimeout, true, func(context.Context) (bool, error) {
			return served(name), nil
		}); err != nil {
			return fmt.Errorf("waiting for version %s to be served: %w", name, err)
		}
	}
	return nil
}
