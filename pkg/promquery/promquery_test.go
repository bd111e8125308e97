package promquery

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
)

var end = time.Unix(1_800_000_000, 0)

func TestAnAnswerThatNeverEndsIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "matrix", "result": [`)
		for chunk := bytes.Repeat([]byte(" "), 1<<20); ; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	client, err := api.NewClient(api.Config{Address: server.URL, RoundTripper: boundedAnswers{api.DefaultRoundTripper, 8 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{prometheus.NewAPI(client), "a test"}
	if _, err := c.Range(t.Context(), "up", end.Add(-time.Hour), end, time.Minute); err == nil || !strings.Contains(err.Error(), "querying Prometheus at a test: ") || !strings.Contains(err.Error(), "the answer has more than 8 MiB") {
		t.Error(err)
	}
}

func TestQueriesAreReadsWithHeadersForTheirHostOnly(t *testing.T) {
	t.Parallel()
	var got []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, "other "+r.Header.Get("X-Scope-Orgid"))
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": "vector", "result": []}}`)
	}))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, strings.Join([]string{r.Method, r.URL.Path, r.FormValue("query"), r.Header.Get("X-Scope-OrgID")}, " "))
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	c, err := New(server.URL+"/prometheus", "a test", must(Headers([]string{"X-Scope-OrgID=team", "Authorization=Basic YQ=="})), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.At(t.Context(), "sum(up)", end); err != nil {
		t.Fatal(err)
	}
	if want := "GET /prometheus/api/v1/query sum(up) team, other "; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func must(h http.Header, err error) http.Header {
	if err != nil {
		panic(err)
	}
	return h
}

func TestHeadersHaveKeysAndValues(t *testing.T) {
	t.Parallel()
	if got := must(Headers([]string{"Authorization=Basic YQ==", "x-a=1", "X-A=2", "empty="})); got.Get("Authorization") != "Basic YQ==" || len(got.Values("X-A")) != 2 || len(got) != 3 {
		t.Errorf("%v", got)
	}
	for _, wrong := range []string{"", "secret", "=secret", "a b=secret", "a=secret\nb"} {
		if _, err := Headers([]string{wrong}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

func TestErrorsSayWhatTheServerSays(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no org id"+strings.Repeat(".", 500), http.StatusUnauthorized)
	}))
	t.Cleanup(server.Close)
	c, err := New(server.URL, "a test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.At(t.Context(), "up", end); err == nil || !strings.HasPrefix(err.Error(), "querying Prometheus at a test: client_error: client error: 401: no org id...") || !strings.HasSuffix(err.Error(), "…") {
		t.Error(err)
	}
	for _, wrong := range []string{"", "localhost:9090", "ftp://localhost", "http://", "::"} {
		if _, err := New(wrong, wrong, nil, nil); err == nil {
			t.Errorf("%q is no address", wrong)
		}
	}
}

func TestSeriesThatAreNullAreLeftOut(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := `"vector", "result": [null, {"metric": {}, "value": [1, "2"]}]`
		if strings.HasSuffix(r.URL.Path, "query_range") {
			result = `"matrix", "result": [{"metric": {}, "values": [[1, "2"]]}, null]`
		}
		_, _ = io.WriteString(w, `{"status": "success", "data": {"resultType": `+result+`}}`)
	}))
	t.Cleanup(server.Close)
	c, err := New(server.URL, "a test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if vector, err := c.At(t.Context(), "up", end); err != nil || len(vector) != 1 || vector[0] == nil {
		t.Error(vector, err)
	}
	if matrix, err := c.Range(t.Context(), "up", end.Add(-time.Hour), end, time.Minute); err != nil || len(matrix) != 1 || matrix[0] == nil {
		t.Error(matrix, err)
	}
}
