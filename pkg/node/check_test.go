package node

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/node/gputest"
)

func TestCheckQueriesEveryGPU(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		library func() gpu.Library
		out     []string
		err     string
	}{
		"all GPUs answer": {func() gpu.Library { return gputest.New(gputest.T4s(2)...) }, []string{gputest.T4s(2)[0].UUID, gputest.T4s(2)[1].UUID, "MiB free"}, ""},
		"no GPU":          {func() gpu.Library { return gputest.New() }, nil, "there is no GPU"},
		"a lost GPU": {func() gpu.Library {
			f := gputest.New(gputest.T4s(2)...)
			f.Lose(gputest.T4s(2)[1].UUID)
			return f
		}, nil, gputest.T4s(2)[1].UUID},
		"no driver": {func() gpu.Library {
			f := gputest.New(gputest.T4s(1)...)
			f.Break(gputest.DriverMissing)
			return f
		}, nil, "opening NVIDIA's driver"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			err := Check(c.library(), &out)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("the error is %v, want %q", err, c.err)
			}
			for _, part := range c.out {
				if !strings.Contains(out.String(), part) {
					t.Errorf("it says %q, want %q", out.String(), part)
				}
			}
		})
	}
}
