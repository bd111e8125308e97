package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	quantities = "k8s.io/apimachinery/pkg/api/resource"
	requests   = "k8s.io/component-helpers/resource"
)

// harmless are the methods of resource.Quantity that take constant time and lose nothing.
var harmless = []string{"IsZero", "Sign", "DeepCopy"}

// adders are the packages that may add up the requests of pods: facts, which bounds them, and manifests, which refuses those that are too large.
var adders = []string{"pkg/snapshot/facts", "pkg/manifests"}

// Users write quantities. Arithmetic on 1e2000000000 takes hours, and conversions overflow.
func TestOnlyAmountComputesWithQuantities(t *testing.T) {
	t.Parallel()
	compiled := compile(t, "../../..")
	checked := 0
	for _, p := range compiled.packages {
		if path := strings.TrimPrefix(p.ImportPath, module+"/"); path == "pkg/amount" || !under("pkg")(path) && !under("cmd")(path) {
			continue
		}
		checked++
		for _, breach := range compiled.breaches(t, p) {
			t.Error(breach)
		}
	}
	if checked < 50 {
		t.Errorf("checked only %d packages", checked)
	}
}

func TestArithmeticOnQuantitiesIsFound(t *testing.T) {
	t.Parallel()
	compiled := compile(t, "../../..")
	file := filepath.Join(t.TempDir(), "breach.go")
	source := `package breach
import (
	"time"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)
func f(list corev1.ResourceList, at time.Time) (string, bool) {
	q := list["cpu"]
	q.Add(list["memory"])
	other := resource.MustParse("1")
	_, _ = resource.ParseQuantity("1")
	compare := q.Cmp
	return q.String(), at.Add(1).IsZero() && q.IsZero() && compare(other) == 0 && list.Cpu().Value() == 0
}`
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	got := compiled.breaches(t, built{Dir: filepath.Dir(file), ImportPath: module + "/pkg/breach", GoFiles: []string{"breach.go"}})
	for _, want := range []string{"Add", "ParseQuantity", "Cmp", "String", "Value"} {
		if !slices.ContainsFunc(got, func(breach string) bool { return strings.Contains(breach, "uses "+want+":") }) {
			t.Errorf("%s is not found: %v", want, got)
		}
	}
	if len(got) != 5 {
		t.Errorf("found %v", got)
	}
}

// built is a package as printed by go list -export.
type built struct {
	Dir, ImportPath, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// compiled holds the packages of a module, with the compiler's description of their dependencies.
type compiled struct {
	packages []built
	files    *token.FileSet
	imports  types.Importer
}

func compile(t *testing.T, dir string) *compiled {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,DepOnly", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c, exports := &compiled{files: token.NewFileSet()}, map[string]string{}
	for dec := json.NewDecoder(out); ; {
		var p built
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			c.packages = append(c.packages, p)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	c.imports = importer.ForCompiler(c.files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c
}

// breaches returns where a package computes with quantities itself.
func (c *compiled) breaches(t *testing.T, p built) []string {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		file, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: c.imports, Error: func(error) {}} // A file with cgo lacks what cgo generates.
	_, _ = config.Check(p.ImportPath, c.files, files, &info)
	var found []string
	for _, file := range files {
		constants := constantsIn(file)
		ast.Inspect(file, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			if !ok || info.Uses[name] == nil || info.Uses[name].Pkg() == nil {
				return true
			}
			if why := forbidden(info.Uses[name], strings.TrimPrefix(p.ImportPath, module+"/")); why != "" && !constants[name] {
				found = append(found, fmt.Sprintf("%s uses %s: %s", c.files.Position(name.Pos()), name.Name, why))
			}
			return true
		})
	}
	return found
}

// constantsIn returns the methods that are called on the result of a constructor such as resource.NewQuantity. Numbers of ours are small.
func constantsIn(file *ast.File) map[*ast.Ident]bool {
	all := map[*ast.Ident]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		method, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if call, ok := method.X.(*ast.CallExpr); ok {
			if made, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(made.Sel.Name, "New") {
				all[method.Sel] = true
			}
		}
		return true
	})
	return all
}

// forbidden returns why a package must not use an object, or "" if it may.
func forbidden(object types.Object, path string) string {
	f, ok := object.(*types.Func)
	if !ok {
		return ""
	}
	switch receiver := f.Signature().Recv(); {
	case f.Pkg().Path() == requests && !slices.ContainsFunc(adders, func(adder string) bool { return path == adder }):
		return "use facts.PodRequests, which bounds the amounts"
	case f.Pkg().Path() != quantities:
		return ""
	case receiver == nil && f.Name() == "ParseQuantity":
		return "use amount.Parse, which bounds the length and the exponent"
	case receiver != nil && strings.HasSuffix(receiver.Type().String(), "resource.Quantity") && !slices.Contains(harmless, f.Name()):
		return "use pkg/amount, which saturates and takes bounded time"
	}
	return ""
}
