package nvml

import (
	"cmp"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// Links implements gpu.Library. A GPU that does not report its links has no NVLinks.
func (l *Library) Links() ([]gpu.Link, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	if !l.ready {
		return nil, gpu.ErrClosed
	}
	l.mu.Lock()
	all := slices.SortedFunc(maps.Values(l.known), func(a, b known) int { return cmp.Compare(a.device.Index, b.device.Index) })
	l.mu.Unlock()
	var links []gpu.Link
	for i, a := range all {
		peers := l.linked(a.handle)
		for _, b := range all[i+1:] {
			link := gpu.Link{A: a.device.UUID, B: b.device.UUID, NVLinks: peers[b.address], Path: gpu.PathUnknown}
			if l.has[linkFunctions[0]] {
				if level, code := a.handle.GetTopologyCommonAncestor(b.handle); code == nvml.SUCCESS {
					link.Path = gpu.Path(level)
				}
			}
			links = append(links, link)
		}
	}
	return links, nil
}

// linked returns the number of active NVLinks of a GPU by the PCI address of the other end: a GPU or a switch.
func (l *Library) linked(handle nvml.Device) map[string]int {
	peers := map[string]int{}
	if !l.has[linkFunctions[1]] || !l.has[linkFunctions[2]] {
		return peers
	}
	for i := range nvml.NVLINK_MAX_LINKS {
		if state, code := handle.GetNvLinkState(i); code != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		if pci, code := handle.GetNvLinkRemotePciInfo(i); code == nvml.SUCCESS {
			peers[busAddress(pci.Domain, pci.Bus, pci.Device)]++
		}
	}
	return peers
}
