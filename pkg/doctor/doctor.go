// Package doctor checks an installation of Karve: versions, CRDs, rights, settings, pools, agents and pods. Each check is a function of [Facts], which
// hold the data that was read. It has no client and no clock.
package doctor

import (
	"cmp"
	"slices"
)

var checks = []func(*Facts) []Finding{
	unread, rightsLacking, controllerStopped, controllerMissing, controllerNotReady, kubernetesOld, karpenterMissing, karpenterUntested, cliSkew, agentSkew, crdsMissing, crdsDiffer, rightsDenied,
	settingsDiffer, pricesUnused, nodeRepair, claimsPlanned, reservationsOff, reservationsNotFound, reservationsUnused, classNotReady, catalogStale, quotasExceeded, quotasNear, poolNotReady, poolStopped, poolsUnhealthy, objectsSetAside, memoryWrong, limitsNear, resourceQuotasNear,
	agentMissing, agentStoodBack, gpusFaulty, gpuCordonInvalid, accessUnrestricted, devicesNamed, metricsUnread, resourceUnserved,
}

// Check returns all findings, the most severe first.
func Check(f *Facts) []Finding {
	var all []Finding
	for _, check := range checks {
		all = append(all, check(f)...)
	}
	order := []Severity{Error, Warning, Unknown}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return all
}
