package groups

import "testing"

func TestJobsThatArePlannedWholeNeverGiveUp(t *testing.T) {
	t.Parallel()
	whole, err := Run(Whole, 3, 120, 6)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := Run(Parts, 3, 120, 6)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("groups: %+v", whole)
	t.Logf("no groups: %+v", parts)
	if whole.GaveUp > 0 || whole.Starved > 0 {
		t.Errorf("%d jobs gave up, %d starved", whole.GaveUp, whole.Starved)
	}
	if parts.GaveUp == 0 || parts.IdleUSD <= whole.IdleUSD {
		t.Errorf("without groups, %d jobs gave up, and waiting cost $%.2f; with groups it cost $%.2f", parts.GaveUp, parts.IdleUSD, whole.IdleUSD)
	}
}
