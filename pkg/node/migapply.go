package node

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"

	"karve.sh/karve/pkg/node/alloc"
	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/dra"
	"karve.sh/karve/pkg/node/health"
	"karve.sh/karve/pkg/node/mig"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/plugin"
	"karve.sh/karve/pkg/nodecontract"
)

// MIGCommand is the argument that makes karve-node divide the GPUs of its node as promised, and exit. It runs before the agent, because the container
// runtime gives a container the MIG instances that exist when it starts.
const MIGCommand = "mig-apply"

// unregistered is the taint of Nodes to which Karpenter has not yet written the promise.
const unregistered = "karpenter.sh/unregistered"

// DriverRoot is where the driver is mounted in the container if it is not in the host's root.
const DriverRoot = "/driver-root"

// tryMIGAgain is the interval between attempts to divide GPUs.
const tryMIGAgain = 10 * time.Second

// MIGOptions configure a MIGApply.
type MIGOptions struct {
	NodeName, stateDir, podResourcesSocket, cdiDirs, proc, capabilities, systemd string
	Level                                                                        slog.Level
}

// ParseMIG parses the arguments after MIGCommand.
func ParseMIG(args []string, env func(string) (string, bool), stderr io.Writer) (MIGOptions, error) {
	var o MIGOptions
	f := newEnvironment("karve-node "+MIGCommand, env, stderr)
	f.text(&o.NodeName, "node-name", "NODE_NAME", "", "name of this Node, whose annotations have the promise")
	f.text(&o.stateDir, "state-dir", "STATE_DIR", "/var/lib/karve", "directory on the host that records that the machine was rebooted")
	f.text(&o.podResourcesSocket, "pod-resources-socket", "POD_RESOURCES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock", "socket of the kubelet that lists the devices of pods")
	f.text(&o.cdiDirs, "cdi-spec-dirs", "CDI_SPEC_DIRS", strings.Join(cdi.Dirs, ","), "comma-separated directories; the last one has the CDI specs of prepared ResourceClaims")
	f.text(&o.proc, "host-proc", "HOST_PROC", "/proc", "the host's /proc, which shows the processes that have GPUs open")
	f.text(&o.capabilities, "nvidia-caps-dir", "NVIDIA_CAPS_DIR", "/dev/nvidia-caps", "the host's /dev/nvidia-caps, in which the device files of instances are created")
	f.text(&o.systemd, "systemd-socket", "SYSTEMD_SOCKET", mig.Systemd, "socket of the host's systemd, which reboots the machine once if GPUs need it")
	level, err := f.parse(args)
	if err == nil && o.NodeName == "" {
		err = errors.New("--node-name is missing")
	}
	o.Level = level
	return o, err
}

// MIGApply divides the GPUs of a node, and reports on the Node why it waits.
type MIGApply struct {
	node *nodeapi.Client
	// divide divides the GPUs. mayReboot reports whether it may reboot the machine.
	divide func(ctx context.Context, wanted nodecontract.MIG, mayReboot bool) error
	again  time.Duration
	// said is the failure that was last written.
	said mig.Failure
}

// NewMIGApply returns a MIGApply that divides GPUs with a driver, and reads and writes its Node with a client.
func NewMIGApply(o MIGOptions, node *nodeapi.Client, driver mig.Driver) *MIGApply {
	boot, _ := os.ReadFile(bootID) // Without it, the machine is not rebooted.
	machine := mig.Options{
		StateDir: o.stateDir, Boot: strings.TrimSpace(string(boot)), Proc: o.proc, CapabilitiesDir: o.capabilities, Systemd: o.systemd,
		Pods: func(ctx context.Context) (map[string]string, error) {
			return podsByDevice(ctx, plugin.PodResources{Socket: o.podResourcesSocket, Claimed: dra.Recorded(claimSpecs(strings.Split(o.cdiDirs, ",")))})
		},
	}
	return &MIGApply{node: node, again: tryMIGAgain, divide: func(ctx context.Context, wanted nodecontract.MIG, mayReboot bool) error {
		machine.MayReboot = mayReboot
		return mig.NewMachine(driver, machine).Divide(ctx, wanted)
	}}
}

