package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The controller and the agent share keys only through the constants of pkg/nodecontract. If a key is written twice, a change may miss one of them.
func TestNodeContractKeysAreWrittenOnce(t *testing.T) {
	t.Parallel()
	const contract = "pkg/nodecontract"
	all := parseAll(t, "../../..", "pkg", "cmd")
	words := []string{"check", "MPS", "None", "memory", "replicas", "index", "uuid", "architecture", "resource", "profile"} // They also mean something else.
	keys := map[string]string{}
	for name := range all[contract].consts {
		if value, ok := all.value(contract, ast.NewIdent(name)); ok && !strings.HasSuffix(value, "/") && !slices.Contains(words, value) && ast.IsExported(name) {
			keys[value] = name
		}
	}
	if len(keys) < 15 {
		t.Fatalf("found only %d keys in %s: %v", len(keys), contract, keys)
	}
	for dir, p := range all {
		if dir == contract {
			continue
		}
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n.(type) {
				case *ast.BasicLit, *ast.BinaryExpr:
					if value, ok := all.value(dir, n.(ast.Expr)); ok && keys[value] != "" {
						t.Errorf("%s writes %q: use nodecontract.%s", p.fset.Position(n.Pos()), value, keys[value])
						return false
					}
				}
				return true
			})
		}
	}
}

// keysOfAWS matches names of AWS and of Karpenter's AWS provider: labels, kinds, fields, drivers and images.
var keysOfAWS = regexp.MustCompile(`k8s\.aws|amazonaws|csi\.aws|aws-ebs|EC2NodeClass|\bami-|amiSelector|subnetSelector|amiFamily|SpotInterrupted`)

// Support for another cloud is another folder, so other packages get AWS's keys from pkg/cloud.
func TestOnlyAWSPackagesUseAWSKeys(t *testing.T) {
	t.Parallel()
	// The API mentions EC2NodeClasses as an example and in GPUImageRollouts, and user-facing texts about the API do so too. The table of labels is one for all
	// clouds.
	mayName := anyOf(under("pkg/cloud/aws"), under("pkg/nodelabels"), under("pkg/catalog/builtin"), under("pkg/apis"), under("pkg/manifests"), under("pkg/operator"), under("pkg/cloud/live"), under("pkg/metrics"), under("cmd"))
	for dir, p := range parseAll(t, "../../..", "pkg", "cmd") {
		if mayName(dir) || strings.HasSuffix(dir, "test") {
			continue
		}
		for _, file := range p.files {
			for _, breach := range breachesOfAWS(file) {
				t.Errorf("%s writes %s: put it into pkg/cloud/aws", p.fset.Position(breach.Pos()), breach.key)
			}
		}
	}
}

// written is a key in a source file.
type written struct {
	ast.Node
	key string
}

// breachesOfAWS returns the strings that contain keys of AWS, and the AWS-specific fields of Kubernetes types.
func breachesOfAWS(file *ast.File) []written {
	var all []written
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false // Other rules cover imports.
		case *ast.BasicLit:
			if n.Kind == token.STRING && keysOfAWS.MatchString(n.Value) {
				all = append(all, written{n, n.Value})
			}
		case *ast.SelectorExpr:
			if strings.HasPrefix(n.Sel.Name, "AWS") {
				all = append(all, written{n, n.Sel.Name})
			}
		}
		return true
	})
	return all
}

func TestAWSKeysAreFound(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`"karpenter.k8s.aws/instance-family"`: 1, `"see spec.amiSelectorTerms"`: 1, `"topology.ebs.csi.aws.com/zone"`: 1, `pv.Spec.AWSElasticBlockStore`: 1, `"ami-" + id`: 1,
		`"kubernetes.io/aws-ebs"`: 1, `"a lawsuit"`: 0, `"AMIDrift"`: 0, `pv.Spec.CSI`: 0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nvar x = "+text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if got := breachesOfAWS(file); len(got) != want {
			t.Errorf("%s: %d keys are seen, want %d", text, len(got), want)
		}
	}
}

// source is the non-test files of a package and their constants.
type source struct {
	fset   *token.FileSet
	files  []*ast.File
	consts map[string]ast.Expr
}

// sources are packages by their folder in the module.
type sources map[string]*source

func parseAll(t *testing.T, root string, folders ...string) sources {
	t.Helper()
	all := sources{}
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				return err
			}
			p := all[filepath.ToSlash(dir)]
			if p == nil {
				p = &source{fset: token.NewFileSet(), consts: map[string]ast.Expr{}}
				all[filepath.ToSlash(dir)] = p
			}
			file, err := parser.ParseFile(p.fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			p.files = append(p.files, file)
			p.declare(file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func (p *source) declare(file *ast.File) {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.CONST {
			continue
		}
		for _, spec := range g.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok && len(v.Names) == len(v.Values) {
				for i, name := range v.Names {
					p.consts[name.Name] = v.Values[i]
				}
			}
		}
	}
}

// value returns the string value of an expression in the package of a folder. ok is false if it is not a constant of the module. Packages are referred to by
// their own names.
func (all sources) value(dir string, e ast.Expr) (value string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		value, err := strconv.Unquote(e.Value)
		return value, err == nil
	case *ast.BinaryExpr:
		left, ok := all.value(dir, e.X)
		if !ok || e.Op != token.ADD {
			return "", false
		}
		right, ok := all.value(dir, e.Y)
		return left + right, ok
	case *ast.ParenExpr:
		return all.value(dir, e.X)
	case *ast.Ident:
		if p := all[dir]; p != nil && p.consts[e.Name] != nil {
			return all.value(dir, p.consts[e.Name])
		}
	case *ast.SelectorExpr:
		if pkg, ok := e.X.(*ast.Ident); ok {
			for other, p := range all {
				if path.Base(other) == pkg.Name && p.consts[e.Sel.Name] != nil {
					return all.value(other, p.consts[e.Sel.Name])
				}
			}
		}
	}
	return "", false
}
