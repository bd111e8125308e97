package nodecontract_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"karve.sh/karve/pkg/nodecontract"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func TestUnusedReportRoundTrips(t *testing.T) {
	t.Parallel()
	r := nodecontract.UnusedReport{AsOf: noon, Since: map[string]time.Time{"team/train-0": noon.Add(-3 * time.Hour)}}
	const want = `{"asOf":"2026-03-01T12:00:00Z","since":{"team/train-0":"2026-03-01T09:00:00Z"}}`
	if r.String() != want {
		t.Errorf("written %s, want %s", r, want)
	}
	back, err := nodecontract.ParseUnused(want)
	if diff := cmp.Diff(r, back); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if empty, err := nodecontract.ParseUnused(""); err != nil || empty.String() != "" {
		t.Errorf("an empty one is %q, %v", empty, err)
	}
	for _, bad := range []string{"x", "[]", `{"asOf":"noon"}`, `{"since":["a"]}`, `{"asOf":"2026-03-01T12:00:00Z"`} {
		if r, err := nodecontract.ParseUnused(bad); err == nil || r.Since != nil {
			t.Errorf("%s was read as %v", bad, r)
		}
	}
}

func TestUnusedDurationCountsOnlyObservedTime(t *testing.T) {
	t.Parallel()
	r := nodecontract.UnusedReport{AsOf: noon, Since: map[string]time.Time{"a/p": noon.Add(-3 * time.Hour), "a/later": noon.Add(time.Hour)}}
	old := noon.Add(-24 * time.Hour)
	for name, c := range map[string]struct {
		pod     string
		started time.Time
		now     time.Time
		want    time.Duration
	}{
		"up to the report":                {"a/p", old, noon, 3 * time.Hour},
		"no growth after the report":      {"a/p", old, noon.Add(nodecontract.UnusedReportTTL), 3 * time.Hour},
		"a stale report":                  {"a/p", old, noon.Add(nodecontract.UnusedReportTTL + 1), 0},
		"a report slightly in the future": {"a/p", old, noon.Add(-nodecontract.UnusedReportTTL), 3 * time.Hour},
		"a report far in the future":      {"a/p", old, noon.Add(-nodecontract.UnusedReportTTL - 1), 0},
		"a new pod with the same name":    {"a/p", noon.Add(-time.Hour), noon, time.Hour},
		"a pod that just started":         {"a/p", noon.Add(time.Minute), noon, 0},
		"a pod without a start time":      {"a/p", time.Time{}, noon, 0},
		"a pod that is not in the report": {"a/q", old, noon, 0},
		"a future timestamp":              {"a/later", old, noon, 0},
	} {
		if got := r.For(c.pod, c.started, c.now); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`{"asOf":"2026-03-01T12:00:00Z","since":{"team/train-0":"2026-03-01T09:00:00Z"}}`)
	f.Add("")
	f.Add(`{"since":{"":"0001-01-01T00:00:00Z"}}`)
	f.Fuzz(func(t *testing.T, annotation string) {
		r, err := nodecontract.ParseUnused(annotation)
		if err != nil {
			return
		}
		for pod := range r.Since {
			if d := r.For(pod, noon.Add(-time.Hour), noon); d < 0 || d > time.Hour+nodecontract.UnusedReportTTL {
				t.Errorf("%q: %s", annotation, d)
			}
		}
		if text := r.String(); text != "" {
			again, err := nodecontract.ParseUnused(text)
			if err != nil || again.String() != text {
				t.Errorf("%q became %q and then %q, %v", annotation, text, again, err)
			}
		}
	})
}

func TestUnusedDurationNeverExceedsAgeOfPod(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := func(name string) time.Time {
			return noon.Add(time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, name)))
		}
		r := nodecontract.UnusedReport{AsOf: at("as of"), Since: map[string]time.Time{"a/p": at("since")}}
		started, now := at("started"), at("now")
		d := r.For("a/p", started, now)
		if d < 0 || d > 0 && (d > r.AsOf.Sub(started) || d > r.AsOf.Sub(r.Since["a/p"]) || now.Sub(r.AsOf).Abs() > nodecontract.UnusedReportTTL) {
			t.Fatalf("%s by %v, started %s, now %s", d, r, started, now)
		}
	})
}
