package mig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestUsersAreThoseWithDeviceFilesOpen(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for pid, files := range map[string][]string{
		"12": {"/dev/null", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"}, "13": {"/dev/nvidiactl", "/dev/nvidia1"}, "14": {"/dev/nvidia10", "/dev/nvidia0"}, "self": {"/dev/nvidia1"},
	} {
		put(t, filepath.Join(proc, pid, "comm"), "p"+pid+"\n")
		put(t, filepath.Join(proc, pid, "fd", "0"), "")
		for i, file := range files {
			if err := os.Symlink(file, filepath.Join(proc, pid, "fd", string(rune('a'+i)))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, want := Users(proc, []int{1}), []User{{12, "p12", true}, {13, "p13", false}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Users(filepath.Join(proc, "none"), []int{1}); got != nil {
		t.Errorf("%v", got)
	}
	if !isSelf("/proc/self") || isSelf("/proc/1") && os.Getpid() != 1 {
		t.Error("this process is not told from others")
	}
}

const minors = "config 1\nmonitor 2\ngpu0/gi7/access 66\ngpu0/gi7/ci0/access 67\ngpu0/gi8/access 75\ngpu0/gi8/ci0/access 76\n"

func TestDeviceFilesOfInstances(t *testing.T) {
	t.Parallel()
	proc, dir := t.TempDir(), t.TempDir()
	c := Capabilities{Proc: proc}
	create := func() (made []string, err error) {
		err = c.Create(dir, func(path string, major, minor int) error {
			if major != 238 || filepath.Dir(path) != dir {
				t.Errorf("%s %d %d", path, major, minor)
			}
			made = append(made, filepath.Base(path))
			return fs.ErrExist
		})
		slices.Sort(made)
		return made, err
	}
	if made, err := create(); made != nil || err != nil {
		t.Errorf("without MIG: %v, %v", made, err)
	}
	put(t, filepath.Join(proc, "driver/nvidia-caps/mig-minors"), minors)
	if _, err := create(); err == nil || !strings.Contains(err.Error(), "devices") {
		t.Errorf("without devices: %v", err)
	}
	put(t, filepath.Join(proc, "devices"), "Character devices:\n195 nvidia\n238 nvidia-caps\n239 nvidia-caps-imex-channels\n")
	for _, file := range []string{"mig/config", "mig/monitor", "gpu0/mig/gi7/access", "gpu0/mig/gi7/ci0/access"} {
		put(t, filepath.Join(proc, "driver/nvidia/capabilities", file), "")
	}
	made, err := create()
	if err != nil || !slices.Equal(made, []string{"nvidia-cap1", "nvidia-cap2", "nvidia-cap66", "nvidia-cap67"}) {
		t.Errorf("%v, %v", made, err)
	}
	if paths, err := c.Paths(0, 8, 0); err != nil || !slices.Equal(paths, []string{"/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"}) {
		t.Errorf("%v, %v", paths, err)
	}
	if _, err := c.Paths(1, 8, 0); err == nil || !strings.Contains(err.Error(), "gpu1/gi8/access") {
		t.Errorf("%v", err)
	}
}

// systemd answers one client with the bytes, and returns what it was asked.
func systemd(t *testing.T, reply []byte) (socket string, asked chan []byte) {
	t.Helper()
	socket, asked = filepath.Join(t.TempDir(), "private"), make(chan []byte, 1)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		line := make([]byte, 512)
		n, _ := conn.Read(line)
		_, _ = conn.Write([]byte("OK 0123456789abcdef\r\n"))
		rest := make([]byte, 1024)
		m, _ := conn.Read(rest)
		_, _ = conn.Write(reply)
		asked <- append(line[:n:n], rest[:m]...)
	}()
	return socket, asked
}

// message returns a message without fields in its header.
func message(kind byte, body []byte) []byte {
	head := append([]byte{'l', kind, 0, 1}, binary.LittleEndian.AppendUint32(nil, uint32(len(body)))...)
	return append(append(head, 2, 0, 0, 0, 0, 0, 0, 0), body...)
}

func TestRebootAsksSystemd(t *testing.T) {
	t.Parallel()
	const signal = 4
	socket, asked := systemd(t, append(message(signal, []byte("ignored.")), message(methodReturn, nil)...))
	if err := Reboot(t.Context(), socket); err != nil {
		t.Fatal(err)
	}
	got := <-asked
	for _, part := range []string{"\x00AUTH EXTERNAL ", "BEGIN\r\nl\x01\x00\x01", "\x01\x01o\x00\x19\x00\x00\x00/org/freedesktop/systemd1\x00", "\x03\x01s\x00\x09\x00\x00\x00StartUnit\x00", "\x0d\x00\x00\x00reboot.target\x00"} {
		if !bytes.Contains(got, []byte(part)) {
			t.Errorf("%q is not in %q", part, got)
		}
	}
	refusal := "Access denied"
	socket, _ = systemd(t, message(methodError, append(append(binary.LittleEndian.AppendUint32(nil, uint32(len(refusal))), refusal...), 0)))
	if err := Reboot(t.Context(), socket); err == nil || !strings.Contains(err.Error(), refusal) {
		t.Errorf("%v", err)
	}
	socket, _ = systemd(t, message(methodReturn, nil)[:9])
	if err := Reboot(t.Context(), socket); err == nil {
		t.Error("half an answer is one")
	}
	if err := Reboot(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
