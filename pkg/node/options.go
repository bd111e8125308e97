package node

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/node/mps"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/node/toolkit"
)

// Options are the values of flags and environment variables, except for the settings of NVIDIA's configuration.
type Options struct {
	kubeletSocket, podResourcesSocket string
	configFile, configDir             string
	defaultConfig                     string
	NodeName                          string
	metricsAddress                    string
	stateDir                          string
	podLogs                           string
	mpsDir                            string
	runtimeConfig                     string
	pluginRegistry                    string
	cdiDirs                           []string
	strict, writeNode, dcgm           bool
	mpsWritable                       bool
	gpushareUnit                      string
	Level                             slog.Level

	// flag and env look up settings that were set by flag or environment variable.
	flag, env func(string) (string, bool)
}

// The units of gpushare.
const unitGiB, unitMiB = "GiB", "MiB"

// given is a flag that records whether it was set.
type given struct {
	values     map[string]string
	name       string
	bool, list bool
}

func (g given) String() string { return "" }

func (g given) IsBoolFlag() bool { return g.bool }

func (g given) Set(value string) error {
	if g.bool {
		if _, err := strconv.ParseBool(value); err != nil {
			return fmt.Errorf("is %q, and must be true or false", value)
		}
	}
	if before, twice := g.values[g.name]; twice && g.list {
		value = before + "," + value
	}
	g.values[g.name] = value
	return nil
}

// Parse returns the options that flags and environment variables say. It writes usage to stderr.
func Parse(args []string, env func(string) (string, bool), stderr io.Writer) (Options, error) {
	o := Options{env: env}
	f, cdiDirs := newEnvironment("karve-node", env, stderr), ""
	o.bind(f, &cdiDirs)
	values := map[string]string{}
	for _, s := range sharing.AllSettings {
		for _, name := range s.Flags {
			usage := s.Usage
			if s.NoEffect != "" {
				usage = "of no effect: " + s.NoEffect
			}
			f.Var(given{values: values, name: name, bool: s.Bool(), list: s.List()}, name, usage+" ["+s.Env[0]+"]")
		}
	}
	o.flag = func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	var err error
	if o.Level, err = f.parse(args); err != nil {
		return Options{}, err
	}
	if o.gpushareUnit != unitGiB && o.gpushareUnit != unitMiB {
		return Options{}, fmt.Errorf("--gpushare-unit: is %q, and can be %s, %s", o.gpushareUnit, unitGiB, unitMiB)
	}
	o.cdiDirs = strings.Split(cdiDirs, ",")
	_, err = o.override(sharing.Config{})
	return o, err
}

// environment is a set of flags whose defaults come from environment variables.
type environment struct {
	*flag.FlagSet
	env func(string) (string, bool)
	// problem is the last value in the environment that is invalid.
	problem error
}

func newEnvironment(program string, env func(string) (string, bool), stderr io.Writer) *environment {
	f := &environment{FlagSet: flag.NewFlagSet(program, flag.ContinueOnError), env: env}
	f.SetOutput(stderr)
	return f
}

// parse parses the arguments, and returns the level of the log.
func (f *environment) parse(args []string) (level slog.Level, err error) {
	text := ""
	f.text(&text, "log-level", "LOG_LEVEL", "info", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return level, err
	}
	if f.NArg() > 0 {
		return level, fmt.Errorf("unexpected argument %q; see %s --help", f.Arg(0), f.Name())
	}
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return level, fmt.Errorf("--log-level: is %q, and can be debug, info, warn, error", text)
	}
	return level, f.problem
}

// envOr returns the value of a variable, or otherwise if it has none.
func (f *environment) envOr(variable, otherwise string) string {
	if value, ok := f.env(variable); ok && value != "" {
		return value
	}
	return otherwise
}

func (f *environment) text(p *string, name, variable, otherwise, usage string) {
	f.StringVar(p, name, f.envOr(variable, otherwise), usage+" ["+variable+"]")
}

func (f *environment) boolean(p *bool, name, variable string, otherwise bool, usage string) {
	value, err := strconv.ParseBool(f.envOr(variable, strconv.FormatBool(otherwise)))
	if err != nil {
		f.problem = fmt.Errorf("%s in the environment must be true or false", variable)
	}
	f.BoolVar(p, name, value, usage+" ["+variable+"]")
}

