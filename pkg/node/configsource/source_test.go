package configsource_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"karve.sh/karve/pkg/node/configsource"
	"karve.sh/karve/pkg/node/nodeapi"
	"karve.sh/karve/pkg/node/sharing"
	"karve.sh/karve/pkg/nodecontract"
)

// clk is the system's clock, or the clock of the test's bubble.
var clk = clock.RealClock{}

func slices(n int) string {
	return fmt.Sprintf("flags: {migStrategy: none, plugin: {passDeviceSpecs: true}}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: %d}]}}", n)
}

func text(s string) configsource.Document { return configsource.Document{Data: s} }

func TestChoose(t *testing.T) {
	t.Parallel()
	type in = configsource.Inputs
	named := map[string]configsource.Document{"default": text("version: v1"), "shared_gpu": text(slices(10))}
	for name, c := range map[string]struct {
		in       in
		replicas int
		resource string
		source   string
		message  string // "" for none
		err      string
	}{
		"nothing":                              {in{}, 1, "nvidia.com/gpu", "nothing", "", ""},
		"a file":                               {in{Path: "/f", File: text(slices(4))}, 4, "nvidia.com/gpu", "the file /f", "", ""},
		"the label selects":                    {in{Dir: "/d", Named: named, Label: "shared_gpu"}, 10, "nvidia.com/gpu", `"shared_gpu" of /d`, "", ""},
		"no label, the default":                {in{Dir: "/d", Named: named}, 1, "nvidia.com/gpu", `"default" of /d`, "", ""},
		"no label, a named default":            {in{Dir: "/d", Named: named, Default: "shared_gpu"}, 10, "nvidia.com/gpu", `"shared_gpu" of /d`, "", ""},
		"no label, a single configuration":     {in{Dir: "/d", Named: map[string]configsource.Document{"x": text(slices(3))}}, 3, "nvidia.com/gpu", `"x" of /d`, "", ""},
		"no label, no default":                 {in{Dir: "/d", Named: map[string]configsource.Document{"x": text(slices(3)), "y": text(slices(4))}}, 1, "nvidia.com/gpu", "nothing", "", ""},
		"label before file":                    {in{Path: "/f", File: text(slices(4)), Dir: "/d", Named: named, Label: "shared_gpu"}, 10, "nvidia.com/gpu", `"shared_gpu" of /d`, "the node's label nvidia.com/device-plugin.config names it", ""},
		"no label, then the file":              {in{Path: "/f", File: text(slices(4)), Dir: "/d", Named: named}, 4, "nvidia.com/gpu", "the file /f", "", ""},
		"a label without a folder":             {in{Path: "/f", File: text(slices(4)), Label: "x"}, 4, "nvidia.com/gpu", "the file /f", "has no effect", ""},
		"a label with an unknown name":         {in{Dir: "/d", Named: named, Label: "x"}, 0, "", "", "", `names "x", which is not in /d; there is default, shared_gpu`},
		"a default with an unknown name":       {in{Dir: "/d", Named: named, Default: "x"}, 0, "", "", "", `the default configuration is "x"`},
		"no folder":                            {in{Dir: "/d", DirErr: errors.New("gone")}, 0, "", "", "", "gone"},
		"an empty file":                        {in{Path: "/f", File: text(" \n")}, 0, "", "", "", "is empty"},
		"an invalid file":                      {in{Path: "/f", File: text("version: v9")}, 0, "", "", "", "v9"},
		"an unknown key":                       {in{Path: "/f", File: text("foo: 1")}, 1, "nvidia.com/gpu", "the file /f", "foo: unknown key", ""},
		"an unknown key, strict":               {in{Path: "/f", File: text("foo: 1"), Strict: true}, 0, "", "", "", "foo: unknown key"},
		"a promise without a file":             {in{Resource: "nvidia.com/gpu.shared", Replicas: "8"}, 8, "nvidia.com/gpu.shared", "the Node's annotations", "", ""},
		"a promise that matches the file":      {in{Path: "/f", File: text(slices(4)), Resource: "nvidia.com/gpu", Replicas: "4"}, 4, "nvidia.com/gpu", "the file /f", "", ""},
		"a promise that differs from the file": {in{Path: "/f", File: text(slices(4)), Resource: "nvidia.com/gpu.shared", Replicas: "8"}, 8, "nvidia.com/gpu.shared", "annotations, and the flags of file /f", "the promise counts, because the machine was chosen for it", ""},
		"a promise of a whole GPU":             {in{Path: "/f", File: text(slices(4)), Resource: "nvidia.com/gpu", Replicas: "1"}, 1, "nvidia.com/gpu", "annotations", "the promise counts", ""},
		"a promise that is not a number":       {in{Resource: "nvidia.com/gpu", Replicas: "many"}, 0, "", "", "", "must be a number"},
		"an incomplete promise":                {in{Resource: "nvidia.com/gpu"}, 0, "", "", "", "must be a number"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, err := configsource.Choose(c.in)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q in it", err, c.err)
				}
				return
			}
			p, ok := a.Config.Promise()
			if err != nil || !ok || !p.Equal(sharing.Promise{Resource: c.resource, Replicas: c.replicas}) || !strings.Contains(a.Source, c.source) {
				t.Errorf("got %v from %s, %v", p, a.Source, err)
			}
			if all := strings.Join(a.Messages, "\n"); !strings.Contains(all, c.message) || c.message == "" && all != "" {
				t.Errorf("said %q", all)
			}
			if c.in.Path != "" && strings.Contains(a.Source, "/f") && strings.Contains(c.in.File.Data, "passDeviceSpecs") {
				if s, err := a.Config.Settings(); err != nil || !s.PassDeviceSpecs {
					t.Errorf("the file's flags are lost: %v, %v", s, err)
				}
			}
		})
	}
}

