package workload

import (
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
)

// TracePod is a pod of the openb trace that shares a GPU.
type TracePod struct {
	MilliCPU, MiB int64
	// MilliGPU is the requested share of a GPU in thousandths.
	MilliGPU int64
	// Created and Deleted are in seconds since the start of the trace.
	Created, Deleted int64
}

// Openb reads the 3,078 pods of the openb trace (Weng et al., USENIX ATC 2023) that share GPUs, in the order of the trace. The columns are pod, cpu_milli,
// memory_mib, num_gpu, gpu_milli, gpu_spec33, qos, pod_phase, creation_time, deletion_time and others.
func Openb(path string) (pods []TracePod, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	records, err := csv.NewReader(z).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	for i, r := range records[1:] {
		var amounts [5]int64
		for k, column := range []int{1, 2, 4, 8, 9} {
			if amounts[k], err = strconv.ParseInt(r[column], 10, 64); err != nil {
				return nil, fmt.Errorf("reading %s: line %d: %w", path, i+2, err)
			}
		}
		pods = append(pods, TracePod{amounts[0], amounts[1], amounts[2], amounts[3], amounts[4]})
	}
	return pods, nil
}

// Mapping defines how thousandths of a GPU become requests for shared GPUs.
type Mapping string

const (
	// Memory requests one replica, and the same share of a T4's 16 GiB.
	Memory Mapping = "mem"
	// Slots requests a number of replicas of one GPU with twenty replicas.
	Slots Mapping = "slots"
	// Count requests one replica, whatever the share.
	Count Mapping = "count"
)

// Shaped merges identical pods of a trace.
func Shaped(pods []TracePod, m Mapping) []Pods {
	out, _ := ShapesOf(pods, m)
	return out
}

// ShapesOf is Shaped, and also returns the index of each pod's shape.
func ShapesOf(pods []TracePod, m Mapping) (out []Pods, of []int) {
	shapes := map[shape]int{}
	for _, p := range pods {
		shapes[p.shape(m)]++
	}
	var keys []shape
	for k := range shapes {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b shape) int {
		return cmp.Or(cmp.Compare(a.milliCPU, b.milliCPU), cmp.Compare(a.mib, b.mib), cmp.Compare(a.replicas, b.replicas), cmp.Compare(a.gpuMiB, b.gpuMiB))
	})
	at := map[shape]int{}
	for i, k := range keys {
		at[k] = i
		out = append(out, Pods{Name: fmt.Sprintf("s%02d", i), Count: shapes[k], MilliCPU: k.milliCPU, MiB: k.mib, Replicas: k.replicas, GPUMiB: k.gpuMiB})
	}
	for _, p := range pods {
		of = append(of, at[p.shape(m)])
	}
	return out, of
}

// InSlots rounds the device memory of pods up to slots of sizes in MiB, which ascend and suffice for all pods. It returns the types with as many replicas of a GPU as
// the smallest slots fit.
func InSlots(pods []Pods, types []Type, sizesMiB []int64) ([]Pods, []Type) {
	pods, types = slices.Clone(pods), slices.Clone(types)
	for i := range pods {
		at, _ := slices.BinarySearch(sizesMiB, pods[i].GPUMiB)
		pods[i].GPUMiB = sizesMiB[at]
	}
	for i := range types {
		types[i].Replicas = types[i].GPUMiB / sizesMiB[0]
	}
	return pods, types
}

func (p TracePod) shape(m Mapping) shape {
	k := shape{p.MilliCPU, p.MiB, 1, 0}
	switch m {
	case Memory:
		k.gpuMiB = (p.MilliGPU*16384 + 999) / 1000
	case Slots:
		k.replicas = (p.MilliGPU + 49) / 50
		k.gpuMiB = k.replicas // a small amount, so that all replicas are on one GPU
	case Count:
	}
	return k
}

type shape struct{ milliCPU, mib, replicas, gpuMiB int64 }
