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

// unusableOf returns the GPUs of the machine that were not found. skipped are the errors of GPUs that NVML counts and cannot open.
func (l *Library) unusableOf(found map[string]known, skipped []error) []gpu.Unusable {
	if slices.ContainsFunc(skipped, func(err error) bool { return codeOf(err) == nvml.ERROR_NO_PERMISSION }) {
		return nil // The container has no access to them.
	}
	var out []gpu.Unusable
	for _, address := range l.absent(found) {
		out = append(out, gpu.Unusable{Where: "at PCI " + address, Why: "the driver does not list it"})
	}
	if len(skipped) == 0 {
		return out
	}
	if len(out) == 0 { // The kernel does not show them.
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
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return nvml.SUCCESS
}

// absent returns the PCI addresses of GPUs that the kernel assigns to NVIDIA's driver and NVML does not list.
func (l *Library) absent(found map[string]known) []string {
	var known []string
	for _, k := range found {
		if k.address == "" {
			return nil
		}
		known = append(known, k.address)
	}
	if l.has["nvmlGetExcludedDeviceCount"] && l.has["nvmlGetExcludedDeviceInfoByIndex"] {
		count, _ := l.api.GetExcludedDeviceCount() // It is 0 if NVML does not report it.
		for i := range count {
			if info, code := l.api.GetExcludedDeviceInfoByIndex(i); code == nvml.SUCCESS {
				known = append(known, busAddress(info.PciInfo.Domain, info.PciInfo.Bus, info.PciInfo.Device))
			}
		}
	}
	paths, _ := filepath.Glob(filepath.Join(l.options.Sysfs, "bus", "pci", "devices", "*")) // The pattern is valid.
	var out []string
	for _, path := range paths {
		if isGPU(path) && !slices.Contains(known, filepath.Base(path)) {
			out = append(out, filepath.Base(path))
		}
	}
	return out
}

// isGPU reports whether a PCI device is a display or 3D controller of NVIDIA that no other driver uses, such as vfio-pci for a virtual machine. If its
// start failed, it may have no driver.
func isGPU(path string) bool {
	read := func(name string) string {
		content, _ := os.ReadFile(filepath.Join(path, name)) // A missing file means that it is not a GPU.
		return strings.TrimSpace(string(content))
	}
	if read("vendor") != "0x10de" || !strings.HasPrefix(read("class"), "0x03") {
		return false
	}
	driver, err := os.Readlink(filepath.Join(path, "driver"))
	return err != nil || filepath.Base(driver) == "nvidia"
}

// busAddress formats a PCI address as the kernel does. NVML uses eight digits for the domain, and capitals.
func busAddress(domain, bus, device uint32) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
}
