package snapshot_test

// decision is what Karve does with a field.
type decision struct {
	// path is the path of the field. [] stands for a list item and {} for a map value. An enum value follows =.
	path string
	// says is the text in docs/nodepool.md. It is "" for fields of a GPUNodeClass, which its CRD documents.
	says string
	// by is the test that shows that the field is honored, as package and name. It is "" for a field that is reported, which `reported` has under its path.
	by string
}

const (
	ofClaim        = "pkg/render.TestClaimHasEveryTemplateField"
	ofRequirements = "pkg/snapshot.TestOfferingsMeetPoolRequirements"
	ofBudgets      = "pkg/fleet/disruption.TestBudgetsApplyByReasonAndSchedule"
	ofGivingBack   = "pkg/snapshot.TestNodePoolAndClassDecideConsolidation"
)

// nodePoolFields are the decisions on all fields of a NodePool's spec.
var nodePoolFields = []decision{
	{"spec.disruption.budgets[].duration", "honored", ofBudgets},
	{"spec.disruption.budgets[].nodes", "honored", ofBudgets},
	{"spec.disruption.budgets[].reasons[]=Drifted", "honored", ofBudgets},
	{"spec.disruption.budgets[].reasons[]=Empty", "honored", ofBudgets},
	{"spec.disruption.budgets[].reasons[]=Underutilized", "honored", ofBudgets},
	{"spec.disruption.budgets[].reasons[]=Unhealthy", "honored", ofBudgets},
	{"spec.disruption.budgets[].schedule", "an invalid one allows no disruption: `InvalidBudget`", ofBudgets},
	{"spec.disruption.consolidateAfter", "of this and `idleAfter` of the GPUNodeClass, the [longer one](disruption.md#nodepool-and-gpunodeclass) applies", ofGivingBack},
	{"spec.disruption.consolidationPolicy=Balanced", "is `WhenEmptyOrUnderutilized`: `UnsupportedConsolidationPolicy`. Use `restartCost` of the GPUNodeClass", ""},
	{"spec.disruption.consolidationPolicy=WhenEmpty", "honored", "pkg/fleet/disruption.TestConsolidationPolicyDecidesWhetherPodsMove"},
	{"spec.disruption.consolidationPolicy=WhenEmptyOrUnderutilized", "honored", ofGivingBack},
	{"spec.limits{}", "for `cpu`, `memory`, `nodes`, `nvidia.com/gpu` (physical GPUs) and `nvidia.com/gpu.shared` (replicas). With any other resource the pool launches nothing: `UnsupportedLimit`", "pkg/snapshot.TestLimitsCountHardware"},
	{"spec.replicas", "the pool launches nothing: `StaticPool`. Use a NodePool of the cloud's node class", ""},
	{"spec.template.metadata.annotations{}", "keys that Karve writes have no effect: `ReservedKey`", ofClaim},
	{"spec.template.metadata.labels{}", "keys that Karve writes have no effect: `ReservedKey`", ofClaim},
	{"spec.template.spec.expireAfter", "honored", ofClaim},
	{"spec.template.spec.nodeClassRef.group", "Karve ignores pools with another value than `karve.sh` and `GPUNodeClass`", "pkg/snapshot.TestPodThatOnlyStockKarpenterServesIsIgnored"},
	{"spec.template.spec.nodeClassRef.kind", "Karve ignores pools with another value than `karve.sh` and `GPUNodeClass`", "pkg/snapshot.TestPodThatOnlyStockKarpenterServesIsIgnored"},
	{"spec.template.spec.nodeClassRef.name", "honored", "pkg/snapshot.TestPoolOffersTypesOfItsOwnNodeClass"},
	{"spec.template.spec.requirements[].key", "if no node is sure to have [a label that others write](scheduling.md#labels-that-others-write), the pool launches nothing: `NodeLabelsDiffer`. If nothing sets the label, Karve chooses one of the values of `In`", "pkg/snapshot.TestCustomRequirementWithSeveralValuesBecomesLabelChoice"},
	{"spec.template.spec.requirements[].minValues", "for labels of instance types. For any other label the pool launches nothing: `UnsupportedMinValues`", "pkg/render.TestClaimListsAlternativesForMinValues"},
	{"spec.template.spec.requirements[].operator=DoesNotExist", "honored", ofRequirements},
	{"spec.template.spec.requirements[].operator=Exists", "for labels that the cloud sets. For any other label Karve cannot choose a value: `LabelNotChosen`. Use `In`", ofRequirements},
	{"spec.template.spec.requirements[].operator=Gt", "for labels that the cloud sets. For any other label Karve cannot choose a value: `LabelNotChosen`. Use `In`", ofRequirements},
	{"spec.template.spec.requirements[].operator=Gte", "for labels that the cloud sets. For any other label Karve cannot choose a value: `LabelNotChosen`. Use `In`", ofRequirements},
	{"spec.template.spec.requirements[].operator=In", "at most 64 combinations of the values that Karve can choose: more are `TooManyLabelValues`", ofRequirements},
	{"spec.template.spec.requirements[].operator=Lt", "for labels that the cloud sets. For any other label Karve cannot choose a value: `LabelNotChosen`. Use `In`", ofRequirements},
	{"spec.template.spec.requirements[].operator=Lte", "for labels that the cloud sets. For any other label Karve cannot choose a value: `LabelNotChosen`. Use `In`", ofRequirements},
	{"spec.template.spec.requirements[].operator=NotIn", "honored", ofRequirements},
	{"spec.template.spec.requirements[].values[]", "with `minValues` of two or more, Karve does not launch `reserved` capacity: `ReservedCapacityIgnored`. If only that is allowed, and the node class selects no reservation, the pool launches nothing: `NoReservations`", ofRequirements},
	{"spec.template.spec.startupTaints[].effect=NoExecute", "honored", ofClaim},
	{"spec.template.spec.startupTaints[].effect=NoSchedule", "honored", ofClaim},
	{"spec.template.spec.startupTaints[].effect=PreferNoSchedule", "honored", ofClaim},
	{"spec.template.spec.startupTaints[].key", "honored", ofClaim},
	{"spec.template.spec.startupTaints[].timeAdded", "honored", ofClaim},
	{"spec.template.spec.startupTaints[].value", "honored", ofClaim},
	{"spec.template.spec.taints[].effect=NoExecute", "honored", ofClaim},
	{"spec.template.spec.taints[].effect=NoSchedule", "a pool of shared GPUs without a taint with `NoSchedule` or `NoExecute` launches nothing: `NoTaint`", ofClaim},
	{"spec.template.spec.taints[].effect=PreferNoSchedule", "honored", ofClaim},
	{"spec.template.spec.taints[].key", "honored", ofClaim},
	{"spec.template.spec.taints[].timeAdded", "honored", ofClaim},
	{"spec.template.spec.taints[].value", "honored", ofClaim},
	{"spec.template.spec.terminationGracePeriod", "honored", "pkg/render.TestTerminationGracePeriodOfPoolIsKept"},
	{"spec.weight", "honored", "pkg/snapshot.TestSnapshotTakesWeightAndMinValuesFromPool"},
}

