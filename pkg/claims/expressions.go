package claims

import (
	"fmt"
	"strings"

	celcommon "github.com/google/cel-go/common"
	celast "github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/parser"
)

// allowedFunctions are the functions and operators that a selector may call. CEL's cost limit counts a call only after it has returned, and some calls never do:
// replace and the comparison of nested lists can take exponentially long or allocate any amount of memory, and quantity computes numbers with any number
// of digits. A call of these functions takes time and memory in proportion to the length of the expression, because there are no variables other than
// the device.
var allowedFunctions = map[string]bool{
	operators.Equals: true, operators.NotEquals: true, operators.Less: true, operators.LessEquals: true, operators.Greater: true, operators.GreaterEquals: true,
	operators.LogicalAnd: true, operators.LogicalOr: true, operators.LogicalNot: true, operators.Conditional: true, operators.In: true,
	operators.Index: true, operators.OptIndex: true, operators.OptSelect: true, "orValue": true, "hasValue": true,
	"startsWith": true, "endsWith": true, "contains": true, matchesFunction: true, "lowerAscii": true, "upperAscii": true, "size": true,
	"semver": true, "isSemver": true, "compareTo": true, "isGreaterThan": true, "isLessThan": true, "major": true, "minor": true, "patch": true,
}

const matchesFunction = "matches"

// celParser parses CEL. It has the macros of the API server that are part of CEL itself. A call of another macro is read as one of a function.
var celParser = newParser()

func newParser() *parser.Parser {
	p, err := parser.NewParser(parser.Macros(parser.AllMacros...), parser.EnableOptionalSyntax(true), parser.ErrorRecoveryLimit(1), parser.MaxRecursionDepth(100))
	if err != nil {
		panic(err) // The options are constants.
	}
	return p
}

// whyTooCostly returns why Karve does not evaluate an expression, or "" if evaluating it takes little time and memory. The length of the expression must be
// limited.
func whyTooCostly(expression string) string {
	tree, issues := celParser.Parse(celcommon.NewTextSource(expression))
	if len(issues.GetErrors()) > 0 {
		return "is not one that Karve can compile: " + shortText(issues.GetErrors()[0].Message)
	}
	why := ""
	celast.PreOrderVisit(tree.Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		switch {
		case why != "":
		case e.Kind() == celast.ComprehensionKind:
			why = "has a macro such as exists or map, which can take any amount of time: use ==, in, && and ||"
		case e.Kind() == celast.CallKind && !allowedFunctions[e.AsCall().FunctionName()]:
			why = fmt.Sprintf("calls %s, which Karve does not evaluate because it can take any amount of time or memory: use ==, in, &&, ||, startsWith, contains or semver",
				shortText(strings.Trim(e.AsCall().FunctionName(), "_")))
		case e.Kind() == celast.CallKind && e.AsCall().FunctionName() == matchesFunction && !areLiteralsWithoutCounts(e.AsCall().Args()):
			why = "calls matches with more than a literal without { }, which can take any amount of memory: use ==, in, startsWith or contains"
		}
	}))
	return why
}

// areLiteralsWithoutCounts reports whether the regular expression in the arguments of matches is a literal without a repetition count, which would make it much
// larger than its text.
func areLiteralsWithoutCounts(arguments []celast.Expr) bool {
	if len(arguments) == 0 {
		return false
	}
	last := arguments[len(arguments)-1]
	if last.Kind() != celast.LiteralKind {
		return false
	}
	text, ok := last.AsLiteral().(types.String)
	return ok && !strings.Contains(string(text), "{")
}
