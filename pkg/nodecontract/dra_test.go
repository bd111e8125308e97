package nodecontract_test

import (
	"testing"

	"karve.sh/karve/pkg/nodecontract"
)

func TestArchitectures(t *testing.T) {
	t.Parallel()
	for capability, want := range map[[2]int]string{
		{6, 1}: "pascal", {7, 0}: "volta", {7, 5}: "turing", {8, 0}: "ampere", {8, 6}: "ampere", {8, 9}: "ada-lovelace", {9, 0}: "hopper",
		{10, 0}: "blackwell", {12, 0}: "blackwell", {13, 0}: "rubin", {4, 2}: "undefined",
	} {
		if got := nodecontract.Architecture(capability[0], capability[1]); got != want {
			t.Errorf("%v is %s, want %s", capability, got, want)
		}
	}
}
