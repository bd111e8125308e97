package main

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"karve.sh/karve/pkg/node/cdi"
	"karve.sh/karve/pkg/sharing"
)

// options are what flags and environment say besides the settings of NVIDIA's configuration.
type options struct {
	kubeletSocket, podResourcesSocket string
	configFile, configDir             string
	defaultConfig                     string
	nodeName                          string
	metricsAddress                    string
	stateDir                          string
	podLogs                           string
	cdiDirs                           []string
	strict, writeNode, dcgm           bool
	level                             slog.Level

	// flag and env look up what was given of the settings.
	flag, env func(string) (string, bool)
}

// given is a flag that remembers that it was given.
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

func parse(args []string, env func(string) (string, bool), stderr io.Writer) (options, error) {
	o := options{env: env}
	set := flag.NewFlagSet("karve-node", flag.ContinueOnError)
	set.SetOutput(stderr)
	var problem error
	or := func(name, otherwise string) string {
		if value, ok := env(name); ok && value != "" {
			return value
		}
		return otherwise
	}
	text := func(p *string, name, variable, otherwise, usage string) {
		set.StringVar(p, name, or(variable, otherwise), usage+" ["+variable+"]")
	}
	truth := func(p *bool, name, variable string, otherwise bool, usage string) {
		value, err := strconv.ParseBool(or(variable, strconv.FormatBool(otherwise)))
		if err != nil {
			problem = fmt.Errorf("%s in the environment must be true or false", variable)
		}
		set.BoolVar(p, name, value, usage+" ["+variable+"]")
	}
	text(&o.kubeletSocket, "kubelet-socket", "KUBELET_SOCKET", "/var/lib/kubelet/device-plugins/kubelet.sock", "where the kubelet takes registrations")
	text(&o.podResourcesSocket, "pod-resources-socket", "POD_RESOURCES_SOCKET", "/var/lib/kubelet/pod-resources/kubelet.sock", "where the kubelet says which devices pods hold; \"none\" to not ask")
	text(&o.configFile, "config-file", "CONFIG_FILE", "", "a configuration in NVIDIA's format")
	text(&o.configDir, "config-dir", "CONFIG_FILE_SRCDIR", "", "a folder of named configurations, picked by the node's label nvidia.com/device-plugin.config")
	text(&o.defaultConfig, "default-config", "DEFAULT_CONFIG", "", "which of them is for nodes without the label")
	text(&o.nodeName, "node-name", "NODE_NAME", "", "this Node; without it labels and annotations are not read")
	text(&o.metricsAddress, "metrics-address", "METRICS_ADDRESS", ":9450", "where /metrics, /healthz and /readyz are served; \"none\" for nowhere")
	text(&o.stateDir, "state-dir", "STATE_DIR", "/var/lib/karve", "a folder of the machine where it is kept which GPUs are out of service; \"none\" to forget it at each start")
	text(&o.podLogs, "pod-log-root", "POD_LOG_ROOT", none, "the machine's /var/log, whose folders name the pods in metrics; needs the machine's PID namespace, too; \"none\" for no metrics of pods")
	cdiDirs := ""
	text(&cdiDirs, "cdi-spec-dirs", "CDI_SPEC_DIRS", strings.Join(cdi.Dirs, ","), "the folders in which the container runtime looks for CDI specs, with commas")
	truth(&o.strict, "strict", "STRICT", false, "refuse configurations with unknown keys instead of warning")
	truth(&o.writeNode, "write-node", "WRITE_NODE", true, "write the GPUs' labels and conditions to the Node")
	truth(&o.dcgm, "dcgm-metrics", "DCGM_METRICS", false, "also serve metrics under the names of NVIDIA's DCGM exporter")
	level := or("LOG_LEVEL", "info")
	set.StringVar(&level, "log-level", level, "debug, info, warn or error [LOG_LEVEL]")
	values := map[string]string{}
	for _, s := range sharing.AllSettings() {
		for _, name := range s.Flags {
			set.Var(given{values: values, name: name, bool: s.Bool, list: s.List}, name, s.Usage+" ["+s.Env[0]+"]")
		}
	}
	o.flag = func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	if err := set.Parse(args); err != nil {
		return options{}, err
	}
	if set.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q; see --help", set.Arg(0))
	}
	if err := o.level.UnmarshalText([]byte(level)); err != nil {
		return options{}, fmt.Errorf("--log-level: is %q, and can be debug, info, warn, error", level)
	}
	if problem != nil {
		return options{}, problem
	}
	o.cdiDirs = strings.Split(cdiDirs, ",")
	_, err := o.override(sharing.Config{Version: sharing.Version})
	return o, err
}

// override puts flags and environment over a configuration.
func (o options) override(c sharing.Config) (sharing.Config, error) {
	c, err := c.Override(o.flag, o.env)
	if err != nil {
		return sharing.Config{}, err
	}
	_, err = c.Settings()
	return c, err
}
