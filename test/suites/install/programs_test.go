package install

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// programs are those that the pages name. They find no others.
var programs = []string{"aws", "cosign", "eksctl", "go", "helm", "jq", "karve-controller", "kubectl", "make", "sha256sum"}

// notRun are the beginnings of commands that do not run with the others of the pages, and why.
var notRun = map[string]string{
	"cosign verify":                      "it needs a signature that a pipeline has published",
	"eksctl create cluster":              "it needs AWS; TestEksctlCreatesSameRole reads its file",
	"go tool -modfile=tools/ko/go.mod":   "it logs in to a registry; TestInstallationWorksWithPodIdentity runs it",
	"helm upgrade --install karve oci:":  "it needs a published chart; TestPublishedReleaseCanBeInstalled runs it",
	"helm upgrade --install karve-crd o": "it needs a published chart; TestPublishedReleaseCanBeInstalled runs it",
	"karve-controller":                   "it needs the local AWS; the end-to-end tests start it",
	"kubectl krew install":               "it needs krew; tools/krew has tests of the manifest",
	"sha256sum":                          "it needs a release; TestReleaseIsCompleteAndReproducible makes one",
}

// failing are the beginnings of commands that may fail, and what they say then.
var failing = map[string]string{
	"kubectl create namespace": "already exists",
	"kubectl karve doctor":     "must be fixed",      // No controller runs.
	"kubectl karve explain":    "name one object",    // README.md lists the verbs.
	"kubectl karve plan -k":    "--fail-on-unplaced", // The page shows it.
}

// played is a command that a page ran.
type played struct{ Command, NotRun string }

// playPrograms makes a folder with this program under the names of the others, and returns the environment in which they play them.
func (w *world) playPrograms(t *testing.T) []string {
	t.Helper()
	bin, plugin, home := t.TempDir(), t.TempDir(), t.TempDir()
	build := exec.CommandContext(t.Context(), filepath.Join(w.root, "tools", "build"), "kubectl-karve")
	build.Env = append(os.Environ(), "OUT="+plugin, "TRIMPATH=no")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	is := map[string]string{"kubectl-karve": filepath.Join(plugin, "kubectl-karve")}
	for _, program := range programs {
		is[program] = must(os.Executable())
	}
	for _, program := range []string{"bash", "cat", "chmod", "cp", "grep", "sed"} {
		is[program] = must(exec.LookPath(program))
	}
	for program, path := range is {
		if err := os.Symlink(path, filepath.Join(bin, program)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(home, "bin"), 0o700), os.MkdirAll(filepath.Join(home, ".config", "k9s"), 0o700)); err != nil {
		t.Fatal(err)
	}
	modules := strings.TrimSpace(string(must(exec.CommandContext(t.Context(), "go", "env", "GOMODCACHE").Output()))) // It is in the home directory.
	return []string{"ACT_AS=page", "GOMODCACHE=" + modules, "HOME=" + home, "PATH=" + bin, "REAL_PATH=" + plugin + ":" + filepath.Dir(w.cluster.Kubectl()) + ":" + os.Getenv("PATH")}
}

// play runs a command of a page, without its effect.
func play(ctx context.Context, command []string) error {
	line := strings.Join(command, " ")
	p := played{line, beginning(notRun, line)}
	before, err := os.ReadFile(os.Getenv("COMMANDS"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// Helm takes seconds, and says the same again.
	again := command[0] == "helm" && bytes.Contains(before, must(json.Marshal(p)))
	log, err := os.OpenFile(os.Getenv("COMMANDS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(json.NewEncoder(log).Encode(p), log.Close()); err != nil {
		return err
	}
	switch {
	case p.NotRun != "":
		_, err := io.Copy(io.Discard, os.Stdin) // Or what comes before it in a pipe fails.
		return err
	case again:
		return nil
	case command[0] == "aws":
		return actAsAWS(command[1:], os.Stdout)
	}
	run, err := withoutEffect(command, os.Getenv("PROMETHEUS"))
	if err != nil {
		return err
	}
	if err := os.Setenv("PATH", os.Getenv("REAL_PATH")); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, run[0], run[1:]...)
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, io.MultiWriter(os.Stderr, &said)
	if line == "kubectl karve ui" {
		return interrupted(cmd)
	}
	if err = cmd.Run(); err != nil {
		if may := beginning(failing, line); may != "" && strings.Contains(said.String(), may) {
			return nil
		}
	}
	return err
}

// interrupted runs a command until it has printed the address of a page, and interrupts it.
func interrupted(cmd *exec.Cmd) error {
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil && !strings.HasPrefix(line, "http") {
		err = fmt.Errorf("it prints %s", line)
	}
	err = errors.Join(err, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait() // It ends with the status of the signal.
	return err
}

// beginning returns the value of the key that a line begins with.
func beginning(of map[string]string, line string) string {
	for key, value := range of {
		if strings.HasPrefix(line, key) {
			return value
		}
	}
	return ""
}

// withoutEffect returns what runs instead of a command so that nothing is changed, or an error for a command whose effect is not known. prometheus is the address for
// those that would look for a Prometheus in the cluster.
func withoutEffect(command []string, prometheus string) ([]string, error) {
	program, args := command[0], slices.Clone(command[1:])
	unknown := fmt.Errorf("the test of pages does not know what %s does", strings.Join(command, " "))
	switch program {
	case "helm":
		switch args[0] {
		case "install", "upgrade":
			args = append(args, "--dry-run=server", "--take-ownership")
		case "uninstall":
			args = append(args, "--dry-run")
		case "get":
		default:
			return nil, unknown
		}
	case "make":
		args = append([]string{"--dry-run"}, args...)
	case "go":
		if len(args) < 4 || args[0] != "-C" || args[2] != "test" && args[2] != "run" {
			return nil, unknown
		}
		packages := slices.DeleteFunc(slices.Clone(args[3:]), func(arg string) bool { return !strings.HasPrefix(arg, "./") })
		args = append([]string{"-C", args[1], "list"}, packages...)
	case "kubectl":
		at := 0
		for at+1 < len(args) && (args[at] == "-n" || args[at] == "--namespace") {
			at += 2
		}
		switch verb := args[at]; verb {
		case "karve":
			asks := len(args) > 1 && (args[1] == "cost" || args[1] == "advise" || args[1] == "replay" && len(args) == 2)
			if asks && !slices.Contains(args, "--prometheus") {
				args = append(args, "--prometheus="+prometheus)
			}
		case "get", "describe":
		case "rollout", "logs", "wait", "port-forward":
			if slices.Contains(args, "restart") {
				break
			}
			// Nothing runs on the API server. The object must be there.
			object := slices.DeleteFunc(slices.Clone(args[at+1:]), func(arg string) bool {
				return arg == "status" || strings.HasPrefix(arg, "--") || strings.Trim(arg, "0123456789") == ""
			})
			args = slices.Concat(args[:at], []string{"get"}, object)
		case "annotate", "apply", "cordon", "create", "delete", "label", "patch", "uncordon":
			if !slices.Contains(args, "--local") {
				args = append(args, "--dry-run=server")
			}
		default:
			return nil, unknown
		}
	}
	return append([]string{program}, args...), nil
}
