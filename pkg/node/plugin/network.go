package plugin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Unix is a Network of Unix sockets.
type Unix struct{}

// poll is how often to check for a new socket.
const poll = 100 * time.Millisecond

// Listen listens on a socket, and replaces an existing one.
func (Unix) Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		// Keep the file. A socket that no one serves shows that the devices that the Node still counts are those of this agent, so that its next start does
		// not have to wait.
		unix.SetUnlinkOnClose(false)
	}
	return listener, nil
}

// Dial connects to a socket.
func (Unix) Dial(ctx context.Context, path string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// Remove removes the file of a socket.
func (Unix) Remove(path string) {
	_ = os.Remove(path) // If that fails, the file does no harm.
}

// Exists reports whether the socket exists.
func (Unix) Exists(path string) bool { return exists(path) }

// List returns the names of the files in a directory. Files that are not sockets do not answer.
func (Unix) List(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Created polls the socket. A watch of the directory may fail, and the directory may be replaced.
func (Unix) Created(ctx context.Context, path string) <-chan struct{} {
	out := make(chan struct{}, 1)
	last := socketIdentity(path)
	go func() {
		ticker := time.NewTicker(poll)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if now := socketIdentity(path); now != last {
				if last = now; now != (socketID{}) {
					notify(out)
				}
			}
		}
	}()
	return out
}

// socketID distinguishes a socket from a later one with the same name. The inode alone is not enough, because it is reused immediately.
type socketID struct {
	inode   uint64
	changed int64
}

func socketIdentity(path string) socketID {
	info, err := os.Stat(path)
	if err != nil {
		return socketID{}
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return socketID{changed: info.ModTime().UnixNano()}
	}
	return socketID{inode: stat.Ino, changed: info.ModTime().UnixNano()}
}

// dial returns a gRPC client for a socket. It connects with the first call.
func dial(n Network, path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.Dial(ctx, path) }))
}

// answers reports whether a device plugin serves a socket.
func answers(ctx context.Context, n Network, socket string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := dial(n, socket)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_, err = pluginapi.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	return err == nil || status.Code(err) == codes.Unimplemented
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
