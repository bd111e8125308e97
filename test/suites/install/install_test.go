// Package install runs the commands of README.md, docs/install.md, docs/upgrading.md and the charts' READMEs as written. It uses a real API server, and images
// that `make image` pushes to a registry.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/registry"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv("ACT_AS") {
	case "aws":
		err = actAsAWS(os.Args[1:], os.Stdout)
	case "page":
		err = play(context.Background(), append([]string{filepath.Base(os.Args[0])}, os.Args[1:]...))
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Headings of parts that are run on their own.
const fromOldRelease, publishedRelease = "From a release", "A published release"

func TestInstallationWorksWithPodIdentity(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	w.forgetCRDs(t)
	all := without(installation(t, w.root), "IRSA")
	w.installs(t, all)
	calls := w.calls(t)
	association := calls["eks create-pod-identity-association"]
	d := w.deployment(t)
	if association["namespace"] != d.Namespace || association["service-account"] != d.Spec.Template.Spec.ServiceAccountName {
		t.Errorf("the role is given to %v, and the controller is %s/%s", association, d.Namespace, d.Spec.Template.Spec.ServiceAccountName)
	}
	if want := roleARN(calls["iam create-role"]); association["role-arn"] != want {
		t.Errorf("the association names the role %s, and the role that was created is %s", association["role-arn"], want)
	}
	if calls["service-quotas get-service-quota"] == nil || calls["ecr create-repository"]["repository-name"] != "karve/node" {
		t.Errorf("calls of aws: %v", calls)
	}
	w.upgradesFromOldReleases(t, all)
	w.uninstalls(t, all)
}

func TestInstallationWorksWithIRSA(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	w.forgetCRDs(t)
	all := without(installation(t, w.root), "Pod Identity")
	if n := strings.Count(script(without(all, "Upgrading")), "helm upgrade --install karve charts/karve "); n != 1 {
		t.Errorf("the chart is installed in %d steps", n)
	}
	w.installs(t, all)
	role := w.calls(t)["iam create-role"]
	var trust struct {
		Statement []struct {
			Principal struct{ Federated string }
			Condition struct{ StringEquals map[string]string }
		}
	}
	if err := json.Unmarshal([]byte(role["assume-role-policy-document"]), &trust); err != nil || len(trust.Statement) != 1 {
		t.Fatalf("%v: %v", err, role)
	}
	d := w.deployment(t)
	s := trust.Statement[0]
	want := map[string]string{provider + ":aud": "sts.amazonaws.com", provider + ":sub": "system:serviceaccount:" + d.Namespace + ":" + d.Spec.Template.Spec.ServiceAccountName}
	if diff := cmp.Diff(want, s.Condition.StringEquals); diff != "" || s.Principal.Federated != "arn:aws:iam::"+account+":oidc-provider/"+provider {
		t.Errorf("the role trusts %s (-want +got):\n%s", s.Principal.Federated, diff)
	}
	var accounts struct{ Items []corev1.ServiceAccount }
	w.get(t, &accounts, "serviceaccounts", "--namespace="+d.Namespace)
	i := slices.IndexFunc(accounts.Items, func(a corev1.ServiceAccount) bool { return a.Name == d.Spec.Template.Spec.ServiceAccountName })
	if i < 0 || accounts.Items[i].Annotations["eks.amazonaws.com/role-arn"] != roleARN(role) {
		t.Errorf("the role %s is not that of a service account: %v", roleARN(role), accounts.Items)
	}
	w.uninstalls(t, all)
}

// TestReadmeCommandsWork begins with CRDs that helm does not own, as helm leaves them from a chart's crds directory.
func TestReadmeCommandsWork(t *testing.T) {
	w := newWorld(t)
	crds := blocks(t, w.root, "charts/karve-crd/README.md")
	w.run(t, append(crds[len(crds)-1:], crds...))
	for _, file := range []string{"README.md", "charts/karve/README.md", "examples/README.md", "docs/packing-scheduler.md"} {
		w.run(t, blocks(t, w.root, file))
		w.imagesExist(t)
	}
}

