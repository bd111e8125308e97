package chart_test

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	karpenteraws "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/aws"
	"karve.sh/karve/test/harness/cluster"
)

func example(t *testing.T, path ...string) []byte {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(append([]string{root, "examples"}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readPolicy(t *testing.T) aws.Policy {
	t.Helper()
	var p aws.Policy
	if err := yaml.UnmarshalStrict(example(t, "iam", "policy.json"), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// input matches the input of an AWS SDK call, such as ec2.DescribeImagesInput{.
var input = regexp.MustCompile(`\b(ec2|ssm|pricing|servicequotas|eks|iam|sqs|sts)\.([A-Z]\w+)Input\{`)

// TestIAMPolicyAllowsExactlyTheCallsInCode finds the calls in Karve's code, and in the packages of Karpenter's AWS provider that receive AWS clients.
func TestIAMPolicyAllowsExactlyTheCallsInCode(t *testing.T) {
	var allowed []string
	for _, s := range readPolicy(t).Statement {
		if s.Effect != "Allow" {
			t.Errorf("%s: %s", s.Sid, s.Effect)
		}
		allowed = append(allowed, s.Action...)
	}
	slices.Sort(allowed)
	called := map[string]bool{}
	for _, folder := range callers(t) {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range input.FindAllStringSubmatch(string(text), -1) {
				called[call[1]+":"+call[2]] = true
			}
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(called)), allowed); diff != "" {
		t.Errorf("(-called +allowed)\n%s", diff)
	}
}

// callers returns the directories of Karve's packages that import AWS's SDK, and of the provider's pricing package, which makes its own calls.
func callers(t *testing.T) []string {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	const prices = "github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{.Dir}} {{join .Imports " "}}`, "./pkg/...", "./cmd/...", prices)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var folders []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if fields[0] == prices || strings.Contains(line, " github.com/aws/aws-sdk-go-v2/service/") {
			folders = append(folders, fields[1])
		}
	}
	return folders
}

func TestIAMRoleTrustsControllerServiceAccount(t *testing.T) {
	account := into[appsv1.Deployment](t, objects(t, needed), "Deployment").Spec.Template.Spec.ServiceAccountName
	for file, conditions := range map[string]map[string]string{
		"pod-identity-trust.json": {"kubernetes-namespace": controller.Namespace, "kubernetes-service-account": account},
		"irsa-trust.json":         {":sub": "system:serviceaccount:" + controller.Namespace + ":" + account},
	} {
		var trust struct {
			Statement []struct {
				Condition struct{ StringEquals map[string]string }
			}
		}
		if err := json.Unmarshal(example(t, "iam", file), &trust); err != nil {
			t.Fatal(err)
		}
		for suffix, want := range conditions {
			got := ""
			for key, value := range trust.Statement[0].Condition.StringEquals {
				if strings.HasSuffix(key, suffix) {
					got = value
				}
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", file, suffix, got, want)
			}
		}
	}
}

func TestEksctlCreatesSameRole(t *testing.T) {
	account := into[appsv1.Deployment](t, objects(t, needed), "Deployment").Spec.Template.Spec.ServiceAccountName
	type association struct {
		Namespace          string     `json:"namespace"`
		ServiceAccountName string     `json:"serviceAccountName"`
		RoleName           string     `json:"roleName"`
		PermissionPolicy   aws.Policy `json:"permissionPolicy"`
	}
	var config struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name   string            `json:"name"`
			Region string            `json:"region"`
			Tags   map[string]string `json:"tags"`
		} `json:"metadata"`
		Karpenter struct {
			Version                   string `json:"version"`
			CreateServiceAccount      bool   `json:"createServiceAccount"`
			WithSpotInterruptionQueue bool   `json:"withSpotInterruptionQueue"`
		} `json:"karpenter"`
		ManagedNodeGroups []struct {
			Name            string `json:"name"`
			InstanceType    string `json:"instanceType"`
			MinSize         int    `json:"minSize"`
			MaxSize         int    `json:"maxSize"`
			DesiredCapacity int    `json:"desiredCapacity"`
		} `json:"managedNodeGroups"`
		Addons []struct {
			Name string `json:"name"`
		} `json:"addons"`
		IAM struct {
			WithOIDC                bool          `json:"withOIDC"`
			PodIdentityAssociations []association `json:"podIdentityAssociations"`
		} `json:"iam"`
	}
	if err := yaml.UnmarshalStrict(example(t, "eksctl", "cluster.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	want := []association{{controller.Namespace, account, "karve-" + config.Metadata.Name, readPolicy(t)}}
	if diff := cmp.Diff(want, config.IAM.PodIdentityAssociations); diff != "" {
		t.Error(diff)
	}
	if !config.IAM.WithOIDC || config.Karpenter.Version == "" || len(config.ManagedNodeGroups) == 0 {
		t.Error("Karpenter has no credentials, no version or no node to run on")
	}

	// The EC2NodeClass of the README.md finds what eksctl makes for Karpenter.
	class := nodeClassOfEksctl(t, config.Metadata.Name)
	tags := map[string]string{"karpenter.sh/discovery": config.Metadata.Name}
	for _, got := range []map[string]string{config.Metadata.Tags, class.Spec.SubnetSelectorTerms[0].Tags, class.Spec.SecurityGroupSelectorTerms[0].Tags} {
		if diff := cmp.Diff(tags, got); diff != "" {
			t.Errorf("tags (-want +got):\n%s", diff)
		}
	}
	if want := "eksctl-KarpenterNodeRole-" + config.Metadata.Name; class.Spec.Role != want {
		t.Errorf("the role of nodes is %s, want %s", class.Spec.Role, want)
	}
}

// nodeClassOfEksctl returns the EC2NodeClass that the commands in examples/eksctl/README.md apply.
func nodeClassOfEksctl(t *testing.T, name string) (class karpenteraws.EC2NodeClass) {
	t.Helper()
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(example(t, "eksctl", "README.md"))) {
		if command, _, found := strings.Cut(line, "| kubectl apply"); found && strings.HasPrefix(command, "sed ") {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", command) //nolint:gosec // The command is ours.
			cmd.Dir, cmd.Env = root, append(os.Environ(), "cluster="+name)
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(out, &class); err != nil {
				t.Fatal(err)
			}
			return class
		}
	}
	t.Fatal("no command changes the EC2NodeClass")
	return class
}

// TestTerraformIsValid parses the Terraform files and resolves all references between them.
func TestTerraformIsValid(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "examples", "terraform", "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	parser := hclparse.NewParser()
	declared, locals := map[string]bool{}, map[string]cty.Value{}
	var used []hcl.Traversal
	for _, file := range files {
		parsed, problems := parser.ParseHCLFile(file)
		if problems.HasErrors() {
			t.Fatal(problems)
		}
		if formatted := hclwrite.Format(parsed.Bytes); string(formatted) != string(parsed.Bytes) {
			t.Errorf("%s is not formatted: %s", filepath.Base(file), cmp.Diff(string(formatted), string(parsed.Bytes)))
		}
		body, ok := parsed.Body.(*hclsyntax.Body)
		if !ok {
			t.Fatalf("%T", parsed.Body)
		}
		for _, block := range body.Blocks {
			switch block.Type {
			case "resource":
				declared[strings.Join(block.Labels, ".")] = true
			case "variable":
				declared["var."+block.Labels[0]] = true
			case "locals":
				for name, attribute := range block.Body.Attributes {
					declared["local."+name] = true
					locals[name], _ = attribute.Expr.Value(nil)
				}
			}
		}
		_ = hclsyntax.VisitAll(body, func(node hclsyntax.Node) hcl.Diagnostics {
			if expression, ok := node.(*hclsyntax.ScopeTraversalExpr); ok {
				used = append(used, expression.Traversal)
			}
			return nil
		})
		for _, path := range regexp.MustCompile(`\$\{path\.module\}/([^"]+)`).FindAllStringSubmatch(string(parsed.Bytes), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), path[1])); err != nil {
				t.Error(err)
			}
		}
	}
	for _, traversal := range used {
		if len(traversal) < 2 || traversal.RootName() == "path" {
			continue
		}
		attribute, ok := traversal[1].(hcl.TraverseAttr)
		if name := traversal.RootName() + "." + attribute.Name; !ok || !declared[name] {
			t.Errorf("%s is not there", name)
		}
	}
	account := into[appsv1.Deployment](t, objects(t, needed), "Deployment").Spec.Template.Spec.ServiceAccountName
	if locals["namespace"] != cty.StringVal(controller.Namespace) || locals["service_account"] != cty.StringVal(account) {
		t.Errorf("the association is for %v, which is not the controller's", locals)
	}
}
