package builder

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/version"
)

// Given is the environment variable that names a folder with programs that are used instead of building them, as for controller-runtime's envtest. The
// folder may have some of the programs, and Karpenter's CRDs in a folder crds.
const Given = "KUBEBUILDER_ASSETS"

// given returns the path and the version of the program in the folder that Given names. Both are "" if there is none.
func (t target) given() (path, version string, err error) {
	folder := os.Getenv(Given)
	if folder == "" {
		return "", "", nil
	}
	path, err = filepath.Abs(filepath.Join(folder, t.name))
	if err != nil {
		return "", "", err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", "", nil
	}
	version, err = t.versionOf(path)
	if err != nil {
		return "", "", fmt.Errorf("%s of %s=%s: %w", t.name, Given, folder, err)
	}
	return path, version, nil
}

var versions = regexp.MustCompile(`\bv?(\d+)\.(\d+)\.(\d+)\b`)

// versionOf returns the version of a program, and an error if it is another program or the tests do not run with that version.
func (t target) versionOf(path string) (string, error) {
	if strings.HasPrefix(t.pkg, "k8s.io/kubernetes/") && t.name != "kubectl" {
		return printed(context.Background(), path, version.OldestKubernetes, version.NewestKubernetes)
	}
	if t.name == "etcd" {
		return printed(context.Background(), path, 0, 99)
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", err
	}
	if info.Path != t.pkg {
		return "", fmt.Errorf("it is the program %s, and not %s", info.Path, t.pkg)
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "sigs.k8s.io/karpenter" {
			return within(m.Version, version.OldestKarpenter, version.NewestKarpenter)
		}
	}
	return info.Main.Version, nil
}

// KubernetesMinor returns the minor version of a program of Kubernetes, such as "1.37".
func KubernetesMinor(ctx context.Context, path string) (string, error) {
	text, err := printed(ctx, path, version.OldestKubernetes, version.NewestKubernetes)
	if err != nil {
		return "", err
	}
	found := versions.FindStringSubmatch(text)
	return found[1] + "." + found[2], nil
}

// printed returns the version that a program prints.
func printed(ctx context.Context, path string, oldest, newest int) (string, error) {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("asking %s for its version: %w", path, err)
	}
	return within(string(out), oldest, newest)
}

// within returns the first version in a text if its minor is within bounds.
func within(text string, oldest, newest int) (string, error) {
	found := versions.FindStringSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("no version in %q", text)
	}
	if minor, err := strconv.Atoi(found[2]); err != nil || minor < oldest || minor > newest {
		return "", fmt.Errorf("version %s is not between %s.%d and %s.%d", found[0], found[1], oldest, found[1], newest)
	}
	return found[0], nil
}

// take links the programs that need no build, and returns the others.
func (s Set) take(ctx context.Context, root, bin string) (Set, error) {
	var others Set
	for _, t := range s {
		path, _, err := t.given()
		if err != nil {
			return nil, err
		}
		if path == "" {
			others = append(others, t)
			continue
		}
		if t.name == "karpenter" {
			files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "crds", "*.yaml"))
			if err == nil && len(files) > 0 {
				err = replaceCRDs(bin, files)
			} else if err == nil {
				err = copyCRDs(ctx, root, bin)
			}
			if err != nil {
				return nil, err
			}
		}
		link := filepath.Join(bin, stampDir, "new-"+t.name)
		if err := errors.Join(os.RemoveAll(link), os.Symlink(path, link)); err != nil {
			return nil, err
		}
		if err := t.install(root, bin, link); err != nil {
			return nil, err
		}
	}
	return slices.Clip(others), nil
}
