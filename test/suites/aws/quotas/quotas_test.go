package quotas_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/quotas"
	fakeaws "karve.sh/karve/test/harness/aws"
)

func TestQuotasAreThoseOfTheAccount(t *testing.T) {
	t.Parallel()
	server, err := fakeaws.Start(t.Context(), fakeaws.Config{})
	if err != nil {
		t.Fatal(err)
	}
	loads := 0
	t.Cleanup(server.Stop)
	source := &quotas.Source{Load: api.Once(func(context.Context) (*api.Clients, error) {
		loads++
		return api.New(fakeaws.ClientConfig(server.URL)), nil
	})}
	server.SetQuota("L-DB2E81BA", 0)
	server.SetQuota("L-3819A6DF", 64)
	for range 2 {
		got, err := source.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := []catalog.Quota{
			{Group: "G and VT", CapacityType: "on-demand", Code: "L-DB2E81BA"},
			{Group: "G and VT", CapacityType: "spot", Code: "L-3819A6DF", VCPUs: 64},
			{Group: "P", CapacityType: "on-demand", Code: "L-417A185B", VCPUs: 768},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	if loads != 1 {
		t.Errorf("the clients were made %d times", loads)
	}
	server.Deny("GetServiceQuota")
	if _, err := source.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "allow servicequotas:GetServiceQuota in the IAM policy") {
		t.Errorf("a call that is denied: %v", err)
	}
}