// podsByDevice returns a pod that holds each device, by the UUID of the GPU or of the MIG instance.
func podsByDevice(ctx context.Context, kubelet plugin.PodResources) (map[string]string, error) {
	holders, err := kubelet.Holders(ctx)
	if err != nil {
		return nil, err
	}
	pods := map[string]string{}
	for _, h := range holders {
		for _, id := range h.Devices {
			pods[alloc.UUID(id)] = h.Pod
		}
	}
	return pods, nil
}

// Run returns when nothing is left to do, or when only the agent can continue. Until then it retries.
func (a *MIGApply) Run(ctx context.Context) error {
	for ; ctx.Err() == nil; pause(ctx, a.again) {
		n, err := a.node.Get(ctx)
		if err != nil {
			logr.FromContextOrDiscard(ctx).Info("The Node cannot be read; trying again", "error", err.Error())
			continue
		}
		if a.once(ctx, n) {
			return nil
		}
	}
	return ctx.Err()
}

// once divides the GPUs as the Node requires, and reports whether that is done.
func (a *MIGApply) once(ctx context.Context, n nodeapi.Node) (done bool) {
	log := logr.FromContextOrDiscard(ctx)
	has := func(key string) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t nodeapi.Taint) bool { return t.Key == key })
	}
	if has(unregistered) {
		log.Info("Karpenter has not registered the Node; what was promised is not known yet")
		return false
	}
	wanted, err := nodecontract.ParseMIG(n.Metadata.Annotations[nodecontract.MIGAnnotation])
	switch {
	case err != nil:
		log.Error(err, "The agent says so on the Node")
		return true
	case wanted.IsZero():
		log.Info("No MIG instances were promised; the GPUs stay as they are")
		return true
	case n.Metadata.Labels[nodecontract.MIGConfigLabel] != "":
		log.Info("NVIDIA's MIG manager divides the GPUs; they stay as they are", "label", nodecontract.MIGConfigLabel, "value", n.Metadata.Labels[nodecontract.MIGConfigLabel])
		return true
	}
	err = a.divide(ctx, wanted, has(nodecontract.ReplicasNotReadyTaint))
	var failure *mig.Failure
	switch {
	case err == nil:
		log.Info("The GPUs are divided as promised", "into", wanted.Describe())
		return true
	case errors.Is(err, mig.ErrHeld):
		log.Info("The GPUs are not divided as promised, and stay as they are", "reason", err.Error())
		return true
	case !errors.As(err, &failure):
		failure = &mig.Failure{Reason: nodecontract.ReasonRefused, Message: err.Error()}
	}
	if *failure != a.said {
		log.Info("The GPUs are not divided; trying again", "reason", failure.Reason, "message", failure.Message)
		if err := a.say(ctx, n, failure); err != nil {
			log.Info("The Node cannot be written; trying again", "error", err.Error())
			return false
		}
		a.said = *failure
	}
	return false
}

// say writes a failure to the Node, as the agent will when it runs.
func (a *MIGApply) say(ctx context.Context, n nodeapi.Node, f *mig.Failure) error {
	last := map[string]health.Condition{}
	for _, c := range n.Status.Conditions {
		last[c.Type] = health.Condition(c)
	}
	next := map[string]health.Condition{nodecontract.SharingCondition: {Type: nodecontract.SharingCondition, Status: "False", Reason: f.Reason, Message: f.Message}}
	if err := writeConditions(ctx, a.node, next, last); err != nil {
		return err
	}
	return a.node.Record(ctx, nodeapi.Event{Warning: true, Reason: f.Reason, Message: "The GPUs are not divided: " + f.Message, At: time.Now()})
}