// migOf is the value of the annotation.
func migOf(count int, naming string) string {
	return fmt.Sprintf(`{"profile":"1g.5gb","count":%d,"naming":%q}`, count, naming)
}

func TestPromiseOfInstancesCountsUnlessTheirManagerIsThere(t *testing.T) {
	t.Parallel()
	of := func(naming string) nodecontract.MIG {
		return nodecontract.MIG{Profile: "1g.5gb", Count: 7, Naming: naming}
	}
	const file = "flags: {migStrategy: single, plugin: {passDeviceSpecs: true}}"
	for name, c := range map[string]struct {
		in     configsource.Inputs
		want   sharing.Promise
		naming string
		err    string
		other  bool // whether NVIDIA's manager divides the GPUs
	}{
		"mixed":           {configsource.Inputs{Resource: "nvidia.com/mig-1g.5gb", Replicas: "7", MIG: migOf(7, "Mixed")}, sharing.Promise{Resource: "nvidia.com/mig-1g.5gb", Replicas: 7, MIG: of("Mixed")}, "mixed", "", false},
		"single":          {configsource.Inputs{Resource: "nvidia.com/gpu.shared", Replicas: "14", MIG: migOf(7, "Single")}, sharing.Promise{Resource: "nvidia.com/gpu.shared", Replicas: 14, MIG: of("Single")}, "single", "", false},
		"before a file":   {configsource.Inputs{Resource: "nvidia.com/mig-1g.5gb", Replicas: "7", MIG: migOf(7, "Mixed"), Path: "/f", File: text(file)}, sharing.Promise{Resource: "nvidia.com/mig-1g.5gb", Replicas: 7, MIG: of("Mixed")}, "mixed", "", false},
		"with a manager":  {configsource.Inputs{Resource: "nvidia.com/mig-1g.5gb", Replicas: "7", MIG: migOf(7, "Mixed"), MIGConfig: "all-1g.5gb"}, sharing.Promise{}, "", "the Node's label nvidia.com/mig.config=all-1g.5gb tells NVIDIA's MIG manager", true},
		"only a manager":  {configsource.Inputs{MIGConfig: "all-1g.5gb", Path: "/f", File: text(file)}, sharing.Promise{Resource: "nvidia.com/gpu", Replicas: 1}, "single", "", false},
		"no number":       {configsource.Inputs{Resource: "nvidia.com/mig-1g.5gb", Replicas: "7", MIG: "seven"}, sharing.Promise{}, "", "reading karve.sh/mig", false},
		"uneven replicas": {configsource.Inputs{Resource: "nvidia.com/mig-1g.5gb", Replicas: "8", MIG: migOf(7, "Mixed")}, sharing.Promise{}, "", "8 replicas on 7 MIG instances", false},
	} {
		a, err := configsource.Choose(c.in)
		if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) || errors.Is(err, configsource.ErrManagedElsewhere) != c.other {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		s, err := a.Config.Settings()
		if p, ok := a.Config.Promise(); !ok || !p.Equal(c.want) || err != nil || s.MIGStrategy != c.naming {
			t.Errorf("%s: promises %v, %t, with %s: %v", name, p, ok, s.MIGStrategy, err)
		}
	}
}

