// Command controller launches machines for pending pods that request replicas of shared GPUs, and deletes machines that are no longer needed. With the
// argument ui, it serves a web page about the cluster instead.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"karve.sh/karve/pkg/operator"
	"karve.sh/karve/pkg/plain"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(plain.Writer{W: os.Stderr}, "karve:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) > 1 && os.Args[1] == "ui" {
		return runUI(os.Args[2:])
	}
	var o operator.Options
	o.AddFlags(flag.CommandLine) // controller-runtime has already added --kubeconfig.
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flag.Arg(0))
	}
	if err := o.Validate(); err != nil {
		return err
	}
	log := logger(o.LogLevel)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return operator.Run(ctrl.SetupSignalHandler(), config, log, o)
}

// runUI serves the web page about the cluster: karve-controller ui. It is a separate process with different rights, from the same image.
func runUI(args []string) error {
	var o operator.UIOptions
	o.AddFlags(flag.CommandLine)
	if err := flag.CommandLine.Parse(args); err != nil {
		return err
	}
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see ui --help", flag.Arg(0))
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return operator.ServeUI(ctrl.SetupSignalHandler(), config, logger(o.LogLevel), o)
}

// logger returns the logger, and makes it that of controller-runtime and client-go.
func logger(level string) logr.Logger {
	least := zapcore.InfoLevel
	if level == "debug" {
		least = zapcore.DebugLevel
	}
	log := zap.New(zap.WriteTo(plain.Writer{W: os.Stderr}), zap.Level(least), zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(log)
	klog.SetLogger(log) // The libraries of client-go log what the API server says about objects.
	return log
}
