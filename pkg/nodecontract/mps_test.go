package nodecontract_test

import (
	"testing"

	"karve.sh/karve/pkg/nodecontract"
)

func TestMPSThatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	for _, want := range []nodecontract.MPS{
		{}, nodecontract.DefaultMPS, {MemoryOvercommitPercent: 150, ActiveThreadPercent: 40, Users: nodecontract.MPSUsersSingle},
	} {
		if got, err := nodecontract.ParseMPS(want.String()); err != nil || got != want {
			t.Errorf("%q: %+v, %v", want.String(), got, err)
		}
	}
	if got, err := nodecontract.ParseMPS("{}"); err != nil || got != nodecontract.DefaultMPS {
		t.Errorf("{} is %+v, %v, want the default", got, err)
	}
	for _, bad := range []string{
		"x", "[]", `{"memoryOvercommitPercent":99}`, `{"memoryOvercommitPercent":401}`, `{"activeThreadPercent":101}`, `{"activeThreadPercent":-1}`,
		`{"users":"Some"}`, `{"user":"Any"}`,
	} {
		if got, err := nodecontract.ParseMPS(bad); err == nil || got != (nodecontract.MPS{}) {
			t.Errorf("%s is %+v", bad, got)
		}
	}
}

func TestReplicasDivideMemoryAndThreads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mps             nodecontract.MPS
		gpu, replicas   int64
		memory, threads int64
	}{
		{nodecontract.DefaultMPS, 15360, 10, 1536, 10},
		{nodecontract.DefaultMPS, 15360, 48, 320, 2},
		{nodecontract.DefaultMPS, 15360, 7, 2194, 14},
		{nodecontract.MPS{MemoryOvercommitPercent: 200, ActiveThreadPercent: 100}, 15360, 10, 3072, 100},
		{nodecontract.MPS{MemoryOvercommitPercent: 400}, 15360, 2, 15360, 50}, // Never more than the GPU has.
		{nodecontract.DefaultMPS, 0, 10, 0, 10},
	} {
		if memory, threads := c.mps.MemoryMiB(c.gpu, c.replicas), c.mps.Threads(c.replicas); memory != c.memory || threads != c.threads {
			t.Errorf("%+v: %d MiB and %d percent", c, memory, threads)
		}
	}
}

func TestThreadsArePercentages(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "1": 1, "25": 25, "100": 100} {
		if got, err := nodecontract.ParseThreads(text); got != want || err != nil {
			t.Errorf("%q is %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"0", "101", "-5", "25%", "2.5", "many", "99999999999999999999"} {
		if got, err := nodecontract.ParseThreads(bad); err == nil {
			t.Errorf("%q is %d", bad, got)
		}
	}
}
