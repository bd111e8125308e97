package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog/published"
	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/overview/overviewtest"
	"karve.sh/karve/pkg/planner/solve"
	"karve.sh/karve/pkg/quote"
	"karve.sh/karve/pkg/rollout"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// evil is text that sets the title of a terminal, clears it, hides text, turns the direction of text around, and pretends to be a line of its own.
const evil = "\x1b]0;pwned\a\x1b[2J\x1b[8m\u009b31m\u202e\u2066\u200b\xff<script>alert(1)</script>\r\nSPOOFED line\t\x7f'$(reboot)`reboot`;"

// poison adds evil to each string below v that pick selects by its path, such as Pods[].Spec.SchedulerName.
func poison(v reflect.Value, path string, pick func(path string) bool) {
	switch v.Kind() { //nolint:exhaustive // Other kinds have no strings.
	case reflect.String:
		if v.CanSet() && pick(path) {
			v.SetString(v.String() + evil)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			poison(v.Elem(), path, pick)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				poison(v.Field(i), path+"."+f.Name, pick)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			poison(v.Index(i), path+"[]", pick)
		}
	case reflect.Map:
		poisonMap(v, path, pick)
	}
}

// poisonMap poisons the values of a map, and adds a key. Values that have no key are their zero value.
func poisonMap(v reflect.Value, path string, pick func(path string) bool) {
	if v.IsNil() {
		return
	}
	for _, key := range v.MapKeys() {
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		poison(value, fmt.Sprintf("%s[%v]", path, key), pick)
		v.SetMapIndex(key, value)
	}
	if v.Type().Key().Kind() != reflect.String || !pick(path+"{}") {
		return
	}
	value := reflect.New(v.Type().Elem()).Elem()
	for _, key := range v.MapKeys() {
		value.Set(v.MapIndex(key))
	}
	v.SetMapIndex(reflect.ValueOf(evil).Convert(v.Type().Key()), value)
}

// all is everything that verbs print about.
type all struct {
	Cluster *facts.Cluster
	Facts   *doctor.Facts
	Rollout *v1alpha1.GPUImageRollout
}

func everything() *all {
	c := overviewtest.Example()
	failed := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Because", Message: "it is so"}
	c.GPUNodeClasses[0].Status.Conditions = append(c.GPUNodeClasses[0].Status.Conditions, failed)
	c.NodePools[0].Status.Conditions = append(c.NodePools[0].Status.Conditions, status.Condition(failed))
	other := snapshottest.Pod("other")
	other.Spec.SchedulerName, other.Status.Conditions = "volcano", nil
	c.Pods = append(c.Pods, other)
	return &all{Cluster: c, Rollout: soaking(), Facts: &doctor.Facts{
		CLI: "v0.1.0", Kubernetes: "v1.33.1", AgentsOn: map[string]bool{}, Monitors: doctor.Monitors{Served: true},
		Controllers: []doctor.Program{{Kind: "Deployment", Namespace: "karve-system", Name: "karve", Version: "0.2.0", Flags: map[string]string{"reserved-enis": "0"}}},
		Agents:      []doctor.Program{{Kind: "DaemonSet", Namespace: "karve-node", Name: "karve-node", Version: "0.1.0"}},
		Karpenters:  []doctor.Program{{Kind: "Deployment", Namespace: "kube-system", Name: "karpenter", Version: "1.14.1", Ready: 2, Env: map[string]string{"RESERVED_ENIS": "1"}}},
		CRDs:        map[string]doctor.CRD{"gpunodeclasses.karve.sh": {Served: []string{"v1alpha1"}, Differs: true}},
		Denied:      []doctor.Right{{Group: "karpenter.sh", Resource: "nodeclaims", Verb: "create"}},
		Unread:      []doctor.Unread{{What: "pods", Why: "refused"}},
	}}
}

// print prints with each verb, in the most detail.
func (a *all) print(out io.Writer) {
	s := streams{nil, out, out}
	seen := overview.Build(a.Cluster)
	for _, format := range []string{"", "wide"} {
		_ = (&inspectOptions{detail: true, output: output{format: format}}).print(s, seen, nil)
	}
	wide := topOptions{output: output{format: "wide"}}
	_ = wide.print(s, seen, (*topOptions).nodes, nil)
	_ = wide.print(s, seen, (*topOptions).pods, nil)
	for _, pods := range []bool{false, true} {
		v := view{all: seen, wide: true, pods: pods, colors: paletteFor(out)}
		_, _ = io.WriteString(out, v.text())
	}
	x := explain.New(a.Cluster, explain.NewSettings(published.DefaultSettings()))
	for i := range a.Cluster.Pods {
		if i > 0 && i < len(a.Cluster.Pods)-3 {
			continue // It is like the first, and an explanation takes a while.
		}
		pod, err := x.Pod(a.Cluster.Pods[i].Namespace, a.Cluster.Pods[i].Name)
		answered(s, &pod, err)
	}
	for i := range a.Cluster.NodeClaims[:2] {
		node, err := x.Node(a.Cluster.NodeClaims[i].Name)
		answered(s, &node, err)
	}
	if q, err := quote.Of(a.Cluster, func() solve.Solver { return solve.Solver{} }); err == nil {
		_, _ = io.WriteString(out, q.Text(false)+q.Text(true))
	}
	a.Facts.Cluster = a.Cluster
	_, _ = io.WriteString(out, (&diagnosis{doctor.Check(a.Facts)}).text(paletteFor(out)))
	r := rollout.Summarize(a.Rollout)
	_, _ = io.WriteString(out, rolloutText(&r, noon))
}

