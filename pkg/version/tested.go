package version

// The minor versions of Kubernetes 1 and Karpenter 1 with which this release was tested: docs/versions.md.
const (
	OldestKubernetes = 33
	NewestKubernetes = 37
	OldestKarpenter  = 14
	NewestKarpenter  = 15
)
