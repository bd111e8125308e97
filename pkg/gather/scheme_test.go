package gather

import (
	"testing"
)

func TestSchemeIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			if _, err := Scheme(); err != nil {
				t.Error(err)
			}
		})
	}
}
