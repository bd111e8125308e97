package migparted_test

import (
	"encoding/json"
	"strings"
	"testing"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/manifests/migparted"
)

const file = `
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-enabled: [{devices: all, mig-enabled: true, mig-devices: {}}]
  all-1g.5gb: [{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 7}}]
  all-3x1g.5gb_2x2g.10gb: [{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 3, "2g.10gb": 2}}]
  all-1g.10gb:
  - {device-filter: ["0x233010DE", "0x20B210DE"], devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}
  - {device-filter: "0x20B010DE", devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 4}}
  halves:
  - {devices: [0, 1, 2, 3], mig-enabled: true, mig-devices: {"1g.5gb": 7}}
  - {devices: [5, 4, 6, 7], mig-enabled: true, mig-devices: {"3g.20gb": 2}}
  some-whole:
  - {devices: [0, 1], mig-enabled: false}
  - {devices: [2], mig-enabled: true, mig-devices: {"1g.5gb": 7}}
  a-gap: [{devices: [0, 2], mig-enabled: true, mig-devices: {"1g.5gb": 7}}]
  twice:
  - {devices: [0, 1], mig-enabled: true, mig-devices: {"1g.5gb": 7}}
  - {devices: [1], mig-enabled: true, mig-devices: {"2g.10gb": 3}}
  all-twice:
  - {devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 7}}
  - {devices: all, mig-enabled: true, mig-devices: {"2g.10gb": 3}}
  too-many: [{devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 4, "2g.10gb": 2}}]
  nobodys: [{devices: all, mig-enabled: true, mig-devices: {"1g.7gb": 7}}]
  compute: [{devices: all, mig-enabled: true, mig-devices: {"1c.2g.10gb": 2}}]
  filtered: [{device-filter: "0x000010DE", devices: all, mig-enabled: true, mig-devices: {"1g.5gb": 7}}]
`

func TestConfigurationsAreLayouts(t *testing.T) {
	t.Parallel()
	configs, err := migparted.Read([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	inConfigMap, err := migparted.Read([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mig-parted-config}\ndata:\n  config.yaml: |\n    " + strings.ReplaceAll(file, "\n", "\n    ")))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, gpu, want string }{
		{"all-1g.5gb", "", `[{"gpuName":"a100","gpuMemoryMiB":40960,"profile":"1g.5gb"}]`},
		{"all-3x1g.5gb_2x2g.10gb", "", `[{"gpuName":"a100","gpuMemoryMiB":40960,"instances":[{"profile":"1g.5gb","count":3},{"profile":"2g.10gb","count":2}]}]`},
		{
			"all-1g.10gb", "",
			`[{"gpuName":"a100","gpuMemoryMiB":40960,"profile":"1g.10gb"},{"gpuName":"a100","gpuMemoryMiB":81920,"profile":"1g.10gb"},{"gpuName":"h100","gpuMemoryMiB":81920,"profile":"1g.10gb"}]`,
		},
		{"all-1g.10gb", "h100", `[{"gpuName":"h100","gpuMemoryMiB":81920,"profile":"1g.10gb"}]`},
		{"halves", "", `[{"gpuName":"a100","gpuMemoryMiB":40960,"groups":[{"gpus":4,"instances":[{"profile":"1g.5gb","count":7}]},{"gpus":4,"instances":[{"profile":"3g.20gb","count":2}]}]}]`},
		{"all-disabled", "", "it divides no GPU: use strategy None"},
		{"all-enabled", "", "it divides no GPU"},
		{"some-whole", "", "GPUs [0 1] are not divided, and all GPUs of a node are with strategy MIG"},
		{"a-gap", "", "it does not divide GPU 1"},
		{"twice", "", "several items for GPU 1"},
		{"all-twice", "", "several items for the same GPUs"},
		{"too-many", "", "4 MIG instances 1g.5gb and 2 of 2g.10gb do not fit on a GPU a100"},
		{"nobodys", "", "profiles or a device-filter of no GPU that is known here"},
		{"compute", "", "profiles or a device-filter of no GPU"},
		{"filtered", "", "profiles or a device-filter of no GPU"},
		{"all-1g.5gb", "t4", `has nothing for GPUs "t4": known are a100, `},
		{"none", "", `there is no configuration "none"; there is a-gap, all-1g.10gb,`},
	} {
		for where, configs := range map[string]migparted.Configs{"file": configs, "ConfigMap": inConfigMap} {
			layouts, err := configs.Layouts(c.name, c.gpu)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s in a %s: %v, want %q", c.name, where, err, c.want)
				}
				continue
			}
			got, err := json.Marshal(layouts)
			if err != nil || string(got) != c.want {
				t.Errorf("%s in a %s: %s, want %s", c.name, where, got, c.want)
			}
			if err := (v1alpha1.Sharing{Strategy: v1alpha1.StrategyMIG, MIG: &v1alpha1.MIGSharing{Layouts: layouts}}).LayoutsError(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                          "this is no configuration of mig-parted",
		"version: v2":               `version is "v2" and not v1`,
		"version: v1\nmig-configs:": "there are no mig-configs",
		"kind: ConfigMap\ndata: {}": "the ConfigMap has no config.yaml",
		"version: v1\nmig-configs: {a: [{devices: some}]}":                          "devices is \"some\", and can be all or a list of indices",
		"version: v1\nmig-configs: {a: [{devices: []}]}":                            "devices is neither all nor a list of indices",
		"version: v1\nmig-configs: {a: [{devices: all, mig-devices: {1g.5gb: x}}]}": "reading a configuration of mig-parted",
		"version: v1\nmore: 1": "unknown field",
	} {
		if c, err := migparted.Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v, want %q", text, c, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(file))
	f.Fuzz(func(t *testing.T, data []byte) {
		configs, err := migparted.Read(data)
		if err != nil {
			return
		}
		for _, name := range configs.Names() {
			layouts, err := configs.Layouts(name, "")
			if err == nil && len(layouts) == 0 {
				t.Errorf("%s has no layouts and no error", name)
			}
		}
	})
}
