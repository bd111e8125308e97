package mig

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Systemd is the socket on which systemd answers root directly.
const Systemd = "/run/systemd/private"

const systemdPatience = 10 * time.Second

// Reboot asks systemd on a socket to reboot the machine like `systemctl reboot`: services end first. A container can neither signal the machine's first
// process nor run the machine's programs, so it sends this one D-Bus message.
func Reboot(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, systemdPatience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := rebootOn(conn); err != nil {
		return fmt.Errorf("asking systemd on %s: %w", socket, err)
	}
	return nil
}

func rebootOn(conn io.ReadWriter) error {
	uid := hex.EncodeToString([]byte(strconv.Itoa(os.Getuid())))
	if _, err := fmt.Fprintf(conn, "\x00AUTH EXTERNAL %s\r\n", uid); err != nil {
		return err
	}
	answer, err := readLine(conn)
	if err == nil && !strings.HasPrefix(answer, "OK ") {
		err = fmt.Errorf("it says %q", answer)
	}
	if err != nil {
		return err
	}
	if _, err := conn.Write(append([]byte("BEGIN\r\n"), startUnit("reboot.target", "replace-irreversibly")...)); err != nil {
		return err
	}
	return readReply(conn)
}

// readLine reads a line byte by byte, because messages follow the lines.
func readLine(conn io.Reader) (string, error) {
	var line []byte
	for one := make([]byte, 1); len(line) < 512; line = append(line, one[0]) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return "", err
		}
		if text, ok := bytes.CutSuffix(append(line, one[0]), []byte("\r\n")); ok {
			return string(text), nil
		}
	}
	return "", errors.New("its answer is too long")
}

// Message types and header fields of D-Bus.
const (
	methodCall, methodReturn, methodError                                = 1, 2, 3
	fieldPath, fieldInterface, fieldMember, fieldDestination, fieldTypes = 1, 2, 3, 6, 8
)

// startUnit returns the message that calls StartUnit of systemd's manager.
func startUnit(unit, mode string) []byte {
	var body, fields, message marshal
	body.text(unit)
	body.text(mode)
	for _, f := range []struct {
		code  byte
		kind  string
		value string
	}{
		{fieldPath, "o", "/org/freedesktop/systemd1"},
		{fieldInterface, "s", "org.freedesktop.systemd1.Manager"},
		{fieldMember, "s", "StartUnit"},
		{fieldDestination, "s", "org.freedesktop.systemd1"},
		{fieldTypes, "g", "ss"},
	} {
		fields.align(8)
		fields.data = append(fields.data, f.code)
		fields.signature(f.kind)
		if f.kind == "g" {
			fields.signature(f.value)
		} else {
			fields.text(f.value)
		}
	}
	message.data = []byte{'l', methodCall, 0, 1} // Little endian, version 1.
	message.number(len(body.data))
	message.number(1) // The serial number of the message.
	message.number(len(fields.data))
	message.data = append(message.data, fields.data...)
	message.align(8)
	return append(message.data, body.data...)
}

// marshal is part of a message. Values are aligned relative to its start.
type marshal struct{ data []byte }

func (m *marshal) align(n int) {
	for len(m.data)%n != 0 {
		m.data = append(m.data, 0)
	}
}

func (m *marshal) number(n int) {
	m.align(4)
	m.data = binary.LittleEndian.AppendUint32(m.data, uint32(n))
}

func (m *marshal) text(s string) {
	m.number(len(s))
	m.data = append(append(m.data, s...), 0)
}

func (m *marshal) signature(s string) {
	m.data = append(append(append(m.data, byte(len(s))), s...), 0)
}

// maxReply limits the size of a part of a reply.
const maxReply = 64 << 10

// readReply reads messages until the reply to the call. It returns an error if the reply is one.
func readReply(conn io.Reader) error {
	for {
		head := make([]byte, 16)
		if _, err := io.ReadFull(conn, head); err != nil {
			return err
		}
		var order binary.ByteOrder = binary.LittleEndian
		if head[0] == 'B' {
			order = binary.BigEndian
		}
		body, fields := order.Uint32(head[4:]), order.Uint32(head[12:])
		if body > maxReply || fields > maxReply {
			return errors.New("its answer is too long")
		}
		rest := make([]byte, (fields+7)/8*8+body)
		if _, err := io.ReadFull(conn, rest); err != nil {
			return err
		}
		switch head[1] {
		case methodReturn:
			return nil
		case methodError:
			text := rest[len(rest)-int(body):]
			if len(text) > 5 { // The length of the text, the text and a zero.
				text = text[4 : len(text)-1]
			}
			return fmt.Errorf("it says %q", text)
		}
	}
}