// bind declares the flags of the agent. Those of NVIDIA's configuration are declared by [Parse].
func (o *Options) bind(f *environment, cdiDirs *string) {
	f.text(&o.kubeletSocket, "kubelet-socket", "KUBELET_SOCKET", "/var/lib/kubelet/device-plugins/kubelet.sock", "socket on which the kubelet accepts registrations")
	f.text(&o.podResourcesSocket, "pod-resources-socket", "POD_RESOURCES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock", "socket of the kubelet that lists the devices of pods; \"none\" disables it")
	f.text(&o.configFile, "config-file", "CONFIG_FILE", "", "configuration file in NVIDIA's format")
	f.text(&o.configDir, "config-dir", "CONFIG_FILE_SRCDIR", "", "directory of named configurations; the node's label nvidia.com/device-plugin.config selects one")
	f.text(&o.defaultConfig, "default-config", "DEFAULT_CONFIG", "", "name of the configuration for nodes without the label")
	f.text(&o.NodeName, "node-name", "NODE_NAME", "", "name of this Node; if empty, its labels and annotations are not read")
	f.text(&o.metricsAddress, "metrics-address", "METRICS_ADDRESS", ":9450", "address that serves /metrics, /healthz and /readyz; \"none\" disables them")
	f.text(&o.stateDir, "state-dir", "STATE_DIR", "/var/lib/karve", "directory on the host that records which GPUs are unhealthy across restarts; \"none\" disables it")
	f.text(&o.podLogs, "pod-log-root", "POD_LOG_ROOT", none, "the host's /var/log, whose directory names identify pods in metrics; also needs the host's PID namespace; \"none\" disables metrics per pod")
	f.text(&o.mpsDir, "mps-dir", "MPS_DIR", mps.Dir, "directory on the host that the agent shares with the program that runs MPS daemons (karve-node mps-daemon), at the same path")
	f.text(&o.runtimeConfig, "runtime-config", "RUNTIME_CONFIG", toolkit.File, "configuration of NVIDIA's container runtime, from which the agent knows how the runtime accepts lists of devices; \"none\" disables it")
	f.text(&o.pluginRegistry, "plugin-registry-dir", "PLUGIN_REGISTRY_DIR", "/var/lib/kubelet/plugins_registry", "directory in which the kubelet looks for the sockets of DRA drivers; used if the Node was promised the backend DRA")
	f.text(cdiDirs, "cdi-spec-dirs", "CDI_SPEC_DIRS", strings.Join(cdi.Dirs, ","), "comma-separated directories in which the container runtime looks for CDI specs; with the backend DRA the agent writes specs to the last one")
	f.boolean(&o.mpsWritable, "mps-writable-pipes", "MPS_WRITABLE_PIPES", false, "let containers write to the directory with the pipes of their MPS daemon, in case a version of the driver needs it")
	f.text(&o.gpushareUnit, "gpushare-unit", "GPUSHARE_UNIT", unitGiB, "unit of gpushare's variables in containers with slots of device memory: GiB, or MiB as with --memory-unit=MiB of its plugin")
	f.boolean(&o.strict, "strict", "STRICT", false, "reject configurations with unknown keys instead of logging a warning")
	f.boolean(&o.writeNode, "write-node", "WRITE_NODE", true, "write labels and conditions about the GPUs to the Node")
	f.boolean(&o.dcgm, "dcgm-metrics", "DCGM_METRICS", false, "also serve metrics under the names of NVIDIA's DCGM exporter")
}

// override applies flags and environment variables to a configuration. If nothing says how devices are passed to the container runtime, and it accepts
// device lists from mounts and not from the environment, they are passed in mounts.
func (o Options) override(c sharing.Config) (sharing.Config, error) {
	c, err := c.Override(o.flag, o.env)
	if err != nil {
		return sharing.Config{}, err
	}
	if runtime, ok, _ := o.runtime(); ok && runtime.Mounts && !runtime.Environment { // An error is reported in the Node's condition.
		c = c.WithDefaultDeviceList(sharing.ListVolumeMounts)
	}
	_, err = c.Settings()
	return c, err
}
