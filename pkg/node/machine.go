package node

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/labels"
)

const (
	sysfs = "/sys"
	// nvidiaVendor is NVIDIA's PCI vendor ID.
	nvidiaVendor = "0x10de"
	// displayClass is the first byte of the PCI class of GPUs.
	displayClass = 0x03
)

// machineOf returns the kernel's and the firmware's information about the machine.
func machineOf(root, typeFile string) labels.Machine {
	var m labels.Machine
	m.Type = readLine(typeFile)
	folders, _ := filepath.Glob(filepath.Join(root, "bus/pci/devices/*")) // The pattern is valid.
	for _, folder := range folders {
		if readLine(filepath.Join(folder, "vendor")) != nvidiaVendor {
			continue
		}
		class, err := strconv.ParseUint(readLine(filepath.Join(folder, "class")), 0, 32)
		if err == nil && class>>16 == displayClass && !slices.Contains(m.PCIClasses, uint32(class)) {
			m.PCIClasses = append(m.PCIClasses, uint32(class))
		}
	}
	return m
}

// readLine returns the content of a file without surrounding spaces, or "" if it cannot be read.
func readLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
