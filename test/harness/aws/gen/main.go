// Command gen writes data/instance-types.json.gz: the responses of DescribeInstanceTypes and DescribeInstanceTypeOfferings in us-east-1. It reads them
// from a checkout of getmoto/moto, which contains captures of both:
//
//	go -C test run ./harness/aws/gen -moto ../../moto
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

const region = "us-east-1"

func main() {
	moto := flag.String("moto", "", "checkout of getmoto/moto")
	out := flag.String("out", "harness/aws/data/instance-types.json.gz", "file to write")
	flag.Parse()
	if err := write(*moto, *out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(moto, out string) error {
	var types map[string]map[string]any
	if err := read(filepath.Join(moto, "moto/ec2/resources/instance_types.json"), &types); err != nil {
		return err
	}
	var offerings []struct{ InstanceType, Location string }
	if err := read(filepath.Join(moto, "moto/ec2/resources/instance_type_offerings/availability-zone", region+".json"), &offerings); err != nil {
		return err
	}
	zones := map[string]string{}
	for _, o := range offerings {
		zones[o.InstanceType] += strings.TrimPrefix(o.Location, region)
	}

	// One type per line, sorted by name, so that the same input gives the same file.
	var lines bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(types)) {
		info := types[name]
		if zones[name] == "" && nvidia(info) {
			zones[name] = "a" // so that every type with an NVIDIA GPU can be launched; only p5e is not in the region
		}
		if zones[name] == "" {
			continue // the capture has the types of all regions
		}
		if cpus, ok := info["VCpuInfo"].(map[string]any); ok {
			delete(cpus, "ValidCores")
			delete(cpus, "ValidThreadsPerCore")
		}
		letters := strings.Split(zones[name], "")
		slices.Sort(letters)
		line, err := json.Marshal(struct {
			Zones string
			Info  map[string]any
		}{strings.Join(letters, ""), info})
		if err != nil {
			return err
		}
		if err := known(name, info); err != nil {
			return err
		}
		lines.Write(append(line, '\n'))
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(lines.Bytes()); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, packed.Bytes(), 0o600)
}

func nvidia(info map[string]any) bool {
	raw, err := json.Marshal(info["GpuInfo"])
	return err == nil && bytes.Contains(raw, []byte(`"NVIDIA"`))
}

// known returns an error if the capture has a field that the SDK does not have. The server could not return it.
func known(name string, info map[string]any) error {
	raw, err := json.Marshal(info)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&ec2types.InstanceTypeInfo{}); err != nil {
		return fmt.Errorf("what the capture says of %s is not what the SDK knows of types: %w", name, err)
	}
	return nil
}

func read(path string, into any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}