const (
	ofMIG           = "pkg/snapshot.TestInstancesAreBoughtOnTheCheapestMachines"
	ofInstances     = "pkg/snapshot.TestMachinesAreFilledWithInstancesOfSeveralProfiles"
	ofSlots         = "pkg/snapshot.TestMachinesArePlannedForSlotsByTheirMemory"
	ofPromisedSlots = "pkg/render.TestClaimPromisesSlots"
)

const ofMPS = "pkg/render.TestClaimSaysHowGPUsAreSharedWithMPS"

const ofStrategy = "pkg/snapshot.TestPoolOfWholeGPUsNeedsNoTaintAndNoSharedLimit"

// classFields are the decisions on all fields of a GPUNodeClass's spec.
var classFields = []decision{
	{path: "spec.consolidation.idleAfter", by: ofGivingBack},
	{path: "spec.consolidation.policy=WhenCheaper", by: ofGivingBack},
	{path: "spec.consolidation.policy=WhenIdle", by: ofGivingBack},
	{path: "spec.consolidation.restartCost", by: "pkg/fleet/disruption.TestStepsAreTakenOnceWasteHasPaidForTheirRestarts"},
	{path: "spec.consolidation.unusedAfter", by: "test/suites/reconcile.TestUnusedMachineIsReportedWithPrice"},
	{path: "spec.headroom[].duration", by: "pkg/fleet/headroom.TestHeadroomFollowsSchedule"},
	{path: "spec.headroom[].replicas", by: "pkg/fleet/headroom.TestHeadroom"},
	{path: "spec.headroom[].schedule", by: "pkg/fleet/headroom.TestHeadroomFollowsSchedule"},
	{path: "spec.launch.maxPremiumPercent", by: "pkg/fleet/disruption.TestConsolidationAllowsForPremiumOfFlexibleClaims"},
	{path: "spec.nodeClassRef.group", by: "test/suites/reconcile.TestNodeClassStates"},
	{path: "spec.nodeClassRef.kind", by: "test/suites/reconcile.TestNodeClassStates"},
	{path: "spec.nodeClassRef.name", by: "pkg/snapshot.TestPoolOffersTypesOfItsOwnNodeClass"},
	{path: "spec.sharing.backend=DRA", by: "pkg/render.TestBackendIsPromised"},
	{path: "spec.sharing.backend=NVIDIADRA", by: "pkg/render.TestBackendIsPromised"},
	{path: "spec.sharing.backend=DevicePlugin", by: "pkg/render.TestBackendIsPromised"},
	{path: "spec.sharing.busyPercent", by: "pkg/snapshot.TestJobsGetTheReplicasWithTheLowestPriceOfWork"},
	{path: "spec.sharing.maxReplicas", by: "pkg/controllers/share.TestLaunchPromisesAsManyReplicasAsPodsNeed"},
	{path: "spec.sharing.memory.enforcement=MPS", by: "pkg/snapshot.TestSlotsWithMPSHaveAtMostItsClients"},
	{path: "spec.sharing.memory.enforcement=None", by: ofPromisedSlots},
	{path: "spec.sharing.memory.enforcement=Watch", by: ofPromisedSlots},
	{path: "spec.sharing.memory.reserve", by: ofPromisedSlots},
	{path: "spec.sharing.memory.sizes[]", by: ofSlots},
	{path: "spec.sharing.mig.layouts[].gpuMemoryMiB", by: "pkg/snapshot.TestReplicasOfAMachineWithInstances"},
	{path: "spec.sharing.mig.layouts[].gpuName", by: ofMIG},
	{path: "spec.sharing.mig.layouts[].groups[].gpus", by: ofInstances},
	{path: "spec.sharing.mig.layouts[].groups[].instances[].count", by: ofInstances},
	{path: "spec.sharing.mig.layouts[].groups[].instances[].profile", by: ofInstances},
	{path: "spec.sharing.mig.layouts[].instances[].count", by: ofInstances},
	{path: "spec.sharing.mig.layouts[].instances[].profile", by: ofInstances},
	{path: "spec.sharing.mig.layouts[].profile", by: ofMIG},
	{path: "spec.sharing.mig.naming=Mixed", by: ofMIG},
	{path: "spec.sharing.mig.naming=Single", by: "pkg/snapshot.TestReplicasOfAMachineWithInstances"},
	{path: "spec.sharing.mps.activeThreadPercent", by: ofMPS},
	{path: "spec.sharing.mps.memoryOvercommitPercent", by: "pkg/snapshot.TestReplicaWithMPSHasItsShareOfMemory"},
	{path: "spec.sharing.mps.users=Any", by: ofMPS},
	{path: "spec.sharing.mps.users=Single", by: ofMPS},
	{path: "spec.sharing.overrides[].gpuName", by: "pkg/snapshot.TestReplicasCanBeOverriddenByGPUName"},
	{path: "spec.sharing.overrides[].replicas", by: "pkg/snapshot.TestReplicasCanBeOverriddenByGPUName"},
	{path: "spec.sharing.replicas", by: "pkg/apis/v1alpha1.TestReplicasFor"},
	{path: "spec.sharing.requestsAboveOne=Allow", by: "pkg/apis/v1alpha1.TestRefusesAboveOne"},
	{path: "spec.sharing.requestsAboveOne=Refuse", by: "pkg/snapshot.TestPodThatRequestsRefusedReplicaCountIsBlocked"},
	{path: "spec.sharing.resourceName=nvidia.com/gpu", by: "pkg/snapshot.TestLimitOfUnrenamedReplicasCountsGPUs"},
	{path: "spec.sharing.resourceName=nvidia.com/gpu.shared", by: "pkg/apis/v1alpha1.TestResource"},
	{path: "spec.sharing.strategy=MIG", by: ofMIG},
	{path: "spec.sharing.strategy=MPS", by: ofMPS},
	{path: "spec.sharing.strategy=MemorySlots", by: ofSlots},
	{path: "spec.sharing.strategy=None", by: ofStrategy},
	{path: "spec.sharing.strategy=TimeSlicing", by: "pkg/snapshot.TestLimitsCountHardware"},
	{path: "spec.terminationGracePeriod", by: "pkg/render.TestTerminationGracePeriodDefaultsToGPUNodeClass"},
}