func TestAgentReadmeCommandsWork(t *testing.T) {
	cluster.Long(t)
	w := newWorld(t)
	document := blocks(t, w.root, "docs/install.md")
	w.run(t, slices.Concat(document[:1], only(document, "1. The images"), blocks(t, w.root, "charts/karve/charts/karve-node/README.md")))
	w.imagesExist(t)
}

// TestBaseImagesAreSet runs tools/image with a fake go command that prints its environment.
func TestBaseImagesAreSet(t *testing.T) {
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\necho $KO_DEFAULTBASEIMAGE\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "image"))
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "REPOSITORY=registry.example.com/karve", "BASE_CONTROLLER=", "BASE_NODE=",
		"PLATFORMS=linux/"+runtime.GOARCH) // Other platforms need a C compiler of their own.
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bases := strings.Fields(string(out))
	for i, want := range []string{`^gcr\.io/distroless/static-debian\d+:nonroot$`, `^gcr\.io/distroless/base-debian\d+$`} {
		if len(bases) != 2 || !regexp.MustCompile(want).MatchString(bases[i]) {
			t.Fatalf("the images are built on %q", bases)
		}
	}
}

// installation returns the commands of docs/install.md and docs/upgrading.md, in this order.
func installation(t *testing.T, root string) []block {
	t.Helper()
	return append(without(blocks(t, root, "docs/install.md"), publishedRelease), blocks(t, root, "docs/upgrading.md")...)
}

// installs runs the documents except for the parts about upgrading from older releases and uninstalling.
func (w *world) installs(t *testing.T, all []block) {
	t.Helper()
	w.run(t, without(without(all, fromOldRelease), "Uninstall"))
	w.imagesExist(t)
}

// upgradesFromOldReleases runs the parts about older releases as a dry run of helm and the API server.
func (w *world) upgradesFromOldReleases(t *testing.T, all []block) {
	t.Helper()
	w.env = append(w.env, "DRY_RUN=1")
	defer func() { w.env = w.env[:len(w.env)-1] }()
	w.run(t, append(all[:1:1], only(all, fromOldRelease)...))
}

func (w *world) uninstalls(t *testing.T, all []block) {
	t.Helper()
	w.run(t, append(all[:1:1], only(all, "Uninstall")...))
	const kinds = "clusterroles,validatingadmissionpolicies,customresourcedefinitions,deployments,daemonsets,serviceaccounts"
	left := []byte("something")
	for began := time.Now(); len(left) > 0 && time.Since(began) < time.Minute; time.Sleep(200 * time.Millisecond) { // The API server deletes CRDs after their objects.
		left = w.kubectl(t, "get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm", "--output=name")
	}
	if len(left) > 0 {
		t.Errorf("left behind:\n%s", left)
	}
}

// imagesExist checks that each image of the charts' pods, and the image that checks GPUs, exists in its registry.
func (w *world) imagesExist(t *testing.T) {
	t.Helper()
	var version struct {
		ServerVersion struct{ GitVersion string }
	}
	w.decode(t, w.kubectl(t, "version", "--output=json"), &version)
	elsewhere := map[string]bool{"registry.k8s.io/kube-scheduler:" + version.ServerVersion.GitVersion: true}
	var workloads struct{ Items []appsv1.Deployment } // A DaemonSet has all fields that are read.
	w.get(t, &workloads, "deployments,daemonsets", "--all-namespaces", "--selector=app.kubernetes.io/managed-by=Helm")
	images := map[string]bool{}
	for _, d := range workloads.Items {
		for _, c := range append(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers...) {
			images[c.Image] = true
			for _, arg := range c.Args {
				if image, ok := strings.CutPrefix(arg, "--gpu-check-image="); ok {
					images[image] = true
				}
			}
		}
	}
	if len(images) == 0 {
		t.Error("the charts run nothing")
	}
	for image := range images {
		if !elsewhere[image] && !w.registry.Has(image) {
			t.Errorf("there is no image %s", image)
		}
	}
}

