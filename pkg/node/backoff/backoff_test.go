package backoff

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPausesDoubleUntilTheLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		b    Backoff
		want []time.Duration
	}{
		"of most loops": {Backoff{}, []time.Duration{200 * time.Millisecond, 400 * time.Millisecond, 800 * time.Millisecond}},
		"up to five":    {Backoff{First: time.Second, Last: 5 * time.Second}, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second}},
	} {
		var got []time.Duration
		for range c.want {
			got = append(got, c.b.Next())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if c.b.Reset(); c.b.Next() != c.want[0] {
			t.Errorf("%s: the pause after a reset is not the first one", name)
		}
	}
}
