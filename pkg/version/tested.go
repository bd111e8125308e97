package version

// The minor versions of Kubernetes 1 and Karpenter 1 with which this release was tested: docs/versions.md.
const (
	OldestKubernetes, NewestKubernetes = 33, 37
	OldestKarpenter, NewestKarpenter   = 14, 15
)
