package nodecontract_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/nodecontract"
)

const holders = `{"asOf":"2026-03-01T12:00:00Z","gpus":[{"uuid":"GPU-a","index":0,"product":"Tesla T4","memMiB":15360,"replicas":10,"health":"InService","held":3,` +
	`"holders":[{"pod":"team/infer-0","container":"main","ids":[0,4]},{"pod":"team/notebook-0","container":"main","ids":[7]}]}]}`

func report() nodecontract.HoldersReport {
	return nodecontract.HoldersReport{AsOf: noon, GPUs: []nodecontract.HeldGPU{{
		UUID: "GPU-a", Product: "Tesla T4", MemoryMiB: 15360, Replicas: 10, Health: nodecontract.GPUInService, Held: 3,
		Holders: []nodecontract.GPUHolder{{Pod: "team/infer-0", Container: "main", IDs: []int{0, 4}}, {Pod: "team/notebook-0", Container: "main", IDs: []int{7}}},
	}}}
}

func TestHoldersThatAreWrittenAreRead(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(holders, report().String()); diff != "" {
		t.Error(diff)
	}
	back, ok, err := nodecontract.ParseHolders(holders)
	if diff := cmp.Diff(report(), back); diff != "" || !ok || err != nil {
		t.Error(diff, ok, err)
	}
	if _, ok, err := nodecontract.ParseHolders(""); ok || err != nil {
		t.Errorf("an empty one is there: %t, %v", ok, err)
	}
	for _, bad := range []string{"x", "[]", "{}", `{"asOf":"noon"}`, `{"asOf":"2026-03-01T12:00:00Z","gpus":[{"replicas":-1}]}`, `{"asOf":"2026-03-01T12:00:00Z"`} {
		if r, ok, err := nodecontract.ParseHolders(bad); ok || err == nil || len(r.GPUs) > 0 {
			t.Errorf("%s was read as %v", bad, r)
		}
	}
}

func TestHoldersOfInstancesAreRead(t *testing.T) {
	t.Parallel()
	const text = `{"asOf":"2026-03-01T12:00:00Z","gpus":[{"uuid":"MIG-a","index":1,"instance":0,"profile":"3g.20gb","product":"A100","memMiB":19968,"replicas":1,"health":"InService",` +
		`"held":0},{"uuid":"GPU-b","index":2,"product":"A100","memMiB":40960,"replicas":1,"health":"InService","held":0}]}`
	r := nodecontract.HoldersReport{AsOf: noon, GPUs: []nodecontract.HeldGPU{
		{UUID: "MIG-a", Index: 1, Instance: new(0), Profile: "3g.20gb", Product: "A100", MemoryMiB: 19968, Replicas: 1, Health: nodecontract.GPUInService},
		{UUID: "GPU-b", Index: 2, Product: "A100", MemoryMiB: 40960, Replicas: 1, Health: nodecontract.GPUInService},
	}}
	if diff := cmp.Diff(text, r.String()); diff != "" {
		t.Error(diff)
	}
	back, ok, err := nodecontract.ParseHolders(text)
	if diff := cmp.Diff(r, back); diff != "" || !ok || err != nil {
		t.Error(diff, ok, err)
	}
	if a, b := back.GPUs[0].Name(), back.GPUs[1].Name(); a != "1:0" || b != "2" {
		t.Errorf("they are named %s and %s", a, b)
	}
	if r, ok, err := nodecontract.ParseHolders(strings.Replace(text, `"instance":0`, `"instance":-1`, 1)); ok || err == nil {
		t.Errorf("a negative instance was read as %v", r)
	}
}

func TestAReportThatIsTooLongHasNumbersOnly(t *testing.T) {
	t.Parallel()
	r := nodecontract.HoldersReport{AsOf: noon}
	for i := range 8 {
		g := nodecontract.HeldGPU{UUID: fmt.Sprintf("GPU-%036d", i), Index: i, Product: "NVIDIA A10G", MemoryMiB: 23028, Replicas: 48, Held: 48}
		for n := range 48 {
			g.Holders = append(g.Holders, nodecontract.GPUHolder{Pod: fmt.Sprintf("a-namespace-of-a-team/deployment-5d8f9b7c6-%05d", 48*i+n), Container: "inference", IDs: []int{n}})
		}
		r.GPUs = append(r.GPUs, g)
	}
	text := r.String()
	back, ok, err := nodecontract.ParseHolders(text)
	if len(text) > nodecontract.MaxHolders || !ok || err != nil || !back.Truncated || len(back.GPUs) != 8 || back.GPUs[7].Held != 48 || back.GPUs[7].Holders != nil {
		t.Errorf("%d bytes: %.300s", len(text), text)
	}
	if len(r.GPUs[0].Holders) != 48 {
		t.Error("writing a report has changed it")
	}
	r.GPUs = r.GPUs[:4]
	if back, _, _ := nodecontract.ParseHolders(r.String()); back.Truncated || len(back.GPUs[3].Holders) != 48 {
		t.Errorf("192 pods do not fit: %v", back)
	}
}

func TestOnlyWhenTheAgentLookedDoesNotCountAsAChange(t *testing.T) {
	t.Parallel()
	later, other := report(), report()
	later.AsOf = noon.Add(time.Hour)
	other.GPUs[0].Holders[1].IDs = []int{8}
	if !report().SameHolders(later) || report().SameHolders(other) {
		t.Error("a change is a later look, or none is another replica")
	}
}

func TestAReportOfHoldersAges(t *testing.T) {
	t.Parallel()
	for after, want := range map[time.Duration]bool{
		0: true, nodecontract.HoldersFresh: true, nodecontract.HoldersFresh + 1: false, -nodecontract.HoldersFresh: true, -nodecontract.HoldersFresh - 1: false,
	} {
		if got := report().FreshAt(noon.Add(after)); got != want {
			t.Errorf("after %s: %t", after, got)
		}
	}
}

func FuzzParseHolders(f *testing.F) {
	f.Add(holders)
	f.Add("")
	f.Add(`{"asOf":"2026-03-01T12:00:00Z","gpus":[{"index":1,"product":"\u001b[31mred"},{"uuid":"\u0007"}],"truncated":true}`)
	f.Fuzz(func(t *testing.T, annotation string) {
		r, ok, err := nodecontract.ParseHolders(annotation)
		if !ok || err != nil {
			return
		}
		if !slices.IsSortedFunc(r.GPUs, func(a, b nodecontract.HeldGPU) int { return a.Index - b.Index }) {
			t.Errorf("%q is not sorted: %v", annotation, r)
		}
		for _, g := range r.GPUs {
			texts := []string{g.UUID, g.Product, string(g.Health)}
			for _, h := range g.Holders {
				texts = append(texts, h.Pod, h.Container)
			}
			if strings.ContainsFunc(strings.Join(texts, ""), unicode.IsControl) {
				t.Errorf("%q is not fit to print: %q", annotation, texts)
			}
		}
		if text := r.String(); text != "" {
			again, ok, err := nodecontract.ParseHolders(text)
			if !ok || err != nil || again.String() != text {
				t.Errorf("%q became %q and then %q, %v", annotation, text, again, err)
			}
		}
	})
}
