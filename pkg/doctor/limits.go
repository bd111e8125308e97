package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"karve.sh/karve/pkg/amount"
	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/cloud"
	"karve.sh/karve/pkg/cloud/clouds"
	"karve.sh/karve/pkg/snapshot"
	"karve.sh/karve/pkg/snapshot/facts"
	"karve.sh/karve/pkg/snapshot/records"
	"karve.sh/karve/pkg/words"
)

// nearPercent is the used percentage of a limit or quota from which doctor warns.
const nearPercent = 90

// limitsNear finds limits of NodePools that are nearly reached.
func limitsNear(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	machines := records.Machines(f.Cluster)
	var all []Finding
	for _, p := range f.pools() {
		used := records.Hardware(slices.DeleteFunc(slices.Clone(machines), func(m records.Machine) bool { return m.Pool() != p.NodePool.Name }))
		for _, l := range p.Limits() {
			limit, ok := p.NodePool.Spec.Limits[l.Name]
			uses := l.Quantity(*l.Of(&used))
			if !ok || limit.Sign() <= 0 || 100*amount.Milli(uses) < nearPercent*amount.Milli(limit) {
				continue
			}
			all = append(all, Finding{
				Warning, "NodePool " + p.NodePool.Name, fmt.Sprintf("uses %s of its limit of %s %s", amount.Text(uses), amount.Text(limit), l.Name),
				command("kubectl patch nodepool %s --type=merge -p %s", p.NodePool.Name, fmt.Sprintf(`{"spec":{"limits":{%q:"MORE"}}}`, l.Name)),
			})
		}
	}
	return all
}

// memoryWrong finds running pods that state device memory that cannot be meant. Plans count it as none, or as all of a GPU.
func memoryWrong(f *Facts) []Finding {
	if f.Cluster == nil {
		return nil
	}
	var all []Finding
	machines := records.Machines(f.Cluster)
	for i := range machines {
		for _, pod := range machines[i].Holders() {
			if why := facts.MemoryProblem(pod, machines[i].GPUMiB()); why != "" {
				all = append(all, Finding{
					Warning, "Pod " + facts.PodName(pod), why,
					"correct it in the template of the pod's owner, or " + command("kubectl -n %s annotate pod %s --overwrite %s", pod.Namespace, pod.Name, v1alpha1.GPUMemoryAnnotation+"=4Gi"),
				})
			}
		}
	}
	return all
}

// resourceQuotasNear finds ResourceQuotas on resources that Karve serves. The pods that a quota keeps from being created are invisible: only the
// ReplicaSet or the Job reports them.
func resourceQuotasNear(f *Facts) []Finding {
	served := snapshot.ServedBy(f.pools())
	var all []Finding
	for i := range f.ResourceQuotas {
		q := &f.ResourceQuotas[i]
		for _, name := range served {
			key := corev1.ResourceName(corev1.DefaultResourceRequestsPrefix + name)
			hard, ok := q.Status.Hard[key]
			used := q.Status.Used[key]
			if !ok || hard.Sign() <= 0 || 100*amount.Milli(used) < nearPercent*amount.Milli(hard) {
				continue
			}
			all = append(all, Finding{
				Warning, fmt.Sprintf("ResourceQuota %s/%s", q.Namespace, q.Name), fmt.Sprintf("uses %s of %s %s, and no pods beyond that are created", amount.Text(used), amount.Text(hard), key),
				command("kubectl -n %s patch resourcequota %s --type=merge -p %s", q.Namespace, q.Name, fmt.Sprintf(`{"spec":{"hard":{%q:"MORE"}}}`, key)),
			})
		}
	}
	return all
}

// quotasExceeded finds refused offerings that name a quota of the account.
func quotasExceeded(f *Facts) []Finding {
	var all []Finding
	for _, class := range f.classes() {
		for _, r := range class.Status.RefusedOfferings {
			capacityType := map[string]string{v1alpha1.RefusalVCPULimit: karpv1.CapacityTypeOnDemand, v1alpha1.RefusalSpotQuota: karpv1.CapacityTypeSpot}[r.Reason]
			if capacityType == "" {
				continue
			}
			fix := "raise the quota of the account: docs/launching.md#refused-launches"
			provider := clouds.OfRef(class.Spec.NodeClassRef)
			if q, ok := provider.QuotaOf(r.InstanceType, capacityType); ok {
				fix = command(provider.RaiseQuota, q.Code, "VCPUS")
			}
			all = append(all, Finding{
				Warning, "GPUNodeClass " + class.Name, fmt.Sprintf("the account has used up its vCPU quota for %s (%s): %s, refused %s in a row", r.InstanceType, r.CapacityType, r.Reason, words.Count(r.Failures, "time")), fix,
			})
		}
	}
	return all
}