// node delivers metadata that the test sends.
type node chan nodeapi.Metadata

func (n node) Watch(ctx context.Context, f func(nodeapi.Metadata)) {
	for {
		select {
		case m := <-n:
			f(m)
		case <-ctx.Done():
			return
		}
	}
}

func run(t *testing.T, s configsource.Source) func(what string, match func(configsource.Update) bool) {
	t.Helper()
	updates := make(chan configsource.Update, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx, nil, func(u configsource.Update) { updates <- u }) }()
	t.Cleanup(func() { cancel(); <-done })
	return func(what string, match func(configsource.Update) bool) {
		t.Helper()
		select {
		case u := <-updates:
			if !match(u) {
				t.Fatalf("want %s, got %v from %s, %v", what, u.Answer.Config.Sharing.TimeSlicing, u.Answer.Source, u.Err)
			}
		case <-clk.After(8 * time.Second):
			t.Fatalf("no %s", what)
		}
	}
}

func gives(n int) (string, func(configsource.Update) bool) {
	return fmt.Sprint(n, " replicas"), func(u configsource.Update) bool {
		p, ok := u.Answer.Config.Promise()
		return u.Err == nil && ok && p.Replicas == n
	}
}

func fails(words string) (string, func(configsource.Update) bool) {
	return words, func(u configsource.Update) bool { return u.Err != nil && strings.Contains(u.Err.Error(), words) }
}

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFileIsReloadedOnChange(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	write(t, path, slices(4))
	next := run(t, configsource.Source{File: path})
	next(gives(4))
	write(t, path, slices(6))
	next(gives(6))
	write(t, path, "sharing: [")
	next(fails("not YAML"))
	write(t, path, slices(6)) // The return to the old configuration is reported, so that the complaint can be withdrawn.
	next(gives(6))
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	next(fails("no such file"))
}

// mount updates a volume as the kubelet does: the files are links through ..data, which it replaces.
func mount(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	folder := filepath.Join(dir, ".."+version)
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range files {
		write(t, filepath.Join(folder, name), data)
		_ = os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name))
	}
	if err := os.Symlink(".."+version, filepath.Join(dir, "..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func TestConfigMapIsReloadedWhenKubeletUpdatesIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mount(t, dir, "1", map[string]string{"a": slices(2), "b": slices(3)})
	labels := make(node)
	next := run(t, configsource.Source{Dir: dir, Node: labels})
	labels <- nodeapi.Metadata{Labels: map[string]string{nodecontract.ConfigLabel: "a"}}
	next(gives(2))
	mount(t, dir, "2", map[string]string{"a": slices(5), "b": slices(7)})
	next(gives(5))
	labels <- nodeapi.Metadata{Labels: map[string]string{nodecontract.ConfigLabel: "b", "other": "changed"}}
	next(gives(7))
	labels <- nodeapi.Metadata{Labels: map[string]string{nodecontract.ConfigLabel: "b", "other": "again"}} // This change does not concern the configuration.
	labels <- nodeapi.Metadata{Labels: map[string]string{nodecontract.ConfigLabel: "c"}}
	next(fails(`names "c"`))
}

func TestPromiseNeedsNoFile(t *testing.T) {
	t.Parallel()
	promise := func(n string) nodeapi.Metadata {
		return nodeapi.Metadata{Annotations: map[string]string{nodecontract.ResourceAnnotation: "nvidia.com/gpu.shared", nodecontract.ReplicasPerGPUAnnotation: n}}
	}
	meta := make(node)
	path := filepath.Join(t.TempDir(), "config.yaml")
	next := run(t, configsource.Source{File: path, Node: meta})
	meta <- promise("8")
	next(gives(8))
	write(t, path, slices(4))
	next(gives(8)) // The flags now come from the file.
	write(t, path, "[")
	next(fails("not YAML"))
	meta <- promise("9")
	next(fails("not YAML")) // The last configuration is kept as a whole.
}
