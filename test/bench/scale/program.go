package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/cluster/builder"
	"karve.sh/karve/test/harness/karve"
)

// Program is a controller to measure.
type Program struct {
	// Name is the program's name in the figures.
	Name string
	// Class is the node class that the NodePool must reference for the controller to manage its machines.
	Class karpv1.NodeClassReference
	// Build builds the program ahead of time, so that no running cluster waits for the build.
	Build func(context.Context) (path string, err error)
	// launch starts the program on a cluster for the first time.
	launch func(ctx context.Context, w *World) (process, error)
	// plans names the histogram of the time to plan for pending pods, decisions names those of all decisions, and looks names that of reading the cluster.
	// looks is empty if the program has no such metric.
	plans, looks string
	decisions    []string
	// requests is the counter of its requests to the API server.
	requests string
}

// process is a running controller.
type process struct {
	component  cluster.Component
	path       string
	metricsURL string
}

// Karve returns the controller with the arguments of its chart. It elects no leader, so that it does not wait for a Lease after a crash.
func Karve(options karve.Options) Program {
	return Program{
		Name: "karve", Class: karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.Kind, Name: pool},
		Build: karve.Build,
		plans: "karve_planner_duration_seconds", looks: "karve_gather_duration_seconds", requests: "rest_client_requests_total",
		decisions: []string{"karve_planner_duration_seconds", "karve_disruption_duration_seconds", "karve_layout_duration_seconds"},
		launch: func(ctx context.Context, w *World) (process, error) {
			root, err := cluster.Root()
			if err != nil {
				return process{}, err
			}
			options.Alone, options.InstanceTypesFile = true, filepath.Join(root, typesFile)
			options.Values = append([]string{"logLevel=info", "imageRollouts.enabled=false"}, options.Values...)
			if err := w.allow(ctx, "karve-kwok", "system:serviceaccount:karve-system:karve", rbacv1.PolicyRule{APIGroups: []string{kwokGroup}, Resources: []string{"*"}, Verbs: []string{"get"}}); err != nil {
				return process{}, err
			}
			k, err := karve.Start(ctx, w.Cluster, options)
			if err != nil {
				return process{}, err
			}
			return process{component: k.Name, path: filepath.Join(w.Dir(), "karve-controller"), metricsURL: k.MetricsURL}, nil
		},
	}
}

// Karpenter returns Karpenter's core controller with its kwok provider. The instance types have GPU replicas as an extended resource. It elects no leader
// either.
func Karpenter() Program {
	const component, user = cluster.Component("karpenter-kwok"), "system:serviceaccount:kube-system:karpenter"
	return Program{
		Name: "karpenter", Class: karpv1.NodeClassReference{Group: kwokGroup, Kind: kwokKind, Name: pool},
		Build:     buildKarpenter,
		plans:     "karpenter_scheduler_scheduling_duration_seconds",
		requests:  "client_go_request_total",
		decisions: []string{"karpenter_scheduler_scheduling_duration_seconds", "karpenter_voluntary_disruption_decision_evaluation_duration_seconds"},
		launch: func(ctx context.Context, w *World) (process, error) {
			path, err := buildKarpenter(ctx)
			if err != nil {
				return process{}, err
			}
			types, err := w.typesWithReplicas()
			if err != nil {
				return process{}, err
			}
			if err := w.allow(ctx, "karpenter", user, rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}); err != nil {
				return process{}, err
			}
			kubeconfig, err := w.KubeconfigFor(user)
			if err != nil {
				return process{}, err
			}
			var ports [2]int
			for i := range ports {
				if ports[i], err = w.FreePort(ctx); err != nil {
					return process{}, err
				}
			}
			return process{component, path, fmt.Sprintf("http://127.0.0.1:%d/metrics", ports[0])}, w.StartProgram(ctx, cluster.Program{
				Name: component, Path: path, ReadyURL: fmt.Sprintf("http://127.0.0.1:%d/readyz", ports[1]),
				Env: []string{
					"KUBECONFIG=" + kubeconfig, "SYSTEM_NAMESPACE=kube-system", "DISABLE_LEADER_ELECTION=true", "METRICS_PORT=" + strconv.Itoa(ports[0]),
					"HEALTH_PROBE_PORT=" + strconv.Itoa(ports[1]), "INSTANCE_TYPES_FILE_PATH=" + types,
				},
			})
		},
	}
}

