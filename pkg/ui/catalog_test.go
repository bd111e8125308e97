package ui_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/ui"
)

func TestCatalogIsReadAgain(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	types, note, err := cloud.SameForAll{{Name: "built in"}}, "nothing is published", error(nil)
	reads := 0
	c, first := ui.NewCatalog(t.Context(), clk, func(context.Context) (cloud.Catalog, string, error) {
		reads++
		return types, note, err
	})
	if first != nil {
		t.Fatal(first)
	}
	wantTypes := func(when, name, note string, n int) {
		t.Helper()
		listing := c.InstanceTypes(t.Context(), &unstructured.Unstructured{})
		if listing.InstanceTypes[0].Name != name || c.Note() != note || reads != n {
			t.Errorf("%s: %s, %q after %d reads; want %s, %q after %d", when, listing.InstanceTypes[0].Name, c.Note(), reads, name, note, n)
		}
	}
	types, note = cloud.SameForAll([]catalog.InstanceType{{Name: "published"}}), ""
	clk.Step(19 * time.Second)
	wantTypes("after 19 seconds", "built in", "nothing is published", 1)
	clk.Step(time.Second)
	wantTypes("after 20 seconds", "published", "", 2)
	types = cloud.SameForAll([]catalog.InstanceType{{Name: "published later"}})
	clk.Step(4 * time.Minute)
	wantTypes("after four more minutes", "published", "", 2)
	clk.Step(time.Minute)
	wantTypes("after five", "published later", "", 3)
	err = errors.New("the API server is away")
	clk.Step(5 * time.Minute)
	wantTypes("when it cannot be read", "published later", "", 4)
	clk.Step(time.Minute)
	wantTypes("a minute later", "published later", "", 4)
}

func TestCatalogReportsFirstError(t *testing.T) {
	t.Parallel()
	want := errors.New("the API server is away")
	if _, err := ui.NewCatalog(t.Context(), clocktesting.NewFakeClock(time.Now()), func(context.Context) (cloud.Catalog, string, error) { return nil, "", want }); !errors.Is(err, want) {
		t.Errorf("the error is %v, want %v", err, want)
	}
}
