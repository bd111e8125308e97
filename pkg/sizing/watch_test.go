package sizing

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAWarningComesOnceWhileTheMemoryStaysShort(t *testing.T) {
	t.Parallel()
	const limit = 1000
	for _, c := range []struct {
		name string
		// used is the memory in use, a minute apart.
		used []int64
		// want are the minutes with a warning.
		want []int
	}{
		{name: "plenty", used: []int64{100, 850, 850, 850, 850, 850, 850, 850, 850}},
		{name: "short for five minutes", used: []int64{900, 900, 900, 900, 900, 900, 900, 900}, want: []int{5}},
		{name: "a burst", used: []int64{900, 900, 900, 900, 800, 900, 900, 900, 900, 800}},
		{name: "about at the threshold after a warning", used: []int64{900, 900, 900, 900, 900, 900, 800, 900, 900, 900, 900, 900, 900}, want: []int{5}},
		{name: "short once more", used: []int64{900, 900, 900, 900, 900, 900, 700, 900, 900, 900, 900, 900, 900}, want: []int{5, 12}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var w Watch
			var got []int
			for minute, used := range c.used {
				var warn bool
				if w, warn = w.Next(used, limit, time.Unix(0, 0).Add(time.Duration(minute)*time.Minute)); warn {
					got = append(got, minute)
				}
			}
			if len(got) != len(c.want) || len(got) > 0 && got[0] != c.want[0] || len(got) > 1 && got[1] != c.want[1] {
				t.Errorf("it warns in minutes %v, want %v", got, c.want)
			}
		})
	}
}

func TestTheLimitIsThatOfTheContainerOrOfTheRuntime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file, text string
		runtime          int64
		want             int64 // 0 if there is none
	}{
		{"cgroup v2", "memory.max", "536870912\n", math.MaxInt64, 512 << 20},
		{"cgroup v1", "memory/memory.limit_in_bytes", "268435456\n", math.MaxInt64, 256 << 20},
		{"cgroup v2 without a limit", "memory.max", "max\n", math.MaxInt64, 0},
		{"cgroup v1 without a limit", "memory/memory.limit_in_bytes", "9223372036854771712\n", math.MaxInt64, 0},
		{"only the runtime has one", "memory.max", "max\n", 100 << 20, 100 << 20},
		{"no control group", "other", "", 100 << 20, 100 << 20},
		{"the smaller one", "memory.max", "536870912\n", 100 << 20, 100 << 20},
		{"something else", "memory.max", "many\n", math.MaxInt64, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), c.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			root := file[:len(file)-len(c.file)]
			if got, ok := Limit(root, c.runtime); ok != (c.want > 0) || ok && got != c.want {
				t.Errorf("got %d, %t, want %d", got, ok, c.want)
			}
		})
	}
}
