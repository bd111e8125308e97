package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/schedule"
	"karve.sh/karve/pkg/snapshot/facts"
)

// Reasons of the condition FieldsHonored.
const (
	reasonUnknownField             = "UnknownField"
	reasonUnsupportedConsolidation = "UnsupportedConsolidationPolicy"
	reasonInvalidBudget            = "InvalidBudget"
	reasonReservedKey              = "ReservedKey"
	reasonReservedCapacity         = "ReservedCapacityIgnored"
	reasonTooManyLabelValues       = "TooManyLabelValues"
	reasonLabelNotChosen           = "LabelNotChosen"
)

// Reasons why a pool launches nothing.
const (
	reasonUnknownOperator = "UnknownOperator"
)

const (
	pathPolicy       = "spec.disruption.consolidationPolicy"
	pathBudgets      = "spec.disruption.budgets"
	pathLabels       = "spec.template.metadata.labels"
	pathAnnotations  = "spec.template.metadata.annotations"
	pathRequirements = "spec.template.spec.requirements"
)

// unhonoredFields returns reports for the fields of the pool's NodePool, sorted by path.
func unhonoredFields(c *facts.Cluster, p *Pool, t *template) []FieldReport {
	reports := UnknownFields(c.UnknownFields[p.NodePool.UID])
	reports = append(reports, p.unhonoredDisruption()...)
	reports = append(reports, p.overwrittenKeys()...)
	if t != nil {
		reports = append(reports, t.unhonored()...)
	}
	slices.SortStableFunc(reports, func(a, b FieldReport) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
	return reports
}

// UnknownFields returns reports for the paths of fields that this version of Karve does not know.
func UnknownFields(paths []string) []FieldReport {
	var reports []FieldReport
	for _, path := range paths {
		reports = append(reports, FieldReport{path, reasonUnknownField, path + " is not known to this version of Karve and has no effect: remove it, or upgrade Karve"})
	}
	return reports
}

func (p *Pool) unhonoredDisruption() []FieldReport {
	var reports []FieldReport
	const instead = "set it to WhenEmptyOrUnderutilized or WhenEmpty, and say by spec.consolidation.restartCost of the GPUNodeClass what the restart of a pod costs"
	switch policy := p.NodePool.Spec.Disruption.ConsolidationPolicy; policy {
	case "", karpv1.ConsolidationPolicyWhenEmpty, karpv1.ConsolidationPolicyWhenEmptyOrUnderutilized:
	case karpv1.ConsolidationPolicyBalanced:
		reports = append(reports, FieldReport{pathPolicy, reasonUnsupportedConsolidation, fmt.Sprintf("%s: %s has the effect of WhenEmptyOrUnderutilized: %s", pathPolicy, policy, instead)})
	default:
		reports = append(reports, FieldReport{pathPolicy, reasonUnsupportedConsolidation, fmt.Sprintf("%s: %s is not known to this version of Karve and has the effect of WhenEmpty: %s", pathPolicy, policy, instead)})
	}
	for i, budget := range p.NodePool.Spec.Disruption.Budgets {
		if budget.Schedule == nil {
			continue
		}
		if _, err := schedule.Parse(*budget.Schedule, time.UTC); err != nil {
			path := fmt.Sprintf("%s[%d].schedule", pathBudgets, i)
			reports = append(reports, FieldReport{path, reasonInvalidBudget, fmt.Sprintf(
				"%s: %.80q cannot be read, so no node is given back or replaced: write a cron expression of five fields, such as \"0 7 * * mon-fri\"", path, *budget.Schedule)})
		}
	}
	return reports
}

func (p *Pool) overwrittenKeys() []FieldReport {
	var reports []FieldReport
	report := func(path, key string) {
		reports = append(reports, FieldReport{path, reasonReservedKey, fmt.Sprintf("%s: %s is written by Karve and has no effect here: remove it", path, key)})
	}
	for _, key := range ownAnnotations {
		if _, ok := p.NodePool.Spec.Template.Annotations[key]; ok {
			report(pathAnnotations, key)
		}
	}
	for _, key := range ownLabels {
		if _, ok := p.NodePool.Spec.Template.Labels[key]; ok {
			report(pathLabels, key)
		}
	}
	return reports
}

// unhonored returns reports for requirements that the pool does not meet.
func (t *template) unhonored() []FieldReport {
	var reports []FieldReport
	report := func(reason, format string, args ...any) {
		reports = append(reports, FieldReport{pathRequirements, reason, pathRequirements + ": " + fmt.Sprintf(format, args...)})
	}
	if t.hasMinValues() && slices.Contains(t.capacityTypes(), karpv1.CapacityTypeReserved) {
		report(reasonReservedCapacity, "%s %s is not launched, because a NodeClaim for a reservation allows one instance type in one zone, and minValues asks for more: remove minValues",
			karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeReserved)
	}
	if keys := t.chosenKeys(); len(keys) > 0 {
		combinations := 1
		for _, key := range keys {
			combinations *= len(t.requirements[key].Values())
			if combinations > math.MaxInt32 {
				combinations = math.MaxInt32 // The exact number does not matter.
			}
		}
		if combinations > maxLabelChoices {
			report(reasonTooManyLabelValues, "%s have %d combinations of values, and nodes are launched with the first %d only: name fewer values, or use several NodePools",
				strings.Join(keys, ", "), combinations, maxLabelChoices)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.requirements)) {
		if op := t.requirements[key].Operator(); !t.isOpen(key) || op == corev1.NodeSelectorOpIn || op == corev1.NodeSelectorOpDoesNotExist || op == corev1.NodeSelectorOpNotIn {
			continue
		}
		report(reasonLabelNotChosen, "%s has no value that Karve could choose, so pods that select nodes by it have none: use operator In with the values, or a label in %s", key, pathLabels)
	}
	return reports
}

// problem returns the reason and message if the requirements prevent the pool from launching, or "" otherwise.
func (t *template) problem(np *karpv1.NodePool) (reason, message string) {
	for _, req := range np.Spec.Template.Spec.Requirements {
		if !karpv1.SupportedNodeSelectorOps.Has(string(req.Operator)) {
			return reasonUnknownOperator, fmt.Sprintf("%s: operator %s of %s is not known to this version of Karve: use one of %s, or upgrade Karve",
				pathRequirements, req.Operator, req.Key, strings.Join(karpv1.SupportedNodeSelectorOps.List(), ", "))
		}
	}
	return "", ""
}
