package mig

import (
	"fmt"
	"slices"
	"strings"

	"karve.sh/karve/pkg/node/gpu"
	"karve.sh/karve/pkg/nodecontract"
)

// Check returns an error if the GPUs of a machine do not have exactly the promised instances.
func Check(devices []gpu.Device, wanted nodecontract.MIG) error {
	assigned, err := wanted.Assign(len(devices), func(i int) map[string]int64 { return profilesOf(&devices[i]) })
	if err != nil {
		return err
	}
	for i := range devices {
		if err := checkInstances(&devices[i], assigned[i]); err != nil {
			return err
		}
	}
	return nil
}

func profilesOf(d *gpu.Device) map[string]int64 {
	has := map[string]int64{}
	for _, p := range d.Instances {
		has[p.Profile]++
	}
	return has
}

func checkInstances(d *gpu.Device, wanted []nodecontract.MIGInstances) error {
	has := profilesOf(d)
	if nodecontract.SameInstances(wanted, has) {
		return nil
	}
	var list, seen []string
	for _, p := range d.Instances {
		if !slices.Contains(seen, p.Profile) {
			seen = append(seen, p.Profile)
			list = append(list, fmt.Sprintf("%d instances %s", has[p.Profile], p.Profile))
		}
	}
	what := "is not divided"
	switch {
	case len(list) > 0:
		what = "has " + strings.Join(list, ", ")
	case d.MIG:
		what = "has no MIG instances, or this container was started before they were made"
	}
	return fmt.Errorf("GPU %d (%s) %s, and %s were promised", d.Index, d.Product, what, nodecontract.DescribeInstances(wanted))
}
