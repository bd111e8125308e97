package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// server is a running Prometheus.
type server struct {
	t   *testing.T
	url string
}

// start starts a Prometheus with a configuration, and stops it with the test.
func start(t *testing.T, config string, port int) *server {
	t.Helper()
	return startOn(t, config, port, filepath.Join(t.TempDir(), "data"))
}

// startOn is start with a folder of data.
func startOn(t *testing.T, config string, port int, data string) *server {
	t.Helper()
	bin, dir := must[string](t)(binaries()), t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{t, fmt.Sprintf("http://127.0.0.1:%d", port)}
	log := must[*os.File](t)(os.Create(filepath.Join(dir, "log")))
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+data, "--storage.tsdb.retention.time=1000d",
		"--web.listen-address="+s.url[len("http://"):], "--log.level=warn")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait() // The end of the test's context has killed it.
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("Prometheus: %s", text)
		}
	})
	s.eventually("Prometheus is ready", func() error {
		_, err := s.get("/-/ready")
		return err
	})
	return s
}

// eventually calls check until it succeeds, and fails the test with its last error after two minutes.
func (s *server) eventually(what string, check func() error) {
	s.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("not in time: %s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (s *server) get(path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, res.Status, body)
	}
	return body, err
}

// api calls Prometheus' API and decodes the data of the answer.
func api[T any](s *server, path string, parameters ...string) (T, error) {
	values := url.Values{}
	for i := 0; i+1 < len(parameters); i += 2 {
		values.Add(parameters[i], parameters[i+1])
	}
	var answer struct{ Data T }
	body, err := s.get("/api/v1/" + path + "?" + values.Encode())
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	return answer.Data, err
}

// series is a series of an answer: [time, value] for an instant query, and pairs of them for a range.
type series struct {
	Metric map[string]string
	Value  [2]any
	Values [][2]any
}

// query evaluates an expression now.
func (s *server) query(expr string) ([]series, error) {
	answer, err := api[struct {
		ResultType string
		Result     json.RawMessage
	}](s, "query", "query", expr)
	if err != nil || answer.ResultType != "vector" {
		return nil, err
	}
	var all []series
	return all, json.Unmarshal(answer.Result, &all)
}
