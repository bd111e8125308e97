package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite what is printed in testdata, for the diff to be reviewed")

// member matches the header of a file in a txtar archive.
var member = regexp.MustCompile(`(?m)^-- (\S+) --\n`)

// TestCommandsMatchGoldenFiles runs testdata/*.txtar. Each archive has a comment that describes the case, the arguments (args), optionally the standard input (stdin)
// and files, and the expected output. The command runs in a directory with these files, or in the directory of this test if there are none.
func TestCommandsMatchGoldenFiles(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, archive := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(archive), ".txtar"), func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(here, archive))
			if err != nil {
				t.Fatal(err)
			}
			input, want, _ := strings.Cut(string(text), "-- stdout --\n")
			members, folder := read(input), t.TempDir()
			for name, content := range members {
				if name == "args" || name == "stdin" {
					continue
				}
				t.Chdir(folder)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got := runIt(t, strings.Fields(members["args"]), members["stdin"])
			if *update {
				if err := os.WriteFile(filepath.Join(here, archive), []byte(input+"-- stdout --\n"+got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got; -update accepts it)\n%s", diff)
			}
		})
	}
}

// runIt runs the command and returns what it prints. It reports an error if the command fails without a message, or prints part of an answer and fails. Only a plan
// that does not meet its conditions is printed nevertheless.
func runIt(t *testing.T, args []string, stdin string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	status := run(t.Context(), args, streams{strings.NewReader(stdin), &out, &errOut})
	failed := strings.Contains(errOut.String(), "error: ")
	conditional := strings.Contains(errOut.String(), "(--fail-on-unplaced)") || strings.Contains(errOut.String(), "--max-usd-per-hour)") || strings.Contains(errOut.String(), "more than --max-usd-per-hour")
	if status != 0 != failed || failed == (out.Len() > 0) != conditional || status > 1 {
		t.Errorf("status %d with %d bytes on stdout and on stderr: %s", status, out.Len(), &errOut)
	}
	return out.String() + "-- stderr --\n" + errOut.String()
}

func read(archive string) map[string]string {
	members := map[string]string{}
	places := member.FindAllStringSubmatchIndex(archive, -1)
	for i, place := range places {
		end := len(archive)
		if i+1 < len(places) {
			end = places[i+1][0]
		}
		members[archive[place[2]:place[3]]] = archive[place[1]:end]
	}
	return members
}
