package mig

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
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

// systemd authenticates one client as systemd does and answers its call, and returns the call. If answer is nil, it closes the connection instead.
func systemd(t *testing.T, answer func(call *dbus.Message) *dbus.Message) (socket string, asked chan *dbus.Message) {
	t.Helper()
	socket, asked = filepath.Join(t.TempDir(), "private"), make(chan *dbus.Message, 1)
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
		in := bufio.NewReader(conn)
		for line := ""; line != "BEGIN"; {
			if line, err = in.ReadString('\n'); err != nil {
				return
			}
			line = strings.TrimSpace(strings.TrimPrefix(line, "\x00"))
			// The peer of the socket tells systemd who the client is, so the client's DATA is empty.
			reply := map[string]string{"AUTH": "REJECTED EXTERNAL ANONYMOUS", "AUTH EXTERNAL": "DATA", "DATA": "OK 0123456789abcdef0123456789abcdef", "NEGOTIATE_UNIX_FD": "AGREE_UNIX_FD"}[line]
			if reply != "" {
				_, _ = conn.Write([]byte(reply + "\r\n"))
			}
		}
		call, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		asked <- call
		if answer != nil {
			_ = answer(call).EncodeTo(conn, binary.LittleEndian)
		}
	}()
	return socket, asked
}

// to returns an answer to a call.
func to(call *dbus.Message, kind dbus.Type, fields map[dbus.HeaderField]dbus.Variant, body ...any) *dbus.Message {
	all := map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: dbus.MakeVariant(call.Serial())}
	maps.Copy(all, fields)
	if len(body) > 0 {
		all[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
	}
	return &dbus.Message{Type: kind, Headers: all, Body: body}
}

func TestRebootAsksSystemd(t *testing.T) {
	t.Parallel()
	socket, asked := systemd(t, func(call *dbus.Message) *dbus.Message {
		return to(call, dbus.TypeMethodReply, nil, dbus.ObjectPath("/org/freedesktop/systemd1/job/1"))
	})
	if err := Reboot(t.Context(), socket); err != nil {
		t.Fatal(err)
	}
	call := <-asked
	if diff := cmp.Diff([]any{"reboot.target", "replace-irreversibly"}, call.Body); diff != "" {
		t.Errorf("(-want +asked)\n%s", diff)
	}
	for field, want := range map[dbus.HeaderField]string{
		dbus.FieldDestination: `"org.freedesktop.systemd1"`, dbus.FieldPath: `@o "/org/freedesktop/systemd1"`, dbus.FieldInterface: `"org.freedesktop.systemd1.Manager"`, dbus.FieldMember: `"StartUnit"`,
	} {
		if got := call.Headers[field].String(); got != want {
			t.Errorf("field %d is %s, want %s", field, got, want)
		}
	}
	socket, _ = systemd(t, func(call *dbus.Message) *dbus.Message {
		return to(call, dbus.TypeError, map[dbus.HeaderField]dbus.Variant{dbus.FieldErrorName: dbus.MakeVariant("org.freedesktop.DBus.Error.AccessDenied")}, "Access denied")
	})
	if err := Reboot(t.Context(), socket); err == nil || !strings.Contains(err.Error(), "Access denied") {
		t.Errorf("%v", err)
	}
	socket, _ = systemd(t, nil)
	if err := Reboot(t.Context(), socket); err == nil {
		t.Error("no answer is one")
	}
	if err := Reboot(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
