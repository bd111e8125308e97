package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws"
)

const (
	committed        = "../../instance-types.json"
	committedBuiltin = "../../../../../pkg/catalog/builtin/instance-types.json"
)

func TestCommittedFilesMatchGenerator(t *testing.T) {
	source, err := os.ReadFile("../../../../../../shared/data/ec2-gpu-instance-types.json")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("the EC2 instance types are not beside the repository")
	}
	if err != nil {
		t.Fatal(err)
	}
	for path, generate := range map[string]func([]byte) ([]byte, error){committed: generate, committedBuiltin: generateBuiltin} {
		want, err := generate(source)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the generator makes; run `go -C test run ./harness/cluster/cmd/gen-instance-types`", path)
		}
	}
}

func TestKarveReadsCommittedFile(t *testing.T) {
	file, err := os.Open(committed)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	types, err := catalog.ReadKWOK(file, aws.GPULabels)
	if err != nil {
		t.Fatal(err)
	}
	if want := 7 + len(cpuTypes); len(types) != want {
		t.Errorf("%d types, want %d", len(types), want)
	}
}

func TestOnlyGPUTypesHaveGPULabelsAndSpotIsCheaper(t *testing.T) {
	content, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	var types []instanceType
	if err := json.Unmarshal(content, &types); err != nil {
		t.Fatal(err)
	}
	if want := 7 + len(cpuTypes); len(types) != want {
		t.Errorf("%d types, want %d", len(types), want)
	}
	for _, it := range types {
		_, gpu := it.Resources["nvidia.com/gpu"]
		if len(it.Offerings) != 2*len(zones) {
			t.Errorf("%s has %d offerings, want %d", it.Name, len(it.Offerings), 2*len(zones))
		}
		for i, o := range it.Offerings {
			labels := 0
			for _, r := range o.Requirements {
				if strings.HasPrefix(r.Key, "karpenter.k8s.aws/instance-gpu-") {
					labels++
				}
			}
			if want := map[bool]int{true: 4}[gpu]; labels != want {
				t.Errorf("%s has %d labels of GPUs, want %d", it.Name, labels, want)
			}
			if i%2 == 1 && (o.Price < it.Offerings[i-1].Price*0.29 || o.Price > it.Offerings[i-1].Price*0.41) {
				t.Errorf("%s costs %v on spot and %v on demand", it.Name, o.Price, it.Offerings[i-1].Price)
			}
		}
	}
}
