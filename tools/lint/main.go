// Command lint holds the linters that every change has to pass, as a tool for go vet: `go vet -vettool=_output/bin/karve-lint ./...`. It is built within a minute and judges the
// repository within two, for go vet remembers what it said of a package, and what the packages of others are is not looked into.
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"os"
	"slices"
	"strings"

	"codeberg.org/polyfloyd/go-errorlint/errorlint"
	"github.com/kisielk/errcheck/errcheck"
	"github.com/nishanths/exhaustive"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/appends"
	"golang.org/x/tools/go/analysis/passes/assign"
	"golang.org/x/tools/go/analysis/passes/atomic"
	"golang.org/x/tools/go/analysis/passes/atomicalign"
	"golang.org/x/tools/go/analysis/passes/bools"
	"golang.org/x/tools/go/analysis/passes/buildtag"
	"golang.org/x/tools/go/analysis/passes/cgocall"
	"golang.org/x/tools/go/analysis/passes/composite"
	"golang.org/x/tools/go/analysis/passes/copylock"
	"golang.org/x/tools/go/analysis/passes/deepequalerrors"
	"golang.org/x/tools/go/analysis/passes/defers"
	"golang.org/x/tools/go/analysis/passes/directive"
	"golang.org/x/tools/go/analysis/passes/errorsas"
	"golang.org/x/tools/go/analysis/passes/httpresponse"
	"golang.org/x/tools/go/analysis/passes/ifaceassert"
	"golang.org/x/tools/go/analysis/passes/loopclosure"
	"golang.org/x/tools/go/analysis/passes/lostcancel"
	"golang.org/x/tools/go/analysis/passes/modernize"
	"golang.org/x/tools/go/analysis/passes/nilfunc"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/printf"
	"golang.org/x/tools/go/analysis/passes/reflectvaluecompare"
	"golang.org/x/tools/go/analysis/passes/shift"
	"golang.org/x/tools/go/analysis/passes/sigchanyzer"
	"golang.org/x/tools/go/analysis/passes/sortslice"
	"golang.org/x/tools/go/analysis/passes/stdmethods"
	"golang.org/x/tools/go/analysis/passes/stringintconv"
	"golang.org/x/tools/go/analysis/passes/structtag"
	"golang.org/x/tools/go/analysis/passes/testinggoroutine"
	"golang.org/x/tools/go/analysis/passes/tests"
	"golang.org/x/tools/go/analysis/passes/timeformat"
	"golang.org/x/tools/go/analysis/passes/unmarshal"
	"golang.org/x/tools/go/analysis/passes/unreachable"
	"golang.org/x/tools/go/analysis/passes/unsafeptr"
	"golang.org/x/tools/go/analysis/passes/unusedresult"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"golang.org/x/tools/go/analysis/passes/waitgroup"
	"golang.org/x/tools/go/analysis/unitchecker"
	"honnef.co/go/tools/analysis/lint"
	"honnef.co/go/tools/quickfix"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
	"honnef.co/go/tools/stylecheck"
	"honnef.co/go/tools/unused"
)

// vet are go vet's own, with those that it does not run by itself.
var vet = []*analysis.Analyzer{
	appends.Analyzer, assign.Analyzer, atomic.Analyzer, atomicalign.Analyzer, bools.Analyzer, buildtag.Analyzer, cgocall.Analyzer, composite.Analyzer,
	copylock.Analyzer, deepequalerrors.Analyzer, defers.Analyzer, directive.Analyzer, errorsas.Analyzer, httpresponse.Analyzer, ifaceassert.Analyzer,
	loopclosure.Analyzer, lostcancel.Analyzer, nilfunc.Analyzer, nilness.Analyzer, printf.Analyzer, reflectvaluecompare.Analyzer, shift.Analyzer,
	sigchanyzer.Analyzer, sortslice.Analyzer, stdmethods.Analyzer, stringintconv.Analyzer, structtag.Analyzer, testinggoroutine.Analyzer, tests.Analyzer,
	timeformat.Analyzer, unmarshal.Analyzer, unreachable.Analyzer, unsafeptr.Analyzer, unusedresult.Analyzer, unusedwrite.Analyzer, waitgroup.Analyzer,
}

// silent are staticcheck's that are a matter of taste: package comments, names and the first words of comments.
var silent = []string{"ST1000", "ST1003", "ST1016", "ST1020", "ST1021", "ST1022", "QF1008"}

