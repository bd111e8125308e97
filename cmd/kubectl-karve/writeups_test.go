package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// domain matches that of the labels of a write-up, for which the recipes have example.com.
var domain = regexp.MustCompile(`[a-z.]+/node-type`)

// TestPrintedManifestsOfOthers plans for manifests as write-ups of other setups print them, which the recipes of docs/migrate start from.
func TestPrintedManifestsOfOthers(t *testing.T) {
	t.Parallel()
	const folder = "../../../shared/seeds"
	if _, err := os.Stat(folder); err != nil {
		t.Skip(err)
	}
	const (
		pools = "../../docs/migrate/two-pools/before/nodepool-gpu.yaml,../../docs/migrate/two-pools/before/nodeclass.yaml"
		once  = "  ttlSecondsAfterEmpty: 300\n"
	)
	for name, c := range map[string]struct {
		// file, after, from and to say where the manifest is: in this file after these words, from and to these.
		file, after, from, to string
		// indent is taken from the beginning of each line, and drop from the text.
		indent, drop string
		with, want   string
		fails        bool
	}{
		"a Provisioner with a key twice": {file: "002", after: "yaml_body", from: "  apiVersion", to: "ttlSecondsAfterEmpty: 30\n", indent: "  ", fails: true, want: `key "ttlSecondsAfterEmpty" already set`},
		"a Provisioner": {
			file: "002", after: "yaml_body", from: "  apiVersion", to: "ttlSecondsAfterEmpty: 30\n", indent: "  ", drop: once, fails: true,
			want: "write it as NodePool (karpenter.sh/v1); spec.labels is spec.template.metadata.labels",
		},
		"a pod with the label of a Provisioner": {
			file: "002", after: "\ngpu.yml", from: "kind:", to: "nvidia.com/gpu: 1", with: pools, want: "karpenter.sh/nodepool", fails: false,
		},
		"a NodePool in v1beta1": {
			file: "001", from: "apiVersion: karpenter.sh/v1beta1", to: "WhenUnderutilized", fails: true,
			want: "write it as karpenter.sh/v1; spec.disruption.expireAfter is spec.template.spec.expireAfter",
		},
		"an EC2NodeClass in v1beta1, without its user data": {
			file: "001", after: "Note:", from: "apiVersion: karpenter.k8s.aws/v1beta1", to: "GPU-Node", fails: true,
			want: "write it as karpenter.k8s.aws/v1",
		},
		"a ConfigMap of NVIDIA's plugin": {file: "001", from: "apiVersion: v1 \nkind: ConfigMap", to: "replicas: 3", want: "ignored, because plans do not depend on them: 1 ConfigMap"},
		"a StatefulSet in apps/v1beta1":  {file: "003", from: "apiVersion: apps/v1beta1", to: "gpu-mem: 3", fails: true, want: "write it as apps/v1"},
		"a StatefulSet for slots of device memory": {
			file: "003", from: "kind: StatefulSet", to: "gpu-mem: 3", with: "../../docs/migrate/gpushare/after", want: "1 × g4dn.xlarge",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files, err := filepath.Glob(filepath.Join(folder, c.file+"_*"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			text, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			manifest := strings.ReplaceAll(string(text), "\u00a0", " ")
			manifest = manifest[strings.Index(manifest, c.after):]
			manifest = manifest[strings.Index(manifest, c.from):]
			manifest = manifest[:strings.Index(manifest, c.to)+len(c.to)]
			manifest = strings.ReplaceAll("\n"+manifest, "\n"+c.indent, "\n")
			manifest = domain.ReplaceAllString(strings.Replace(manifest, c.drop, "", 1), "example.com/node-type")
			if !strings.Contains(manifest, "apiVersion") {
				manifest = "apiVersion: apps/v1\n" + manifest
			}
			arguments := []string{"plan", "-f", "-"}
			if c.with != "" {
				arguments = append(arguments, "-f", c.with)
			}
			var out, errOut bytes.Buffer
			status := run(t.Context(), arguments, streams{strings.NewReader(manifest), &out, &errOut})
			if failed := status != 0; failed != c.fails || !strings.Contains(out.String()+errOut.String(), c.want) {
				t.Errorf("status %d, want %q in\n%s%s\nfor\n%s", status, c.want, &errOut, &out, manifest)
			}
		})
	}
}
