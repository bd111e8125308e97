package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract/mig"
)

// The methods of this file divide GPUs. They are for administrators.

// handleOf returns the handle of a GPU and its memory in bytes.
func (l *Library) handleOf(doing, uuid string) (nvml.Device, uint64, error) {
	k, err := l.lookup(doing, uuid)
	if err != nil {
		return nil, 0, err
	}
	m, code := k.handle.GetMemoryInfo()
	return k.handle, m.Total, callError(code, "%s %s", doing, uuid)
}

// profileInfo is a profile of a GPU's GPU instances.
type profileInfo struct {
	name string
	info nvml.GpuInstanceProfileInfo
}

// profiles returns the profiles of a GPU's GPU instances.
func profiles(handle nvml.Device, memory uint64) ([]profileInfo, error) {
	var all []profileInfo
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, code := handle.GetGpuInstanceProfileInfo(number)
		if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.ERROR_INVALID_ARGUMENT || code == nvml.SUCCESS && info.InstanceCount == 0 {
			continue
		}
		if err := callError(code, "reading MIG profile %d", number); err != nil {
			return nil, err
		}
		all = append(all, profileInfo{name: profileName(number, info, memory), info: info})
	}
	return all, nil
}

// attributes are the suffixes of profile names with other engines, by NVML's profile number.
var attributes = map[int]string{
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me", nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx", nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx", nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me", nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all", nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}

// profileName returns the name of a profile in nvidia-smi's format, for example "1g.5gb+me". The driver reports names only since version 510. The rule
// for the memory is that of NVIDIA's go-nvlib: eighths of the GPU, rounded up, times its memory in GB.
func profileName(number int, info nvml.GpuInstanceProfileInfo, memory uint64) string {
	const eighths, gib = 8, 1 << 30
	part := math.Ceil(float64(info.MemorySizeMB<<20)/float64(memory)*eighths) / eighths
	gb := math.Round(part * float64((memory+gib-1)/gib))
	return fmt.Sprintf("%dg.%.0fgb%s", info.SliceCount, gb, attributes[number])
}

// Geometry returns the profiles of a GPU, and where their instances can be placed.
func (l *Library) Geometry(uuid string) (mig.Geometry, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, memory, err := l.handleOf("reading the MIG profiles of", uuid)
	if err != nil {
		return mig.Geometry{}, err
	}
	all, err := profiles(handle, memory)
	if err != nil {
		return mig.Geometry{}, fmt.Errorf("%s: %w", uuid, err)
	}
	var g mig.Geometry
	for _, p := range all {
		places, code := handle.GetGpuInstancePossiblePlacements(&p.info)
		if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.SUCCESS && len(places) == 0 {
			continue
		}
		if err := callError(code, "reading where instances %s of %s can be", p.name, uuid); err != nil {
			return mig.Geometry{}, err
		}
		kind := mig.Kind{Profile: p.name, Slices: int(p.info.SliceCount), Size: int(places[0].Size), Most: int(p.info.InstanceCount)}
		for _, place := range places {
			kind.Starts = append(kind.Starts, int(place.Start))
		}
		g.Kinds, g.Slices = append(g.Kinds, kind), max(g.Slices, kind.Slices)
	}
	return g, nil
}

// MIGMode returns whether MIG is on for a GPU, and whether it will be after the next reset.
func (l *Library) MIGMode(uuid string) (now, pending bool, err error) {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, _, err := l.handleOf("reading the MIG mode of", uuid)
	if err != nil {
		return false, false, err
	}
	current, next, code := handle.GetMigMode()
	return current == nvml.DEVICE_MIG_ENABLE, next == nvml.DEVICE_MIG_ENABLE, callError(code, "reading the MIG mode of %s", uuid)
}

// EnableMIG turns the MIG mode of a GPU on. The error is gpu.ErrInUse while a process has the GPU open, and gpu.ErrResetRequired if the mode changes
// with the next reset of the GPU.
func (l *Library) EnableMIG(uuid string) error {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, _, err := l.handleOf("turning MIG on for", uuid)
	if err != nil {
		return err
	}
	activation, code := handle.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	if code == nvml.SUCCESS {
		code = activation
	}
	return callError(code, "turning MIG on for %s", uuid)
}

// GPUInstances returns the GPU instances of a GPU.
func (l *Library) GPUInstances(uuid string) ([]gpu.GPUInstance, error) {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, memory, err := l.handleOf("reading the MIG instances of", uuid)
	if err != nil {
		return nil, err
	}
	var all []gpu.GPUInstance
	err = eachInstance(handle, memory, func(p profileInfo, instance nvml.GpuInstance, info nvml.GpuInstanceInfo) error {
		computes, whole, err := computesOf(instance, p.info)
		all = append(all, gpu.GPUInstance{
			ID: int(info.Id), Profile: p.name, Start: int(info.Placement.Start), Size: int(info.Placement.Size), Whole: whole && len(computes) == 1,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", uuid, err)
	}
	return all, nil
}

// eachInstance calls f for each GPU instance of a GPU.
func eachInstance(handle nvml.Device, memory uint64, f func(profileInfo, nvml.GpuInstance, nvml.GpuInstanceInfo) error) error {
	all, err := profiles(handle, memory)
	if err != nil {
		return err
	}
	for _, p := range all {
		instances, code := handle.GetGpuInstances(&p.info)
		if code == nvml.ERROR_NOT_SUPPORTED {
			continue
		}
		if err := callError(code, "listing the MIG instances %s", p.name); err != nil {
			return err
		}
		for _, instance := range instances {
			info, code := instance.GetInfo()
			if err := callError(code, "reading a MIG instance %s", p.name); err != nil {
				return err
			}
			if err := f(p, instance, info); err != nil {
				return err
			}
		}
	}
	return nil
}

// computeProfiles calls f for each profile of compute instances of a GPU instance.
func computeProfiles(instance nvml.GpuInstance, f func(nvml.ComputeInstanceProfileInfo) error) error {
	for number := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, code := instance.GetComputeInstanceProfileInfo(number, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if code == nvml.ERROR_NOT_SUPPORTED || code == nvml.ERROR_INVALID_ARGUMENT || code == nvml.SUCCESS && info.InstanceCount == 0 {
			continue
		}
		if err := callError(code, "reading compute profile %d", number); err != nil {
			return err
		}
		if err := f(info); err != nil {
			return err
		}
	}
	return nil
}

// computesOf returns the compute instances of a GPU instance. whole reports whether one of them has all its compute slices.
func computesOf(instance nvml.GpuInstance, of nvml.GpuInstanceProfileInfo) (all []nvml.ComputeInstance, whole bool, err error) {
	err = computeProfiles(instance, func(info nvml.ComputeInstanceProfileInfo) error {
		computes, code := instance.GetComputeInstances(&info)
		if code == nvml.ERROR_NOT_SUPPORTED {
			return nil
		}
		whole = whole || len(computes) > 0 && info.SliceCount == of.SliceCount
		all = append(all, computes...)
		return callError(code, "listing the compute instances of a MIG instance")
	})
	return all, whole, err
}

// Create creates an instance with one compute instance, which has all of its compute.
func (l *Library) Create(uuid string, at mig.Placement) error {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, memory, err := l.handleOf("dividing", uuid)
	if err != nil {
		return err
	}
	all, err := profiles(handle, memory)
	if err != nil {
		return fmt.Errorf("%s: %w", uuid, err)
	}
	for _, p := range all {
		if p.name == at.Profile {
			return createInstance(uuid, handle, p, at)
		}
	}
	return fmt.Errorf("%s has no MIG profile %s", uuid, at.Profile)
}

// createInstance creates a GPU instance with one compute instance, which has all of its compute. If that fails, it leaves nothing behind.
func createInstance(uuid string, handle nvml.Device, p profileInfo, at mig.Placement) error {
	instance, code := handle.CreateGpuInstanceWithPlacement(&p.info, &nvml.GpuInstancePlacement{Start: uint32(at.Start), Size: uint32(at.Size)})
	if err := callError(code, "creating an instance %s at memory slice %d of %s", at.Profile, at.Start, uuid); err != nil {
		return err
	}
	made := false
	err := computeProfiles(instance, func(info nvml.ComputeInstanceProfileInfo) error {
		if made || info.SliceCount != p.info.SliceCount {
			return nil
		}
		made = true
		_, code := instance.CreateComputeInstance(&info)
		return callError(code, "creating the compute instance of an instance %s at memory slice %d of %s", at.Profile, at.Start, uuid)
	})
	if err == nil && !made {
		err = fmt.Errorf("%s has no compute profile for all of an instance %s", uuid, at.Profile)
	}
	if err != nil {
		_ = instance.Destroy() // The error of the compute instance is more specific.
	}
	return err
}

// Destroy removes an instance. The error is gpu.ErrInUse while a process uses it.
func (l *Library) Destroy(uuid string, id int) error {
	l.open.RLock()
	defer l.open.RUnlock()
	handle, memory, err := l.handleOf("removing instances of", uuid)
	if err != nil {
		return err
	}
	return eachInstance(handle, memory, func(p profileInfo, instance nvml.GpuInstance, info nvml.GpuInstanceInfo) error {
		if int(info.Id) != id {
			return nil
		}
		computes, _, err := computesOf(instance, p.info)
		if err != nil {
			return err
		}
		for _, compute := range computes {
			if err := callError(compute.Destroy(), "removing a compute instance of %s", uuid); err != nil {
				return err
			}
		}
		return callError(instance.Destroy(), "removing the instance %s at memory slice %d of %s", p.name, info.Placement.Start, uuid)
	})
}
