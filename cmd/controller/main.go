// Command controller launches machines for pending pods that request replicas of shared GPUs, and deletes machines that are no longer needed.
package main

import (
	"flag"
	"fmt"
	"os"

	"go.uber.org/zap/zapcore"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"karve.sh/karve/pkg/operator"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "karve:", err)
		os.Exit(1)
	}
}

func run() error {
	var o operator.Options
	o.AddFlags(flag.CommandLine) // controller-runtime has already added --kubeconfig.
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	}
	if err := o.Validate(); err != nil {
		return err
	}
	level := zapcore.InfoLevel
	if o.LogLevel == "debug" {
		level = zapcore.DebugLevel
	}
	log := zap.New(zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(log)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return operator.Run(ctrl.SetupSignalHandler(), config, log, o)
}
