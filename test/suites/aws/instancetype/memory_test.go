package instancetype_test

import (
	"runtime"
	"testing"

	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"k8s.io/apimachinery/pkg/types"

	fakeaws "karve.sh/karve/test/harness/aws"
)

// The controller has 150 MiB in all. The catalog reads the thousand or so instance types of EC2 a page at a time, and drops those without a GPU.
func TestCatalogFitsInMemory(t *testing.T) { //nolint:paralleltest // It measures the memory of the process.
	w := newWorld(t, fakeaws.Config{AllTypes: true})
	server := inUse()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		class := object(t, nodeClass(name, func(class *ec2v1.EC2NodeClass) { class.UID = types.UID(name) }))
		w.until(class, "fresh", fresh)
	}
	if used := inUse() - server; used > 30<<20 {
		t.Errorf("the catalog of five classes holds %d MiB", used>>20)
	} else {
		t.Logf("the catalog of five classes holds %d KiB", used>>10)
	}
	runtime.KeepAlive(w.Catalog)
}

// inUse returns the live heap in bytes.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
