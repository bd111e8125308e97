package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// recorded is a series of the recording rules: by what it is divided, its labels, and its value in dollars per hour. A discount begins with a minus.
type recorded struct {
	metric, labels string
	usd            float64
}

// costServer starts a Prometheus with series, and with data except for some hours after the start of the range. It answers only requests of the tenant team, if there
// is one.
func costServer(t *testing.T, tenant string, gap int, all ...recorded) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Scope-OrgID") != tenant {
			http.Error(w, "no org id", http.StatusUnauthorized)
			return
		}
		var start, end, step float64
		for name, to := range map[string]*float64{"start": &start, "end": &end, "step": &step} {
			if _, err := fmt.Sscan(r.FormValue(name), to); err != nil {
				t.Error(name, err)
			}
		}
		series := func(labels string, perHour float64, from float64) string {
			var values []string
			for at := from; at <= end; at += step {
				values = append(values, fmt.Sprintf(`[%.0f, "%g"]`, at, perHour*step/3600))
			}
			return fmt.Sprintf(`{"metric": {%s}, "values": [%s]}`, labels, strings.Join(values, ","))
		}
		query := r.FormValue("query")
		var result []string
		if strings.Contains(query, "cluster:karve") && !strings.Contains(query, "> 0") {
			result = append(result, series("", 12, start+float64(3600*gap)))
		}
		for _, s := range all {
			by, discount := strings.CutPrefix(s.metric, "-")
			if strings.Contains(query, by+":karve_cost_"+map[bool]string{true: "discount_"}[discount]+"usd_per_hour") {
				result = append(result, series(s.labels, s.usd*12, start))
			}
		}
		fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "matrix", "result": [%s]}}`, strings.Join(result, ","))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// half is a machine for $1 an hour, of which the namespace ml uses half.
var half = []recorded{
	{"nodepool", `"nodepool": "gpu", "gpunodeclass": "t4", "share": "used"`, 0.5},
	{"nodepool", `"nodepool": "gpu", "gpunodeclass": "t4", "share": "idle"`, 0.5},
	{"namespace", `"namespace": "ml", "nodepool": "gpu"`, 0.5},
}

// ofOwnersInAWeek is what the owners of the example in docs/cost.md have cost in its first week.
const ofOwnersInAWeek = `2026-10-01 00:00 to 2026-10-08 00:00 UTC, 7d
no data for 3h of 7d (1.8 %), which count as $0: 2026-10-01 00:00 to 2026-10-01 03:00 UTC

NAMESPACE   KIND          OWNER           USED $    IDLE $   OVERHEAD $   TOTAL $     SHARE
research    CronJob       nightly-eval   3091.20   1043.44         0.00   4134.64    60.3 %
inference   Deployment    llm            1024.80    345.92         0.00   1370.72    20.0 %
inference   Deployment    chat            688.80    122.21        21.11    832.12    12.1 %
notebooks   StatefulSet   jupyter         352.80     62.59        10.81    426.20     6.2 %
                          (unused)          0.00     88.37         0.00     88.37     1.3 %
