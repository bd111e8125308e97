// Package arch checks which packages may import which. The linters check this too, per file and with the reasons. These tests follow all dependencies, so they
// also find an import through a third package.
package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "karve.sh/karve"

// rule restricts the dependencies of some of our packages.
type rule struct {
	why string
	// of reports whether the rule applies to the package at a path below the module.
	of func(path string) bool
	// allows reports whether such a package may import another.
	allows func(importPath string) bool
	// transitively says that the rule also covers indirect imports.
	transitively bool
}

var rules = []rule{
	{
		why:          "the planner is plain Go on plain numbers, so that it can be tested, fuzzed and used without Kubernetes",
		of:           func(path string) bool { return under("pkg/planner")(path) && !under("pkg/planner/plantest")(path) },
		allows:       anyOf(standard, ours("pkg/planner")),
		transitively: true,
	},
	{
		why:    "the model of a plan is for all: it uses nothing else of ours",
		of:     is("pkg/planner"),
		allows: noneOf(below(module)),
	},
	{
		why:          "what judges plans shares no code with what makes them: a mistake of the search must not hide in the check",
		of:           under("pkg/planner/check"),
		allows:       anyOf(standard, exactly(module+"/pkg/planner"), ours("pkg/planner/check")),
		transitively: true,
	},
	{
		why:          "the search knows the packing problem alone; constraints between machines are planned for around it",
		of:           anyOf(under("pkg/planner/internal/search"), under("pkg/planner/internal/pricing"), under("pkg/planner/internal/pack"), under("pkg/planner/internal/lp")),
		allows:       noneOf(ours("pkg/planner/internal/constraints"), ours("pkg/planner/firstfit"), ours("pkg/planner/solve"), ours("pkg/planner/consolidate")),
		transitively: true,
	},
	{
		why:          "what tests the planner needs no Kubernetes either; it adds rapid, which draws the inputs",
		of:           under("pkg/planner/plantest"),
		allows:       anyOf(standard, ours("pkg/planner"), below("pgregory.net/rapid")),
		transitively: true,
	},
	{
		why:    "the catalog knows quantities and nothing else of Kubernetes",
		of:     is("pkg/catalog"),
		allows: anyOf(standard, ours("pkg/catalog"), ours("pkg/amount"), ours("pkg/nodecontract"), exactly("k8s.io/apimachinery/pkg/api/resource")),
	},
	{
		why:          "others import our API types, and should not get a client or Karpenter with them",
		of:           under("pkg/apis"),
		allows:       noneOf(below("k8s.io/client-go"), below("sigs.k8s.io/controller-runtime"), below("sigs.k8s.io/karpenter")),
		transitively: true,
	},
	{
		why:    "our API types need only the machinery of Kubernetes' own",
		of:     under("pkg/apis"),
		allows: anyOf(standard, ours("pkg/apis"), ours("pkg/nodecontract"), below("k8s.io/apimachinery")),
	},
	{
		why:          "the contract between controller and agent is for both: it brings nothing with it",
		of:           under("pkg/nodecontract"),
		allows:       anyOf(standard, ours("pkg/nodecontract")),
		transitively: true,
	},
	{
		why:    "what the agent and the others share is pkg/nodecontract",
		of:     noneOf(under("pkg/node"), under("cmd/node"), under("test")),
		allows: noneOf(ours("pkg/node")),
	},
	{
		why:          "the agent runs on every node: it does without API types and clients, which are most of a program's size",
		of:           anyOf(under("pkg/node"), under("cmd/node")),
		allows:       noneOf(ours("pkg/apis"), ours("pkg/snapshot"), ours("pkg/controllers"), below("k8s.io/api"), below("k8s.io/client-go"), below("sigs.k8s.io/controller-runtime")),
		transitively: true,
	},
	{
		why: "claims, snapshot, fleet, render, repair, manifests, quote, overview, explain, doctor, replay, advice and planning/checked are functions of values: those who call them read the objects and files",
		of: anyOf(under("pkg/claims"), under("pkg/snapshot"), under("pkg/fleet"), under("pkg/prices"), under("pkg/render"), under("pkg/repair"), under("pkg/manifests"), under("pkg/quote"),
			under("pkg/overview"), under("pkg/bill"), exactly("pkg/cost"), under("pkg/table"), under("pkg/explain"), under("pkg/doctor"), under("pkg/replay"), exactly("pkg/advice"), under("pkg/planning/checked")),
		allows: noneOf(below("k8s.io/client-go"), below("sigs.k8s.io/controller-runtime")),
	},
	{
		why:          "snapshot says what there is, and fleet decides about it: objects are translated without any decision about machines",
		of:           under("pkg/snapshot"),
		allows:       noneOf(ours("pkg/fleet"), ours("pkg/repair"), ours("pkg/rollout"), ours("pkg/render")),
		transitively: true,
	},
	{
		why:          "facts are what was read: they know neither the records that are made of them nor pools and plans",
		of:           under("pkg/snapshot/facts"),
		allows:       noneOf(exactly(module+"/pkg/snapshot"), ours("pkg/snapshot/records")),
		transitively: true,
	},
	{
		why:          "a machine or a pod is what it is whatever pools and plans there are: snapshot translates records, never the reverse",
		of:           under("pkg/snapshot/records"),
		allows:       noneOf(exactly(module + "/pkg/snapshot")),
		transitively: true,
	},
	{
		why: "a decision about machines has no clock, counts nothing and writes no log: who carries it out does",
		of:  anyOf(under("pkg/fleet"), under("pkg/planning/checked")),
		allows: noneOf(ours("pkg/metrics"), ours("pkg/gather"), exactly(module+"/pkg/planning"), ours("pkg/watchdog"), below("k8s.io/utils/clock"), below("k8s.io/klog"),
			below("github.com/go-logr"), below("github.com/prometheus")),
	},
	{
		why:    "a decision does not depend on who asks for it: controllers, operator and commands are on top",
		of:     noneOf(under("pkg/controllers"), under("pkg/operator"), under("cmd"), under("test")),
		allows: noneOf(ours("pkg/controllers"), ours("pkg/operator"), ours("cmd")),
	},
	{
		why:    "nothing that ships depends on the tests' cluster",
		of:     noneOf(under("test")),
		allows: noneOf(ours("test")),
	},
	{
		why: "Karpenter's API types and pkg/scheduling stop at what reads and writes its objects",
		of: noneOf(under("pkg/snapshot"), under("pkg/fleet"), under("pkg/prices"), under("pkg/render"), under("pkg/repair"), under("pkg/manifests"), under("pkg/quote"), under("pkg/overview"), under("pkg/controllers"), under("pkg/gather"), under("pkg/planning"),
			under("pkg/explain"), under("pkg/doctor"), exactly("pkg/advice"), under("pkg/cloud/aws"), under("pkg/karpenter"), under("pkg/operator"), under("cmd"), under("test")),
		allows: noneOf(below("sigs.k8s.io/karpenter")),
	},
	{
		why: "the rest of Karpenter changes from release to release: pkg/karpenter wraps what is needed",
		of:  noneOf(under("pkg/cloud/aws"), under("pkg/karpenter"), under("test")),
		allows: anyOf(noneOf(below("sigs.k8s.io/karpenter")), exactly(
			"sigs.k8s.io/karpenter/pkg/apis", "sigs.k8s.io/karpenter/pkg/apis/v1", "sigs.k8s.io/karpenter/pkg/apis/v1alpha1", "sigs.k8s.io/karpenter/pkg/scheduling")),
	},
	{
		why: "Karpenter's AWS provider brings its own Karpenter and AWS with it: pkg/cloud/aws may have what the provider's resolvers take and return",
		of:  under("pkg/cloud/aws"),
		allows: anyOf(noneOf(below("sigs.k8s.io/karpenter")), exactly("sigs.k8s.io/karpenter/pkg/apis/v1", "sigs.k8s.io/karpenter/pkg/cloudprovider",
			"sigs.k8s.io/karpenter/pkg/operator/options", "sigs.k8s.io/karpenter/pkg/scheduling")),
	},
	{
		why:    "only pkg/cloud/aws speaks to AWS, and with the help of Karpenter's AWS provider; its API types are for all who read EC2NodeClasses",
		of:     noneOf(under("pkg/cloud/aws"), under("test")),
		allows: anyOf(noneOf(below("github.com/aws")), below("github.com/aws/karpenter-provider-aws/pkg/apis")),
	},
	{
		why:    "what is particular about a cloud is behind pkg/cloud: those that may know AWS wire it",
		of:     noneOf(under("pkg/cloud"), under("pkg/operator"), under("pkg/catalog/builtin"), under("cmd"), under("test")),
		allows: noneOf(ours("pkg/cloud/aws")),
	},
	{
		why:          "what Karve knows of clouds without asking them is for all, so it brings no clients with it",
		of:           anyOf(is("pkg/cloud"), is("pkg/cloud/aws"), under("pkg/cloud/clouds")),
		allows:       noneOf(below("github.com/aws"), below("k8s.io/client-go"), below("sigs.k8s.io/controller-runtime")),
		transitively: true,
	},
	{
		why: "what runs on nodes and on people's machines does not carry AWS's clients with it",
		of: anyOf(under("cmd/kubectl-karve"), under("cmd/node"), under("pkg/node"), under("pkg/snapshot"), under("pkg/render"), under("pkg/manifests"), under("pkg/quote"), under("pkg/overview"),
			under("pkg/gather")),
		allows:       anyOf(noneOf(below("github.com/aws")), exactly("github.com/aws/karpenter-provider-aws/pkg/apis")), // The CRDs as text.
		transitively: true,
	},
}