// quotaKey identifies a quota of the account.
type quotaKey struct{ group, capacityType string }

type need struct {
	provider *cloud.Provider
	// smallest is the number of vCPUs of the smallest machine, and pools are the NodePools that may launch machines of the quota.
	smallest int64
	pools    map[string]bool
}

// quotasNear finds quotas of the account that this cluster has nearly used up, or that are too small for any machine. The account may also have other
// machines.
func quotasNear(f *Facts) []Finding {
	if f.Cluster == nil || len(f.Quotas) == 0 {
		return nil
	}
	needs, launches := f.needs()
	used := f.usedVCPUs()
	var all []Finding
	for _, q := range f.Quotas {
		n, uses := needs[quotaKey{q.Group, q.CapacityType}], used[quotaKey{q.Group, q.CapacityType}]
		if n == nil {
			continue
		}
		pools := slices.Sorted(maps.Keys(n.pools))
		smallest := fmt.Sprintf("the smallest machine of NodePool %s has %d", words.Named(pools, maxNamed), n.smallest)
		what := fmt.Sprintf("vCPUs of %s instances (%s)", q.Group, q.CapacityType)
		finding := Finding{Warning, "quota " + q.Code, "", command(n.provider.RaiseQuota, q.Code, strconv.FormatInt(2*max(q.VCPUs, n.smallest), 10))}
		switch {
		case q.VCPUs < n.smallest:
			finding.Message = fmt.Sprintf("the account may run %d %s, and %s", q.VCPUs, what, smallest)
			if slices.ContainsFunc(pools, func(name string) bool { return !launches[name] }) {
				finding.Severity = Error
			}
		case q.VCPUs-uses < n.smallest:
			finding.Message = fmt.Sprintf("the nodes of this cluster use %d of the %d %s that the account may run, and %s", uses, q.VCPUs, what, smallest)
		case 100*uses >= nearPercent*q.VCPUs:
			finding.Message = fmt.Sprintf("the nodes of this cluster use %d of the %d %s that the account may run", uses, q.VCPUs, what)
		default:
			continue
		}
		all = append(all, finding)
	}
	return all
}

// needs returns what NodePools need from quotas, and which of them have a machine for which no quota is too small.
func (f *Facts) needs() (needs map[quotaKey]*need, launches map[string]bool) {
	limits := map[quotaKey]int64{}
	for _, q := range f.Quotas {
		limits[quotaKey{q.Group, q.CapacityType}] = q.VCPUs
	}
	needs, launches = map[quotaKey]*need{}, map[string]bool{}
	for _, p := range f.pools() {
		for i := range p.Offerings {
			o := &p.Offerings[i]
			provider := clouds.OfRef(p.Class.Spec.NodeClassRef)
			key := quotaKey{provider.Group(o.Type.Name), o.CapacityType}
			limit, limited := limits[key]
			vcpus := o.Type.Capacity.MilliCPU / 1000
			launches[p.NodePool.Name] = launches[p.NodePool.Name] || !limited || vcpus <= limit
			n := needs[key]
			if n == nil {
				n = &need{provider: provider, smallest: vcpus, pools: map[string]bool{}}
				needs[key] = n
			}
			n.smallest, n.pools[p.NodePool.Name] = min(n.smallest, vcpus), true
		}
	}
	return needs, launches
}

// usedVCPUs returns the vCPUs of the cluster's nodes by quota.
func (f *Facts) usedVCPUs() map[quotaKey]int64 {
	used := map[quotaKey]int64{}
	for _, class := range f.classes() {
		if ref := class.Spec.NodeClassRef; len(clouds.OfRef(ref).Quotas) > 0 {
			for node := range f.Cluster.Indexed().AllNodes() {
				capacityType := karpv1.CapacityTypeOnDemand // Reservations use the same quota.
				if isSpot(clouds.OfRef(ref), node) {
					capacityType = karpv1.CapacityTypeSpot
				}
				used[quotaKey{clouds.OfRef(ref).Group(node.Labels[corev1.LabelInstanceTypeStable]), capacityType}] += amount.Value(node.Status.Capacity[corev1.ResourceCPU])
			}
			break // The nodes are those of one cloud.
		}
	}
	return used
}

func isSpot(provider *cloud.Provider, node *corev1.Node) bool {
	for key, value := range provider.SpotLabels {
		if node.Labels[key] == value {
			return true
		}
	}
	return node.Labels[karpv1.CapacityTypeLabelKey] == karpv1.CapacityTypeSpot
}