func (w *world) deployment(t *testing.T) appsv1.Deployment {
	t.Helper()
	var found struct{ Items []appsv1.Deployment }
	w.get(t, &found, "deployments", "--all-namespaces", "--selector=app.kubernetes.io/component=controller")
	if len(found.Items) != 1 {
		t.Fatalf("there are %d controllers", len(found.Items))
	}
	return found.Items[0]
}

func roleARN(role map[string]string) string {
	return "arn:aws:iam::" + account + ":role/" + role["role-name"]
}

// world is an API server without controllers and nodes, a registry, and the commands that the documents use.
type world struct {
	cluster  *cluster.Cluster
	registry *registry.Registry
	root     string
	env      []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	cluster.Require(t)
	root, err := cluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	helm, err := chart.Helm()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{cluster: cluster.ForTest(t, cluster.Config{}), registry: registry.New(t), root: root}
	base, own, testdata := w.registry.Base(t), t.TempDir(), filepath.Join(root, "test", "suites", "install", "testdata")
	w.env = append(os.Environ(),
		"PATH="+filepath.Join(testdata, "bin")+":"+os.Getenv("PATH"), "KUBECONFIG="+w.cluster.Kubeconfig(), "KUBECTL="+w.cluster.Kubectl(), "HELM="+helm,
		"TEST_BINARY="+self, "AWS_CALLS="+filepath.Join(own, "calls"), "DOCKER_CONFIG="+own, "KUBECACHEDIR="+own, "HELM_CONFIG_HOME="+own, "HELM_DATA_HOME="+own, "HELM_CACHE_HOME="+own,
		"BASE_CONTROLLER="+base, "BASE_NODE="+base, "PLATFORMS=linux/"+runtime.GOARCH, "KO_GO_PATH="+filepath.Join(testdata, "go"))
	return w
}

// forgetCRDs removes Karve's CRDs, which test clusters have from the start.
func (w *world) forgetCRDs(t *testing.T) {
	t.Helper()
	w.kubectl(t, "delete", "crd", "gpunodeclasses.karve.sh", "gpuimagerollouts.karve.sh")
}

// script returns a shell script of the blocks in their order.
func script(all []block) string {
	var b strings.Builder
	b.WriteString("set -euo pipefail\ntrap 'echo \"$block: $BASH_COMMAND\" >&2' ERR\n")
	for _, block := range all {
		fmt.Fprintf(&b, "block=%s:%d\n%s", block.file, block.line, block.text)
	}
	return b.String()
}

// run runs the blocks in one shell, with the test's registry instead of the example's.
func (w *world) run(t *testing.T, all []block) {
	t.Helper()
	text := strings.ReplaceAll(script(all), "registry.example.com", w.registry.Host)
	cmd := exec.CommandContext(t.Context(), "bash", "-c", text)
	cmd.Dir, cmd.Env = w.root, w.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// calls returns the parameters of the last call of each AWS action.
func (w *world) calls(t *testing.T) map[string]map[string]string {
	t.Helper()
	i := slices.IndexFunc(w.env, func(v string) bool { return strings.HasPrefix(v, "AWS_CALLS=") })
	text, err := os.ReadFile(strings.TrimPrefix(w.env[i], "AWS_CALLS="))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]string{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var c call
		if err := decoder.Decode(&c); err == io.EOF {
			return maps.Clone(found)
		} else if err != nil {
			t.Fatal(err)
		}
		found[c.Action] = c.Flags
	}
}

func (w *world) kubectl(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), w.cluster.Kubectl(), args...)
	cmd.Env = w.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, stderr.Bytes())
	}
	return out
}

func (w *world) get(t *testing.T, into any, args ...string) {
	t.Helper()
	w.decode(t, w.kubectl(t, append([]string{"get", "--output=json"}, args...)...), into)
}

func (w *world) decode(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}
