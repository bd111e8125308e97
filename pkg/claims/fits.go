package claims

import (
	"fmt"

	"karve.sh/karve/pkg/nodecontract"
	"karve.sh/karve/pkg/words"
)

// Fits returns why the devices of machines of a kind cannot satisfy the claims, or "" if they can.
func (a *Ask) Fits(d Devices) string {
	if why := a.whyOtherKind(d); why != "" {
		return why
	}
	if why := a.whyTooMuch(d); why != "" {
		return why
	}
	return a.whyNotSelected(d.Kind)
}

// whyOtherKind returns why the claims are not for devices of a kind, whatever their number and size, or "" if they may be.
func (a *Ask) whyOtherKind(d Devices) string {
	driver := driverNamed(d.Driver)
	switch {
	case a.DriverName() != driver.name:
		return fmt.Sprintf("the claim is for GPUs of the driver %s, and those of machines with %s are of the driver %s", a.DriverName(), d.model(), driver.name)
	case a.NamesReplicas && d.Whole:
		return fmt.Sprintf("the claim requests the capacity %s, which GPUs do not have that are not shared: remove it, or use a NodePool with strategy TimeSlicing", driver.replicas)
	case a.MPS && !d.Whole:
		return "the claim has a config with MPS, which the driver refuses for GPUs with shares: remove it, or use a NodePool with strategy None"
	case a.Distinct() > d.Count:
		return fmt.Sprintf("the claim asks for %s of a machine, and machines with %s have %d", words.Count(a.Distinct(), d.noun()), d.model(), d.Count)
	case a.ByIndex && d.Profile != "":
		return fmt.Sprintf("the claim has a constraint with %s/%s, and MIG instances have the index of their GPU: use %s/%s", nodecontract.DRADriver, nodecontract.DRAIndex, nodecontract.DRADriver, nodecontract.DRAUUID)
	case a.Mixes != "" && d.Count > 1:
		return fmt.Sprintf("container %s refers to several claims or requests, which can be on different %ss of a machine with %d: refer to one claim without naming a request, or allow machines with one %s",
			a.Mixes, d.noun(), d.Count, d.noun())
	}
	return ""
}

// whyTooMuch returns why the claims ask for more than devices have, or may have when the scheduler places them, or "" if they do not.
func (a *Ask) whyTooMuch(d Devices) string {
	switch total := a.Total(); {
	case total.MemoryBytes > 0 && d.MemoryMiB == 0:
		return fmt.Sprintf("Karve does not know how much device memory a %s of model %s will publish", d.noun(), d.model())
	case (total.GPUs > 1 || d.Count > 1) && a.exceeds(d.Replicas, d.MemoryMiB*bytesPerMiB): // The planner adds up what a machine has, and compares the memory of one GPU.
		return fmt.Sprintf("the claim asks for more of each %s than a %s of model %s has", d.noun(), d.noun(), d.model())
	case d.Count > 1 && a.Large(d.Replicas, d.MemoryMiB) && (total.GPUs == 1 || total.GPUs > d.Count):
		return fmt.Sprintf("the claim asks for more than half of a %s, and on a machine with %s the scheduler may give every %s to smaller pods first: allow machines with one %s",
			d.noun(), words.Count(d.Count, d.noun()), d.noun(), d.noun())
	}
	return ""
}
