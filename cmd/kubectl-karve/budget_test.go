package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"karve.sh/karve/pkg/quote"
)

// TestPlanWithoutSearchTimePlacesEveryPod checks that a plan without any search time still places every pod, though not necessarily at the lowest price.
func TestPlanWithoutSearchTimePlacesEveryPod(t *testing.T) {
	var out, errOut bytes.Buffer
	args := []string{"plan", "-f", "../../examples/two-pools", "-o", "json", "--budget", "1ns"}
	if status := run(t.Context(), args, streams{strings.NewReader(""), &out, &errOut}); status != 0 {
		t.Fatalf("status %d: %s", status, &errOut)
	}
	var q quote.Quote
	if err := json.Unmarshal(out.Bytes(), &q); err != nil {
		t.Fatal(err)
	}
	pods := 0
	for _, claim := range q.Claims {
		pods += len(claim.Pods)
	}
	if pods != 12 || len(q.Unplaced) > 0 || q.Price < 1_578_000 || q.Bound > 1_578_000 {
		t.Errorf("%d pods have a place for %d, at least %d; without a place: %v", pods, q.Price, q.Bound, q.Unplaced)
	}
}
