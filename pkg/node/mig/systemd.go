package mig

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/godbus/dbus/v5"
)

// Systemd is the socket on which systemd answers root directly.
const Systemd = "/run/systemd/private"

const systemdPatience = 10 * time.Second

// Reboot asks systemd on a socket to reboot the machine like `systemctl reboot`: services end first. A container can neither signal the machine's first
// process nor run the machine's programs.
func Reboot(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, systemdPatience)
	defer cancel()
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		return fmt.Errorf("asking systemd on %s: %w", socket, err)
	}
	systemd := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := systemd.CallWithContext(ctx, "org.freedesktop.systemd1.Manager.StartUnit", 0, "reboot.target", "replace-irreversibly").Err; err != nil {
		return fmt.Errorf("asking systemd on %s: %w", socket, err)
	}
	return nil
}
