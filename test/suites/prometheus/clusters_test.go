package prometheus

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"karve.sh/karve/test/harness/billed"
)

// sample matches a line of what an exporter serves.
var sample = regexp.MustCompile(`(?m)^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$`)

// recording scrapes addresses every 15 seconds of an hour, which passes at once, and returns the values of each series. All values are times a factor, as in another
// cluster. labels are those of the addresses.
func recording(t *testing.T, factor int, addresses map[string]string, scrapes int) map[string][]string {
	t.Helper()
	values := map[string][]string{}
	for i := range scrapes {
		for address, labels := range addresses {
			request := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody))
			response := must[*http.Response](t)(http.DefaultClient.Do(request))
			text := must[[]byte](t)(io.ReadAll(response.Body))
			_ = response.Body.Close()
			for _, m := range sample.FindAllStringSubmatch(string(text), -1) {
				var value float64
				if _, err := fmt.Sscan(m[3], &value); err != nil {
					continue // +Inf and NaN
				}
				if strings.HasSuffix(m[1], "_timestamp_seconds") || strings.HasSuffix(m[1], "_ratio") {
					value /= float64(factor)
				}
				all := strings.Trim(m[2]+","+labels, ",")
				key := fmt.Sprintf("{__name__=%q,%s}", m[1], all)
				if values[key] == nil {
					values[key] = slices.Repeat([]string{"_"}, scrapes)
				}
				values[key][i] = fmt.Sprint(value * float64(factor))
			}
		}
	}
	return values
}

// TestPanelsShowTheClusterThatIsSelected compares the dashboards of two clusters in one Prometheus with those of each cluster in a Prometheus of its own, whose
// metrics have no label for it.
func TestPanelsShowTheClusterThatIsSelected(t *testing.T) {
	t.Parallel()
	const scrapes, every = 60, 15
	begin := time.Now().UTC().Add(-time.Hour).Truncate(time.Minute)
	addresses := map[string]string{controllerWithEverything(t): `job="karve",instance="1"`, agentWithProcesses(t): `job="karve-node",instance="2",node="node-1"`}
	dir := t.TempDir()
	clusters := map[string]map[string][]string{"east": recording(t, 1, addresses, scrapes), "west": recording(t, 3, addresses, scrapes)}
	write := func(name string, of ...string) *server {
		folder := filepath.Join(dir, name)
		err := billed.Blocks(t.Context(), dir, folder, func(w io.Writer) error {
			for _, cluster := range of {
				for key, values := range clusters[cluster] {
					if len(of) > 1 {
						key = strings.TrimSuffix(key, "}") + fmt.Sprintf(",cluster=%q}", cluster)
					}
					if _, err := fmt.Fprintf(w, "%s\t%d\t%d\t%s\n", key, begin.Unix(), every, strings.Join(values, " ")); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return startOn(t, "global: {}\n", must[[]int](t)(freePorts(t, 1))[0], folder)
	}
	both, alone := write("both", "east", "west"), map[string]*server{"east": write("east", "east"), "west": write("west", "west")}
	at := fmt.Sprint(begin.Add((scrapes - 1) * every * time.Second).Unix())
	answers := func(s *server, expr, cluster string) map[string]float64 {
		expr = strings.NewReplacer("$cluster", cluster, "$nodepool", ".*", "$namespace", ".*", "$node", ".*", "$__rate_interval", "5m", "$__range", "10m").Replace(expr)
		answer, err := api[struct{ Result []series }](s, "query", "query", expr, "time", at)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		all := map[string]float64{}
		for _, r := range answer.Result {
			delete(r.Metric, "cluster")
			key := fmt.Sprint(r.Metric)
			if _, twice := all[key]; twice {
				t.Errorf("%s: there are two of %s", expr, key)
			}
			all[key] = number(r.Value)
		}
		return all
	}
	told := 0
	for name, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				for cluster, s := range alone {
					want := answers(s, target.Expr, ".*")
					if diff := cmp.Diff(want, answers(both, target.Expr, cluster), cmpopts.EquateApprox(1e-9, 1e-9), cmpopts.EquateNaNs()); diff != "" {
						t.Errorf("%s: %s of %s (-alone +beside another):\n%s", name, p.Title, cluster, diff)
					}
					if len(want) > 0 && !maps.Equal(want, answers(both, target.Expr, "nowhere")) {
						told++
					}
				}
			}
		}
	}
	if told < 60 {
		t.Errorf("only %d answers say something", told)
	}
}