// listed is a package as printed by go list.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func TestImportsFollowRules(t *testing.T) {
	t.Parallel()
	touch(t)
	packages := slices.Concat(list(t, ".", "./..."), list(t, "test", "./..."))
	for _, breach := range breaches(packages, rules) {
		t.Error(breach)
	}
}

func TestBreachesAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pkg  listed
		want int
	}{
		"the planner may use the standard library":         {pkg("pkg/planner", "slices", "math/big"), 0},
		"the checker may not use the solver":               {pkg("pkg/planner/check", module+"/pkg/planner", module+"/pkg/planner/internal/pack"), 1},
		"the planner may not use anything else":            {pkg("pkg/planner", "golang.org/x/exp/maps"), 1},
		"the planner may not use anything else indirectly": {listed{ImportPath: module + "/pkg/planner", Deps: []string{"k8s.io/api/core/v1"}}, 1},
		"a package with a similar name is another one":     {pkg("pkg/plannerview", "golang.org/x/exp/maps"), 0},
		"the catalog may use quantities":                   {pkg("pkg/catalog", "k8s.io/apimachinery/pkg/api/resource"), 0},
		"the catalog may not use pods":                     {pkg("pkg/catalog", "k8s.io/api/core/v1"), 1},
		"snapshot may use Karpenter's API":                 {pkg("pkg/snapshot", "sigs.k8s.io/karpenter/pkg/apis/v1"), 0},
		"snapshot may not use the rest of Karpenter":       {pkg("pkg/snapshot", "sigs.k8s.io/karpenter/pkg/utils/pod"), 1},
		"manifests may not use a client":                   {pkg("pkg/manifests", "k8s.io/client-go/rest"), 1},
		"snapshot may not use decisions":                   {pkg("pkg/snapshot", module+"/pkg/fleet/drift"), 1},
		"a decision may use the snapshot":                  {pkg("pkg/fleet/drift", module+"/pkg/snapshot"), 0},
		"facts may not use records":                        {pkg("pkg/snapshot/facts", module+"/pkg/snapshot/records"), 1},
		"records may use facts":                            {pkg("pkg/snapshot/records", module+"/pkg/snapshot/facts"), 0},
		"records may not use the translation":              {pkg("pkg/snapshot/records", module+"/pkg/snapshot"), 1},
		"snapshot may not use a client":                    {pkg("pkg/snapshot", "sigs.k8s.io/controller-runtime/pkg/client"), 1},
		"pkg/karpenter may use all of Karpenter":           {pkg("pkg/karpenter", "sigs.k8s.io/karpenter/pkg/utils/pod"), 0},
		"metrics may not use Karpenter at all":             {pkg("pkg/metrics", "sigs.k8s.io/karpenter/pkg/apis/v1"), 1},
		"the provider's resolvers may be used to ask AWS":  {pkg("pkg/cloud/aws/instancetype", "github.com/aws/karpenter-provider-aws/pkg/providers/pricing", "sigs.k8s.io/karpenter/pkg/cloudprovider"), 0},
		"the rest of the provider may not be used":         {pkg("pkg/cloud/aws/instancetype", "sigs.k8s.io/karpenter/pkg/controllers/state"), 1},
		"no controller knows one cloud":                    {pkg("pkg/controllers/rollout", module+"/pkg/cloud/aws/images"), 1},
		"controllers see clouds through one interface":     {pkg("pkg/controllers/launch", module+"/pkg/cloud/aws"), 1},
		"static AWS data may not use AWS clients":          {listed{ImportPath: module + "/pkg/cloud/aws", Deps: []string{"github.com/aws/aws-sdk-go-v2/aws"}}, 1},
		"controllers may not call AWS":                     {pkg("pkg/controllers/pool", "github.com/aws/aws-sdk-go-v2/service/ec2"), 1},
		"controllers may read EC2NodeClasses":              {pkg("pkg/controllers/pool", "github.com/aws/karpenter-provider-aws/pkg/apis/v1"), 0},
		"kubectl-karve may not use AWS clients indirectly": {listed{ImportPath: module + "/cmd/kubectl-karve", Deps: []string{"github.com/aws/smithy-go"}}, 1},
		"the contract may not use API types":               {pkg("pkg/nodecontract", "k8s.io/api/core/v1"), 1},
		"a controller may not use the agent's packages":    {pkg("pkg/repair", module+"/pkg/node/health"), 1},
		"the agent may not use API types":                  {pkg("pkg/node/plugin", module+"/pkg/apis/v1alpha1"), 1},
		"API types may not use a client":                   {pkg("pkg/apis/v1alpha1", "k8s.io/client-go/rest"), 2},
		"no lower package may use controllers":             {pkg("pkg/render", module+"/pkg/controllers/launch"), 1},
		"what explains decisions may not use controllers":  {pkg("pkg/explain", module+"/pkg/controllers/disruption"), 1},
		"a decision may not have a clock":                  {pkg("pkg/fleet/disruption", "k8s.io/utils/clock"), 1},
		"a decision may not count":                         {pkg("pkg/fleet/disruption", module+"/pkg/metrics"), 1},
		"a test package may use anything":                  {pkg("test/demo", "sigs.k8s.io/karpenter/pkg/operator", module+"/pkg/operator"), 0},
		"shipped packages may not use the test cluster":    {pkg("cmd/controller", module+"/test/harness/cluster"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := breaches([]listed{c.pkg}, rules); len(got) != c.want {
				t.Errorf("got %d breaches, want %d: %q", len(got), c.want, got)
			}
		})
	}
}