total                                    5157.60   1662.53        31.92   6852.05   100.0 %
`

// TestDocumentOfCostsShowsActualOutput runs the command in docs/cost.md and one by owner with a Prometheus, and compares their output.
func TestDocumentOfCostsShowsActualOutput(t *testing.T) {
	text, err := os.ReadFile("../../docs/cost.md")
	if err != nil {
		t.Fatal(err)
	}
	url := costServer(t, "", 3,
		recorded{"nodepool", `"nodepool": "gpu-shared", "gpunodeclass": "t4", "share": "used"`, 6.2}, recorded{"nodepool", `"nodepool": "gpu-shared", "gpunodeclass": "t4", "share": "idle"`, 1.1},
		recorded{"nodepool", `"nodepool": "gpu-shared", "gpunodeclass": "t4", "share": "overhead"`, 0.19}, recorded{"nodepool", `"nodepool": "gpu-large", "gpunodeclass": "a100", "share": "used"`, 24.5},
		recorded{"nodepool", `"nodepool": "gpu-large", "gpunodeclass": "a100", "share": "idle"`, 8.27}, recorded{"nodepool", `"nodepool": "gpu-batch", "gpunodeclass": "t4", "share": "idle"`, 0.526},
		recorded{"namespace", `"namespace": "inference", "nodepool": "gpu-shared"`, 4.1}, recorded{"namespace", `"namespace": "notebooks", "nodepool": "gpu-shared"`, 2.1},
		recorded{"namespace", `"namespace": "research", "nodepool": "gpu-large"`, 18.4}, recorded{"namespace", `"namespace": "inference", "nodepool": "gpu-large"`, 6.1},
		recorded{"owner", `"namespace": "inference", "owner_kind": "Deployment", "owner": "chat", "nodepool": "gpu-shared"`, 4.1},
		recorded{"owner", `"namespace": "notebooks", "owner_kind": "StatefulSet", "owner": "jupyter", "nodepool": "gpu-shared"`, 2.1},
		recorded{"owner", `"namespace": "research", "owner_kind": "CronJob", "owner": "nightly-eval", "nodepool": "gpu-large"`, 18.4},
		recorded{"owner", `"namespace": "inference", "owner_kind": "Deployment", "owner": "llm", "nodepool": "gpu-large"`, 6.1})
	commands := shown.FindAllStringSubmatch(string(text), -1)
	if len(commands) != 1 {
		t.Errorf("the page shows %d commands", len(commands))
	}
	commands = append(commands, []string{"", "cost --from 2026-10-01 --to 2026-10-08 --by owner", ofOwnersInAWeek})
	for _, command := range commands {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), append(strings.Fields(command[1]), "--prometheus", url), streams{strings.NewReader(""), &out, &errOut}); status != 0 {
			t.Errorf("kubectl karve %s: status %d", command[1], status)
		}
		if diff := cmp.Diff(command[2], errOut.String()+out.String()); diff != "" {
			t.Errorf("kubectl karve %s prints something else (-shown +printed):\n%s\n%s", command[1], diff, errOut.String()+out.String())
		}
	}
}

func TestCostsArePrinted(t *testing.T) {
	t.Parallel()
	url := costServer(t, "team", 0, half...)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"a table": {nil, "NAMESPACE   USED $   IDLE $   OVERHEAD $   TOTAL $     SHARE\nml          360.00   360.00         0.00    720.00   100.0 %\n"},
		"CSV":     {[]string{"-o", "csv", "--since", "2h"}, ",ml,1.00,1.00,0.00,2.00,2.00\n"},
		"JSON":    {[]string{"-o", "json", "--by", "class", "--since", "10h"}, "\"name\": \"t4\",\n      \"usedMicroUSD\": 5000000,\n      \"idleMicroUSD\": 5000000,\n"},
		"YAML":    {[]string{"-o", "yaml", "--from", "2026-01-01", "--to", "2026-01-02"}, "totalMicroUSD: 24000000\n"},
	} {
		var out, errOut bytes.Buffer
		args := append([]string{"cost", "--prometheus", url, "--header", "X-Scope-OrgID=team"}, c.args...)
		if status := run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut}); status != 0 || !strings.Contains(out.String(), c.want) || errOut.Len() > 0 {
			t.Errorf("%s: status %d, %s%s", name, status, &out, &errOut)
		}
	}
	listed := costServer(t, "", 0, append(half, recorded{"-nodepool", `"nodepool": "gpu", "gpunodeclass": "t4", "share": "used"`, 0.25}, recorded{"-namespace", `"namespace": "ml", "nodepool": "gpu"`, 0.25})...)
	for name, want := range map[string]string{
		"":     "NAMESPACE   USED $   IDLE $   OVERHEAD $   TOTAL $   LIST $     SHARE\nml          360.00   360.00         0.00    720.00   900.00   100.0 %\n",
		"csv":  ",ml,360.00,360.00,0.00,720.00,900.00\n",
		"json": "\"listTotalMicroUSD\": 900000000",
	} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), []string{"cost", "--prometheus", listed, "-o", name}, streams{strings.NewReader(""), &out, &errOut}); status != 0 || !strings.Contains(out.String(), want) {
			t.Errorf("with a discount, as %q: status %d, %s%s", name, status, &out, &errOut)
		}
	}
	for want, args := range map[string][]string{
		"--output must be csv, json or yaml":                     {"-o", "wide"},
		"--by: costs are divided by namespace":                   {"--by", "team"},
		"--since must be a number of hours, days or weeks":       {"--since", "1y"},
		"exclude each other":                                     {"--since", "1d", "--month", "2026-01"},
		"--header: a header is KEY=VALUE":                        {"--header", "Bearer"},
		"--header needs --prometheus":                            {"--header", "a=b"},
		`--prometheus: "localhost:9090" is no URL such as`:       {"--prometheus", "localhost:9090"},
		": client_error: client error: 401: no org id":           {"--prometheus", url},
		", or name a Prometheus with --prometheus":               {"--kubeconfig", "/dev/null"},
		"querying Prometheus at http://127.0.0.1:1: ":            {"--prometheus", "http://127.0.0.1:1"},
		"no costs are recorded for the label app in this range:": {"--prometheus", url, "--header", "X-Scope-OrgID=team", "--by", "label:app"},
	} {
		var out, errOut bytes.Buffer
		if status := run(t.Context(), append([]string{"cost"}, args...), streams{strings.NewReader(""), &out, &errOut}); status != 1 || !strings.Contains(errOut.String(), want) || out.Len() > 0 {
			t.Errorf("%v: status %d, %s%s, want %s", args, status, &out, &errOut, want)
		}
	}
}

func TestCostsComeFromThePrometheusInTheClusterWithRecordedMetrics(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		result := ""
		switch r.URL.Path {
		case "/api/v1/namespaces/exported/services/prometheus:9090/proxy/api/v1/query":
			result = `{"metric": {}, "value": [1, "1"]}`
		case "/api/v1/namespaces/recorded/services/prometheus:9090/proxy/api/v1/query":
			result = `{"metric": {}, "value": [1, "2"]}`
		case "/api/v1/namespaces/forbidden/services/prometheus:9090/proxy/api/v1/query":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "services \"x\" is forbidden: User \"u\" cannot get resource \"services/proxy\" in API group \"\""}`)
			return
		}
		fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": [%s]}}`, result)
	}))
	t.Cleanup(server.Close)
	cluster := func(namespaces ...string) *fake.ClientBuilder {
		b := fake.NewClientBuilder()
		for _, namespace := range namespaces {
			b.WithObjects(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prometheus", Labels: map[string]string{"app.kubernetes.io/name": "prometheus"}},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 9090}}},
			})
		}
		return b
	}
	noLists := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(corev1.Resource("services"), "", nil)
	}}
	for want, b := range map[string]*fake.ClientBuilder{
		"the Service recorded/prometheus": cluster("empty", "exported", "forbidden", "recorded", "z"),
		"no Service of a Prometheus is found in the cluster: name a Prometheus with --prometheus":        cluster(),
		"you may not get services/proxy in the namespace forbidden: name a Prometheus with --prometheus": cluster("forbidden"),
		"you may not list services, to find Prometheus: name a Prometheus with --prometheus":             cluster("recorded").WithInterceptorFuncs(noLists),
	} {
		c := connection{Client: b.Build(), config: &rest.Config{Host: server.URL}}
		var flags prometheusFlags
		found, err := flags.client(t.Context(), func() (connection, error) { return c, nil })
		if err == nil && found.Where != want || err != nil && err.Error() != want {
			t.Errorf("%+v, %v, want %s", found, err, want)
		}
	}
}
