package ui

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/leader"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/quote"
)

// contract are the types that the server sends, by the names in the page's comments "// @type VARIABLE TYPE".
var contract = map[string]any{
	"update": update{}, "Link": Link{}, "gone": gone{}, "head": head{}, "Pool": overview.Pool{}, "Totals": overview.Totals{}, "Reservation": overview.Reservation{}, "Room": overview.Room{}, "Node": overview.Node{}, "GPU": overview.GPU{}, "Agent": overview.Agent{},
	"Holder": overview.Holder{}, "Pod": overview.Pod{}, "Waiting": overview.Waiting{}, "Leader": leader.Leader{}, "PodAnswer": explain.PodAnswer{}, "NodeAnswer": explain.NodeAnswer{},
	"PoolAnswer": explain.PoolAnswer{}, "Help": explain.Help{}, "NodeCount": explain.NodeCount{}, "Machine": explain.Machine{}, "Place": explain.Place{}, "Rule": explain.Rule{},
	"Wants": explain.Wants{}, "Cause": explain.Cause{}, "SweepRow": quote.SweepRow{}, "costAnswer": costAnswer{}, "costRow": costRow{}, "costSpan": costSpan{}, "costLine": costLine{},
}

var (
	typed = regexp.MustCompile(`(?m)^// @type ([\w.]+) ([\w| ]+)$`)
	own   = regexp.MustCompile(`(?m)^// @own (.+)$`)
	// chains are accesses such as pod.gpus?.length. spread is the end of one that begins with a call or an index.
	chains     = regexp.MustCompile(`(^|[^\w$.#"'\)\]])([A-Za-z_$][\w$]*)((?:\??\.#?[A-Za-z_$][\w$]*)+)`)
	ofResults  = regexp.MustCompile(`[)\]]\??\.(#?[A-Za-z_$][\w$]*)`)
	taken      = regexp.MustCompile(`\{ ([\w$, :]+) \} = ([\w$.]+)`)
	comments   = regexp.MustCompile(`(?m)(^|\s)//.*$`)
	plainTexts = regexp.MustCompile(`"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n *]|\\.)+/[gu]*\.test`)
)

// ofLanguage are what JavaScript and the document have: what follows a call or an index, and what ends a chain of the server's fields.
var ofLanguage = strings.Fields(`length map filter some every join find findIndex includes reduce at push replace toggle style trim startsWith endsWith then text json get set has values keys sort toSorted slice
	toLowerCase toLocaleString toLocaleTimeString append replaceChildren addEventListener remove firstElementChild lastElementChild textContent hidden title value className dataset checked focus setAttribute
	getBoundingClientRect scrollTop tagName width height children classList querySelector closest split flat concat forEach entries add delete clear size test getReader pipeThrough observe nodes group top matches
	contains options abort toUpperCase indexOf some toISOString disabled clientWidth`)

// plainFiles handle texts, elements and requests, and nothing that the server says of the cluster.
var plainFiles = []string{"address.js", "dom.js", "format.js", "login.js", "server.js", "shades.js", "theme.js"}

// globals are objects of the browser.
var globals = strings.Fields("this Array CSS Date Intl URL JSON Map Math Number Object document history localStorage location performance event error")

// TestThePageReadsWhatTheServerSends checks each field that the page reads against the JSON of the Go types. Each variable with fields is one of the
// server's types, or listed as the page's own.
func TestThePageReadsWhatTheServerSends(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("web/*.js")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, file := range files {
		if slices.Contains(plainFiles, filepath.Base(file)) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range readsOf(string(text)) {
			t.Errorf("%s: %s", file, wrong)
		}
	}
	for code, want := range map[string]string{
		"// @type pod Pod\npod.name":                                      "",
		"// @type pod Pod\npod?.gpus?.length":                             "",
		"// @type pod Pod\npod.gpu":                                       "pod.gpu",
		"// @type answer PodAnswer | NodeAnswer\nanswer.pools":            "answer.pools",
		"// @type answer PodAnswer | NodeAnswer\nanswer?.move.kept":       "",
		"// @type answer PodAnswer | NodeAnswer\nanswer?.move.keeps":      "answer.move.keeps",
		"// @type model.overview head\n// @own model\nmodel.overview.pol": "model.overview.pol",
		"other.name": "other",
		"// @type model.overview head\n// @own model\nconst { totals, prices } = model.overview;": "prices",
		"list()[0].gpu": "gpu",
	} {
		got := strings.Join(readsOf(code), "; ")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", code, got, want)
		}
	}
}

