package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// wraps are the methods of resource.Quantity that overflow or silently lose precision. No other type in the released code has methods with these names.
var wraps = map[string]bool{"Value": true, "MilliValue": true, "ScaledValue": true, "AsInt64": true, "AsApproximateFloat64": true, "AsScaledInt64": true}

func TestOnlyAmountConvertsQuantities(t *testing.T) {
	t.Parallel()
	for _, root := range []string{"../../../pkg", "../../../cmd"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && path == "../../../pkg/amount":
				return filepath.SkipDir
			case entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || !wraps[method.Sel.Name] {
					return true
				}
				if pkg, ok := method.X.(*ast.Ident); !ok || pkg.Name != "amount" {
					t.Errorf("%s calls %s: use pkg/amount, which saturates", files.Position(call.Pos()), method.Sel.Name)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
