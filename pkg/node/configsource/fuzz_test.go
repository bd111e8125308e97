package configsource_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/node/configsource"
	"karve.sh/karve/pkg/node/gputest"
	"karve.sh/karve/pkg/node/sharing"
)

// FuzzChoose checks that any files, label and annotations yield an answer or a reason, always the same, and that a promise is kept if possible.
func FuzzChoose(f *testing.F) {
	const shared = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
	f.Add("/config.yaml", shared, true, "", "", "", "", "", "", false)
	f.Add("", "", false, "a", shared, "version: v1", "b", "a", "nvidia.com/gpu.shared", true)
	f.Add("/config.yaml", "", true, "default", "version: v2", "", "nowhere", "", "10", false)
	f.Add("/config.yaml", "version: v1\na: &a aaaa\nb: [*a, *a]", true, "a", "", "", "", "", "4", false)
	f.Add("/config.yaml", "[", false, "a", shared, shared, "", "b", "nvidia.com/gpu", true)
	f.Fuzz(func(t *testing.T, path, file string, readable bool, name, one, two, label, other, promise string, strict bool) {
		in := configsource.Inputs{Path: path, File: configsource.Document{Data: file}, Label: label, Default: other, Strict: strict, Resource: promise, Replicas: label}
		if !readable {
			in.File.Err = errors.New("unreadable")
		}
		if name != "" {
			in.Dir, in.Named = "/configs", map[string]configsource.Document{name: {Data: one}, "b": {Data: two}}
		}
		for _, replicas := range []string{label, "", "1", "10", "5000"} {
			in.Replicas = replicas
			a, err := configsource.Choose(in)
			again, errAgain := configsource.Choose(in)
			if (err == nil) != (errAgain == nil) || !cmp.Equal(a, again) {
				t.Fatalf("%+v: %+v, %v, and then %+v, %v", in, a, err, again, errAgain)
			}
			if err == nil && a.Source == "" {
				t.Fatalf("%+v: an answer without a source", in)
			}
			if a.Source == "" {
				continue // There is no configuration to continue with.
			}
			want, err := sharing.FromPromise(sharing.Promise{Resource: promise, Replicas: map[string]int{"1": 1, "10": 10, "5000": 5000}[replicas]})
			if err != nil {
				continue
			}
			promised, _ := want.Promise()
			if given, alike := a.Config.Promise(); !alike || !given.Equal(promised) {
				t.Fatalf("%+v: promised %v, and it is %v", in, promised, given)
			}
			// Flags may be rejected. The promise itself is never rejected.
			if rs, err := (sharing.Config{Sharing: a.Config.Sharing}).Resources(gputest.T4s(2)); err != nil || len(rs) != 1 || rs[0].Name != promised.Resource {
				t.Fatalf("%+v: %v, %v", in, rs, err)
			}
		}
	})
}
