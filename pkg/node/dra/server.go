package dra

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"karve.sh/karve/pkg/nodecontract"
)

// socketName is the name of the socket by which the kubelet finds and calls the driver.
const socketName = nodecontract.DRADriver + "-reg.sock"

// kubelet implements the services of the driver that the kubelet calls.
type kubelet struct {
	drapb.UnimplementedDRAPluginServer
	registration.UnimplementedRegistrationServer

	driver *Driver
	log    logr.Logger
}

// serve serves the kubelet until ctx ends. The kubelet watches the directory for new sockets and connects by itself, also after it has restarted.
func (d *Driver) serve(ctx context.Context) error {
	path := filepath.Join(d.config.Registry, socketName)
	// The kubelet treats a recreated socket as a new one, and registers the driver again.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("listening on %s: %w", path, err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", path, err)
	}
	mine := socketFile(path)
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // A newer agent may have replaced the socket.
	}
	g := grpc.NewServer()
	k := &kubelet{driver: d, log: logr.FromContextOrDiscard(ctx)}
	drapb.RegisterDRAPluginServer(g, k)
	registration.RegisterRegistrationServer(g, k)
	var group sync.WaitGroup
	group.Go(func() { _ = g.Serve(listener) }) // It ends with Stop.
	<-ctx.Done()
	// The kubelet must know that nobody serves the socket. While the server runs, no other file has the number of its own.
	if now := socketFile(path); mine != nil && now != nil && os.SameFile(mine, now) {
		_ = os.Remove(path) // It is removed at the next start at the latest.
	}
	g.Stop()
	group.Wait()
	return nil
}

// socketFile returns the file of a socket, or nil.
func socketFile(path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// GetInfo returns the identity of the driver. Without an endpoint, the kubelet calls the socket that it has found.
func (k *kubelet) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.DRAPlugin, Name: nodecontract.DRADriver, SupportedVersions: []string{drapb.DRAPluginService}}, nil
}

// NotifyRegistrationStatus records whether the kubelet has accepted the driver.
func (k *kubelet) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	var err error
	if s.GetPluginRegistered() {
		k.log.Info("Registered with the kubelet", "driver", nodecontract.DRADriver)
	} else {
		err = fmt.Errorf("the kubelet does not take the DRA driver %s: %s", nodecontract.DRADriver, s.GetError())
		k.log.Error(err, "Not registered with the kubelet")
	}
	d := k.driver
	d.mu.Lock()
	d.registered = err == nil
	d.poke()
	d.mu.Unlock()
	if d.config.Registered != nil {
		d.config.Registered(err)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources prepares claims.
func (k *kubelet) NodePrepareResources(ctx context.Context, r *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	response := &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		start := time.Now()
		claim, devices, err := k.driver.prepare(ctx, c.GetUid(), c.GetNamespace(), c.GetName())
		if h := k.driver.config.Prepared; h != nil {
			h(time.Since(start), err)
		}
		if err != nil {
			k.log.Error(err, "A ResourceClaim cannot be prepared", "claim", c.GetNamespace()+"/"+c.GetName())
			response.Claims[c.GetUid()] = &drapb.NodePrepareResourceResponse{Error: err.Error()}
			continue
		}
		response.Claims[c.GetUid()] = &drapb.NodePrepareResourceResponse{Devices: k.devices(claim, devices)}
	}
	return response, nil
}

// devices returns the devices of a claim for the kubelet. The CDI devices of a request are listed at its first device. A container that refers to a
// request gets the devices with its name. A container that refers to the claim gets all in this order, so the device for the whole claim comes last.
func (k *kubelet) devices(c Claim, cdi map[string][]string) []*drapb.Device {
	said := map[string]bool{}
	var out []*drapb.Device
	for _, p := range c.Devices {
		d := &drapb.Device{RequestNames: []string{p.Request}, PoolName: k.driver.config.API.Name, DeviceName: p.Device}
		if !said[p.Request] {
			said[p.Request], d.CdiDeviceIds = true, cdi[p.Request]
		}
		if p.ShareID != "" {
			d.ShareId = &p.ShareID
		}
		out = append(out, d)
	}
	if whole := cdi[wholeClaim]; whole != nil {
		out = append(out, &drapb.Device{RequestNames: []string{wholeClaim}, PoolName: k.driver.config.API.Name, DeviceName: c.Devices[0].Device, CdiDeviceIds: whole})
	}
	return out
}

// NodeUnprepareResources undoes NodePrepareResources. It succeeds for an unknown claim.
func (k *kubelet) NodeUnprepareResources(_ context.Context, r *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	response := &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{}}
	for _, c := range r.GetClaims() {
		answer := &drapb.NodeUnprepareResourceResponse{}
		if err := k.driver.unprepare(c.GetUid()); err != nil {
			k.log.Error(err, "A ResourceClaim cannot be ended", "claim", c.GetNamespace()+"/"+c.GetName())
			answer.Error = err.Error()
		}
		response.Claims[c.GetUid()] = answer
	}
	return response, nil
}

// unprepare removes the CDI spec of a claim, and forgets the claim.
func (d *Driver) unprepare(uid string) error {
	d.preparing.Lock()
	defer d.preparing.Unlock()
	if !validUID.MatchString(uid) {
		return nil // It was never prepared.
	}
	if err := removeSpec(d.config.Specs, uid); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claims, uid)
	return nil
}