// buildKarpenter builds Karpenter with its kwok provider and returns the path. The version is the one whose API Karve uses.
func buildKarpenter(ctx context.Context) (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "_output", "bin", "karpenter-kwok")
	return path, builder.Alone(root, func() error {
		cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", path, "sigs.k8s.io/karpenter/kwok")
		cmd.Dir = filepath.Join(root, "test")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building Karpenter: %w\n%s", err, out)
		}
		return nil
	})
}

// typesWithReplicas adds the GPU replicas to the instance types, writes them to a file for Karpenter and returns its path. Karve gets the number of replicas
// from the GPUNodeClass instead.
func (w *World) typesWithReplicas() (string, error) {
	root, err := cluster.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, typesFile))
	if err != nil {
		return "", fmt.Errorf("reading the instance types: %w", err)
	}
	var types []map[string]any
	if err := json.Unmarshal(text, &types); err != nil {
		return "", fmt.Errorf("reading the instance types: %w", err)
	}
	for _, t := range types {
		has, _ := t["resources"].(map[string]any)
		if has[v1alpha1.ResourceGPU] == nil {
			continue
		}
		gpus, err := strconv.Atoi(fmt.Sprint(has[v1alpha1.ResourceGPU]))
		if err != nil {
			return "", fmt.Errorf("reading the GPUs of %v: %w", t["name"], err)
		}
		has[v1alpha1.ResourceGPUShared] = strconv.Itoa(gpus * replicasPerNode)
	}
	if text, err = json.Marshal(types); err != nil {
		return "", err
	}
	path := filepath.Join(w.Dir(), "types-with-replicas.json")
	return path, os.WriteFile(path, text, 0o600)
}

// allow grants the rules to a service account in the whole cluster. The user has the form system:serviceaccount:<namespace>:<name>.
func (w *World) allow(ctx context.Context, name, user string, rules ...rbacv1.PolicyRule) error {
	_, subject, _ := strings.Cut(user, "system:serviceaccount:")
	namespace, account, _ := strings.Cut(subject, ":")
	return w.create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
		})
}

// pid returns the PID of a running program, which is a child of this process. It returns an error if the program does not run.
func (p process) pid() (int, error) {
	executables, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	for _, link := range executables {
		if path, err := os.Readlink(link); err != nil || path != p.path {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return 0, err
		}
		if fields, err := stat(pid); err == nil && fields[parentField] == strconv.Itoa(os.Getpid()) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("%s does not run", p.component)
}

// Indexes of the fields of /proc/<pid>/stat after the name; see proc_pid_stat(5).
const (
	parentField = 1
	userField   = 11
	systemField = 12
)

func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	after := strings.LastIndex(string(text), ") ") // The name may contain any character.
	fields := strings.Fields(string(text[after+2:]))
	if len(fields) <= systemField {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

// ticksPerSecond is USER_HZ, the unit of times in /proc. It is 100 on all platforms of Go.
const ticksPerSecond = 100

// cpuSeconds returns the CPU time that a process has used, in user and in system mode.
func cpuSeconds(pid int) (float64, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseFloat(fields[userField], 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseFloat(fields[systemField], 64)
	return (user + system) / ticksPerSecond, err
}

// memoryMiB returns the value of a line of /proc/<pid>/status in MiB. VmRSS is the resident memory, and VmHWM is its peak.
func memoryMiB(pid int, line string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), line+":")
	if fields := strings.Fields(rest); found && len(fields) > 1 && fields[1] == "kB" {
		kib, err := strconv.ParseFloat(fields[0], 64)
		return kib / 1024, err
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s in kB", pid, line)
}
