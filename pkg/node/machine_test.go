package node

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestMachineIsReadFromSysfs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("class/dmi/id/product_name", "g4dn.12xlarge")
	for address, device := range map[string][2]string{
		"0000:00:1b.0": {"0x10de", "0x030200"}, "0000:00:1c.0": {"0x10de", "0x030200"}, // T4s
		"0000:00:03.0": {"0x1d0f", "0x030000"}, // Amazon's own display
		"0000:00:04.0": {"0x10de", "0x040300"}, // an audio function of NVIDIA's
		"0000:00:05.0": {"0x10de", "?"},
	} {
		write("bus/pci/devices/"+address+"/vendor", device[0])
		write("bus/pci/devices/"+address+"/class", device[1])
	}
	m := machineOf(root, filepath.Join(root, "class/dmi/id/product_name"))
	if m.Type != "g4dn.12xlarge" || !slices.Equal(m.PCIClasses, []uint32{0x030200}) {
		t.Errorf("got %+v", m)
	}
	if m = machineOf(filepath.Join(root, "nowhere"), ""); m.Type != "" || len(m.PCIClasses) > 0 {
		t.Errorf("got %+v", m)
	}
}

func TestTimestampChangesWithLabels(t *testing.T) {
	t.Parallel()
	now := time.Unix(1772366400, 0)
	labels := map[string]string{"nvidia.com/gpu.count": "4"}
	first := stamped(maps.Clone(labels), nil, true, now)
	if first[timestamp] != "1772366400" {
		t.Errorf("got %v", first)
	}
	if same := stamped(maps.Clone(labels), first, true, now.Add(time.Hour)); !maps.Equal(same, first) {
		t.Errorf("got %v", same)
	}
	if other := stamped(map[string]string{"nvidia.com/gpu.count": "3"}, first, true, now.Add(time.Hour)); other[timestamp] != "1772370000" {
		t.Errorf("got %v", other)
	}
	if none := stamped(maps.Clone(labels), first, false, now); !maps.Equal(none, labels) {
		t.Errorf("got %v", none)
	}
	if none := stamped(map[string]string{}, first, true, now); len(none) > 0 {
		t.Errorf("got %v", none)
	}
}