// readsOf returns what is wrong with the fields that JavaScript reads.
func readsOf(text string) (wrong []string) {
	types, owned := map[string][]reflect.Type{}, map[string]bool{}
	for _, name := range globals {
		owned[name] = true
	}
	for _, m := range typed.FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(m[2], " | ") {
			sent, ok := contract[name]
			if !ok {
				return []string{"there is no type " + name}
			}
			types[m[1]] = append(types[m[1]], reflect.TypeOf(sent))
		}
	}
	for _, m := range own.FindAllStringSubmatch(text, -1) {
		for name := range strings.FieldsSeq(m[1]) {
			owned[name] = true
		}
	}
	code := strings.ReplaceAll(plainTexts.ReplaceAllString(comments.ReplaceAllString(text, "$1"), `""`), "...", " ")
	for _, m := range chains.FindAllStringSubmatch(code, -1) {
		path := strings.Split(strings.TrimPrefix(strings.ReplaceAll(m[2]+m[3], "?.", "."), "."), ".")
		wrong = append(wrong, follow(types, owned, path)...)
	}
	for _, m := range taken.FindAllStringSubmatch(code, -1) {
		of := types[m[2]]
		for part := range strings.SplitSeq(m[1], ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(part), ":")
			if of != nil && fieldOf(of, name) == nil {
				wrong = append(wrong, fmt.Sprintf("%s has no field %s", m[2], name))
			}
		}
	}
	for _, m := range ofResults.FindAllStringSubmatch(code, -1) {
		if !slices.Contains(ofLanguage, m[1]) && !strings.HasPrefix(m[1], "#") && !owned["[]."+m[1]] {
			wrong = append(wrong, fmt.Sprintf("%s is read of a result: give the result a name with a type", m[1]))
		}
	}
	return wrong
}

// follow returns what is wrong with a chain of fields.
func follow(types map[string][]reflect.Type, owned map[string]bool, path []string) []string {
	at := types[path[0]]
	rest := path[1:]
	for n := 2; n <= len(path); n++ {
		if longer := types[strings.Join(path[:n], ".")]; longer != nil {
			at, rest = longer, path[n:]
		}
	}
	if at == nil {
		if owned[path[0]] {
			return nil
		}
		return []string{fmt.Sprintf("%s: give %s a type with // @type, or list it with // @own", strings.Join(path, "."), path[0])}
	}
	for _, name := range rest {
		if at == nil { // It is a string, a number or a list.
			if slices.Contains(ofLanguage, name) {
				return nil
			}
			return []string{fmt.Sprintf("%s: %s is no property of a plain value", strings.Join(path, "."), name)}
		}
		next := fieldOf(at, name)
		if next == nil {
			return []string{fmt.Sprintf("%s: the server sends no field %s", strings.Join(path, "."), name)}
		}
		at = structsOf(next)
	}
	return nil
}

// fieldOf returns the types of a JSON field in those of the types that have it.
func fieldOf(types []reflect.Type, name string) (found []reflect.Type) {
	for _, t := range types {
		for f := range t.Fields() {
			if f.Anonymous {
				found = append(found, fieldOf([]reflect.Type{f.Type}, name)...)
			}
			if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name && tag != "-" {
				found = append(found, f.Type)
			}
		}
	}
	return found
}

// structsOf returns the structs among types, without pointers. Times and raw JSON are plain values.
func structsOf(types []reflect.Type) (structs []reflect.Type) {
	for _, t := range types {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() == reflect.Struct && !t.Implements(reflect.TypeFor[json.Marshaler]()) {
			structs = append(structs, t)
		}
	}
	return structs
}