func pkg(path string, imports ...string) listed {
	return listed{ImportPath: module + "/" + path, Imports: imports, Deps: imports}
}

func breaches(packages []listed, rules []rule) []string {
	var out []string
	for _, p := range packages {
		path := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, r := range rules {
			if !r.of(path) {
				continue
			}
			imports := p.Imports
			if r.transitively {
				imports = p.Deps
			}
			for _, i := range imports {
				if !r.allows(i) {
					out = append(out, fmt.Sprintf("%s imports %s: %s", path, i, r.why))
				}
			}
		}
	}
	return out
}

// list lists packages of a module in a folder of the repository.
func list(t *testing.T, folder string, patterns ...string) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Imports,Deps", "--"}, patterns...)...)
	cmd.Dir = filepath.Join("../../..", folder)
	out, err := cmd.Output()
	if err != nil {
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("reading what go list wrote: %v", err)
		}
		packages = append(packages, p)
	}
}

// touch stats every Go file, so that go test does not return a cached result after one of them has changed. The test cache tracks the files that the test
// itself opens or stats, not those that go list reads.
func touch(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "_output" || entry.Name() == ".git"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go":
			_, err = os.Stat(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// is and under match our packages by their path below the module: is exactly, under with subpackages. below and ours match packages by a prefix of the import
// path.

func is(path string) func(string) bool { return exactly(path) }

func under(path string) func(string) bool { return below(path) }

func ours(path string) func(string) bool { return below(module + "/" + path) }

func exactly(paths ...string) func(string) bool {
	return func(p string) bool { return slices.Contains(paths, p) }
}

func below(root string) func(string) bool {
	return func(p string) bool { return p == root || strings.HasPrefix(p, root+"/") }
}

// standard reports whether a package is of the standard library: only its paths have no dot in the first element. The packages that it vendors are in vendor/.
func standard(p string) bool {
	first, _, _ := strings.Cut(p, "/")
	return !strings.Contains(first, ".")
}

func anyOf(fs ...func(string) bool) func(string) bool {
	return func(p string) bool {
		return slices.ContainsFunc(fs, func(f func(string) bool) bool { return f(p) })
	}
}

func noneOf(fs ...func(string) bool) func(string) bool {
	f := anyOf(fs...)
	return func(p string) bool { return !f(p) }
}
