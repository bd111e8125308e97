package mig

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
	profiles "karve.sh/karve/pkg/nodecontract/mig"
)

// state is the current state of a GPU.
type state struct {
	gpu.Device
	geometry    profiles.Geometry
	on, pending bool // The MIG mode now, and after the next reset.
	instances   []gpu.GPUInstance
	// wanted are the instances that the GPU is to have.
	wanted []nodecontract.MIGInstances
}

func (s *state) name() string { return fmt.Sprintf("GPU %d (%s)", s.Index, s.Product) }

// profiles returns the number of instances of each profile that the GPU has.
func (s *state) profiles() map[string]int64 {
	has := map[string]int64{}
	for _, p := range s.instances {
		has[p.Profile]++
	}
	return has
}

// divided reports whether the GPU is divided as wanted.
func (s *state) divided() bool {
	return s.on && nodecontract.SameInstances(s.wanted, s.profiles()) && !slices.ContainsFunc(s.instances, func(p gpu.GPUInstance) bool { return !p.Whole })
}

// places returns the placements of the wanted instances. It returns an error if the GPU cannot be divided that way, or if it has other instances.
func (s *state) places() ([]profiles.Placement, error) {
	if !s.MIGCapable {
		return nil, refusedError("%s cannot be divided into MIG instances", s.name())
	}
	wanted := nodecontract.DescribeInstances(s.wanted)
	places, err := s.geometry.Place(profiles.Profiles(s.wanted))
	if err != nil {
		return nil, refusedError("%s cannot have %s: %s", s.name(), wanted, err)
	}
	if foreign := s.foreign(); len(foreign) > 0 {
		return nil, refusedError("%s has MIG instances that nobody planned (%s), where %s were promised: remove them with `nvidia-smi mig -dci -i %d` and `nvidia-smi mig -dgi -i %d`, "+
			"and keep off the node what makes them; or replace the node", s.name(), strings.Join(foreign, ", "), wanted, s.Index, s.Index)
	}
	return places, nil
}

// foreign describes the instances that are not wanted. They are not those of an earlier attempt, which are removed and made again.
func (s *state) foreign() []string {
	wanted := map[string]int64{}
	for _, of := range s.wanted {
		wanted[of.Profile] = of.Count
	}
	var foreign, many []string
	has := s.profiles()
	for _, p := range s.instances {
		if wanted[p.Profile] == 0 {
			foreign = append(foreign, fmt.Sprintf("%s at memory slice %d", p.Profile, p.Start))
		}
	}
	for _, of := range s.wanted {
		if n := has[of.Profile]; n > of.Count {
			many = append(many, fmt.Sprintf("%d instances %s", n, of.Profile))
		}
	}
	return append(foreign, many...)
}

func allGPUs(gpus []*state, is func(*state) bool) bool {
	return !slices.ContainsFunc(gpus, func(s *state) bool { return !is(s) })
}