func answered(s streams, a answer, err error) {
	if err != nil {
		s.error(err)
		return
	}
	_, _ = io.WriteString(s.out, a.Text(overviewtest.Now, true))
}

// ours matches the sequences of a palette.
var ours = regexp.MustCompile("\x1b\\[(0|1|2|31|32|33|36)m")

var (
	// command matches a line with a command to paste, and quoted the quoted words of one.
	command = regexp.MustCompile(`^  fix: (kubectl|helm|aws) `)
	quoted  = regexp.MustCompile(`'[^']*'|\\'`)
)

// harms returns what a text could do to a terminal, or "".
func harms(text string) string {
	for line := range strings.SplitSeq(ours.ReplaceAllString(text, ""), "\n") {
		if i := strings.IndexFunc(line, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }); i >= 0 {
			return fmt.Sprintf("it has %q in %q", line[i:min(len(line), i+10)], line)
		}
		if command.MatchString(line) && strings.Contains(quoted.ReplaceAllString(line, ""), "reboot") {
			return fmt.Sprintf("a shell runs %s", line)
		}
		if strings.HasPrefix(strings.TrimSpace(line), "SPOOFED") || !utf8.ValidString(line) {
			return fmt.Sprintf("it has the line %q", line)
		}
	}
	return ""
}

// TestNoTextOfAnObjectControlsTheTerminal prints a cluster once for each field that is a string, with text in it that does what a terminal must not.
func TestNoTextOfAnObjectControlsTheTerminal(t *testing.T) {
	t.Parallel()
	paths := map[string]bool{}
	poison(reflect.ValueOf(everything()), "", func(path string) bool {
		paths[path] = true
		return false
	})
	var printed []string
	for path := range paths {
		a := everything()
		poison(reflect.ValueOf(a), "", func(p string) bool { return p == path })
		var out bytes.Buffer
		a.print(&printer{&out, newPalette()})
		if why := harms(out.String()); why != "" {
			t.Errorf("%s: %s", path, why)
		}
		if strings.Contains(out.String(), "pwned") {
			printed = append(printed, path)
		}
	}
	for _, path := range []string{
		".Cluster.Pods[].Spec.SchedulerName", ".Cluster.Pods[].ObjectMeta.Name", ".Cluster.GPUNodeClasses[].Status.Conditions[].Message",
		".Facts.Karpenters[].Env[RESERVED_ENIS]", ".Rollout.Status.Distrusted[].Message",
	} {
		if !slices.Contains(printed, path) {
			t.Errorf("%s is not printed at all", path)
		}
	}
}

// TestTheLiveViewDrawsNoTextOfAnObjectAsASequence draws frames of a poisoned cluster, in which the server's error is poisoned too.
func TestTheLiveViewDrawsNoTextOfAnObjectAsASequence(t *testing.T) {
	t.Parallel()
	a := everything()
	poison(reflect.ValueOf(a), "", func(path string) bool { return strings.HasSuffix(path, ".Name") || strings.HasSuffix(path, "NodeName") })
	v := view{all: overview.Build(a.Cluster), colors: newPalette(), wide: true, width: 400, height: 30, err: errors.New(evil)}
	for _, v.pods = range []bool{false, true} {
		frame := v.frame()
		if !strings.Contains(frame, "not updated") || strings.Count(frame, "pwned") < 5 {
			t.Errorf("little is drawn: %q", frame)
		}
		if why := harms(frame); why != "" {
			t.Error(why)
		}
	}
}

func TestOnlyOwnColorsAreShown(t *testing.T) {
	t.Parallel()
	own, other := newPalette(), newPalette()
	text := own.red("a\x1b[8mb"+other.green("c")) + "\x1b[31md\x1b[0m"
	if got, want := own.show(text), "\x1b[31mabc\x1b[0md"; got != want {
		t.Errorf("%q is %q, want %q", text, got, want)
	}
	if got := (palette{}).show(text); got != "abcd" {
		t.Errorf("%q without colors is %q", text, got)
	}
}

// TestErrorsAndDataArePlain runs verbs on a server whose objects and errors are poisoned.
func TestErrorsAndDataArePlain(t *testing.T) {
	t.Parallel()
	c := overviewtest.Example()
	c.NodeClaims[0].Labels[corev1.LabelTopologyZone] += evil
	refused := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "error", "errorType": "execution", "error": evil})
	}))
	defer refused.Close()
	for name, args := range map[string][]string{
		"JSON": {"nodes", "-o", "json", "--kubeconfig", serve(t, c)}, "YAML": {"nodes", "-o", "yaml", "--kubeconfig", serve(t, c)},
		"an error": {"replay", "--prometheus", refused.URL}, "a flag": {"nodes", "--" + evil}, "an argument": {"inspect", evil, "--kubeconfig", serve(t, c)},
		"a context": {"nodes", "--kubeconfig", serve(t, c), "--context", evil},
	} {
		var out, errOut bytes.Buffer
		_ = run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut})
		if why := cmp.Or(harms(out.String()), harms(errOut.String())); why != "" || !strings.Contains(out.String()+errOut.String(), "pwned") {
			t.Errorf("%s: %s\n%s%s", name, why, &out, &errOut)
		}
		var read overview.Overview
		if name == "JSON" && (json.Unmarshal(out.Bytes(), &read) != nil || !strings.Contains(out.String(), `\u202e`)) {
			t.Errorf("the JSON lost something: %s", &out)
		}
	}
}