func main() {
	skipOthers()
	var all []*analysis.Analyzer
	add := func(linter string, inTests bool, analyzers ...*analysis.Analyzer) {
		for _, a := range analyzers {
			heed(a, linter, inTests)
			all = append(all, a)
		}
	}
	add("govet", true, vet...)
	for _, group := range [][]*lint.Analyzer{staticcheck.Analyzers, simple.Analyzers, stylecheck.Analyzers, quickfix.Analyzers} {
		for _, a := range group {
			if !slices.Contains(silent, a.Analyzer.Name) {
				add("staticcheck", true, a.Analyzer)
			}
		}
	}
	add("unused", true, unusedObjects)
	add("modernize", true, modernize.Suite...)
	add("errorlint", true, errorlint.NewAnalyzer())
	add("errcheck", false, errcheck.Analyzer)
	errcheck.DefaultExcludedSymbols = append(errcheck.DefaultExcludedSymbols, "fmt.Fprint", "fmt.Fprintf", "fmt.Fprintln")
	add("exhaustive", false, exhaustive.Analyzer)
	set(exhaustive.Analyzer, exhaustive.DefaultSignifiesExhaustiveFlag, "true")
	set(exhaustive.Analyzer, exhaustive.IgnoreEnumTypesFlag, `^(k8s\.io|sigs\.k8s\.io)/`) // open sets of names that only look like enums
	unitchecker.Main(all...)
}

func set(a *analysis.Analyzer, flag, value string) {
	if a.Flags.Lookup(flag) != nil {
		if err := a.Flags.Set(flag, value); err != nil {
			panic(err)
		}
	}
}

// unusedObjects reports what unused finds: by itself it only returns it.
var unusedObjects = &analysis.Analyzer{
	Name: "unused", Doc: "reports what nobody uses", Requires: []*analysis.Analyzer{unused.Analyzer.Analyzer},
	Run: func(pass *analysis.Pass) (any, error) {
		found := pass.ResultOf[unused.Analyzer.Analyzer].(unused.Result) //nolint:forcetypeassert // what the analyzer returns
		for _, object := range found.Unused {
			for _, file := range pass.Files {
				f := pass.Fset.File(file.Pos())
				if f != nil && f.Name() == object.Position.Filename {
					pass.Reportf(f.LineStart(object.Position.Line), "%s %s is unused", object.Kind, object.Name)
				}
			}
		}
		return nil, nil
	},
}

// heed has an analyzer say nothing of lines with `//nolint:<linter>`, of generated files, and of tests where inTests says so.
func heed(a *analysis.Analyzer, linter string, inTests bool) {
	run := a.Run
	a.Run = func(pass *analysis.Pass) (any, error) {
		excused := map[string]map[int]bool{}
		for _, file := range pass.Files {
			name := pass.Fset.File(file.Pos()).Name()
			excused[name] = lines(pass, file, linter)
			if ast.IsGenerated(file) || strings.Contains(name, "/go-build") || !inTests && strings.HasSuffix(name, "_test.go") {
				excused[name] = nil
			}
		}
		quieter := *pass
		quieter.Report = func(d analysis.Diagnostic) {
			position := pass.Fset.Position(d.Pos)
			if of, ours := excused[position.Filename]; ours && of != nil && !of[position.Line] {
				d.Message += " (" + linter + ")"
				pass.Report(d)
			}
		}
		return run(&quieter)
	}
}

// lines are those of a file that a linter is to leave alone: with the comment, and all of a declaration that begins with it.
func lines(pass *analysis.Pass, file *ast.File, linter string) map[int]bool {
	excused := map[int]bool{}
	line := func(n ast.Node, end bool) int {
		if end {
			return pass.Fset.Position(n.End()).Line
		}
		return pass.Fset.Position(n.Pos()).Line
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			names, ok := strings.CutPrefix(c.Text, "//nolint:")
			names, _, _ = strings.Cut(names, " ")
			if ok && slices.Contains(strings.Split(names, ","), linter) {
				excused[line(c, false)] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case ast.Stmt, ast.Decl, ast.Spec, *ast.Field:
			if _, block := n.(*ast.BlockStmt); !block && excused[line(n, false)] {
				for l := line(n, false); l <= line(n, true); l++ {
					excused[l] = true
				}
			}
		}
		return true
	})
	return excused
}

// skipOthers ends the program where go vet asks about a package of others, which takes most of the time: only what functions of testing do not return is of use.
func skipOthers() {
	path := os.Args[len(os.Args)-1]
	if !strings.HasSuffix(path, ".cfg") {
		return
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return // unitchecker says so
	}
	var unit struct {
		ImportPath, VetxOutput string
		VetxOnly               bool
	}
	if json.Unmarshal(content, &unit) != nil || !unit.VetxOnly || strings.HasPrefix(unit.ImportPath, "karve.sh/") || unit.ImportPath == "testing" {
		return
	}
	if err := os.WriteFile(unit.VetxOutput, nil, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, "lint:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
