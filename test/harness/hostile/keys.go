package hostile

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
)

var constant = regexp.MustCompile(`= +(?:domain|Group) *\+ *"(/[a-z-]+)"`)

// Keys returns the keys of labels and annotations that have a meaning: those of Karve, which it finds in the sources, and some others.
var Keys = sync.OnceValue(func() []string {
	all := []string{
		"karpenter.sh/do-not-disrupt", "controller.kubernetes.io/pod-deletion-cost", "pv.kubernetes.io/bind-completed", "volume.beta.kubernetes.io/storage-class", "claims.karve.sh/ask",
		"cluster-autoscaler.kubernetes.io/safe-to-evict", "kubectl.kubernetes.io/last-applied-configuration",
	}
	root, err := cluster.Root()
	if err != nil {
		panic(err)
	}
	for _, dir := range []string{"pkg/nodecontract", "pkg/apis/v1alpha1"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			panic(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file) //nolint:gosec // It is of the repository.
			if err != nil {
				panic(err)
			}
			for _, found := range constant.FindAllSubmatch(source, -1) {
				all = append(all, v1alpha1.Group+string(found[1]))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
})
