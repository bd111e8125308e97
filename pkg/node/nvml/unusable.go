//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
)

// Unusable implements gpu.Library.
func (l *Library) Unusable() []gpu.Unusable {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.unusable)
}

// unusableOf finds the GPUs that are not among those that were found. skipped is why NVML did not open some that it counts.
func (l *Library) unusableOf(found map[string]known, skipped []error) []gpu.Unusable {
	if slices.ContainsFunc(skipped, func(err error) bool { return codeOf(err) == nvml.ERROR_NO_PERMISSION }) {
		return nil // The container was not given them.
	}
	var out []gpu.Unusable
	for _, address := range l.absent(found) {
		out = append(out, gpu.Unusable{Where: "at PCI " + address, Why: "the driver does not list it"})
	}
	if len(skipped) == 0 {
		return out
	}
	if len(out) == 0 { // The kernel's view is not to be had.
		out = make([]gpu.Unusable, len(skipped))
		for i := range out {
			out[i].Where = fmt.Sprintf("number %d of those that cannot be opened", i+1)
		}
	}
	why := strings.ReplaceAll(errors.Join(skipped...).Error(), "\n", "; ")
	for i := range out {
		out[i].Why = why
	}
	return out
}

func codeOf(err error) nvml.Return {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return nvml.SUCCESS
}

// absent lists the PCI addresses of GPUs that the kernel has for NVIDIA's driver and NVML does not.
func (l *Library) absent(found map[string]known) []string {
	var known []string
	for _, k := range found {
		if k.address == "" {
			return nil
		}
		known = append(known, k.address)
	}
	if l.has["nvmlGetExcludedDeviceCount"] && l.has["nvmlGetExcludedDeviceInfoByIndex"] {
		count, _ := l.api.GetExcludedDeviceCount() // None when it does not say.
		for i := range count {
			if info, code := l.api.GetExcludedDeviceInfoByIndex(i); code == nvml.SUCCESS {
				known = append(known, address(info.PciInfo.Domain, info.PciInfo.Bus, info.PciInfo.Device))
			}
		}
	}
	paths, _ := filepath.Glob(filepath.Join(l.options.Sysfs, "bus", "pci", "devices", "*")) // The pattern is good.
	var out []string
	for _, path := range paths {
		if isGPU(path) && !slices.Contains(known, filepath.Base(path)) {
			out = append(out, filepath.Base(path))
		}
	}
	return out
}

// isGPU says whether a PCI device is a display or 3D controller of NVIDIA's that is not in the hands of another driver, such as vfio-pci for a virtual
// machine. One whose start failed may be in nobody's.
func isGPU(path string) bool {
	read := func(name string) string {
		content, _ := os.ReadFile(filepath.Join(path, name)) // Nothing is no GPU.
		return strings.TrimSpace(string(content))
	}
	if read("vendor") != "0x10de" || !strings.HasPrefix(read("class"), "0x03") {
		return false
	}
	driver, err := os.Readlink(filepath.Join(path, "driver"))
	return err != nil || filepath.Base(driver) == "nvidia"
}

// address is how the kernel writes it: NVML writes the domain with eight digits and in capitals.
func address(domain, bus, device uint32) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
}
