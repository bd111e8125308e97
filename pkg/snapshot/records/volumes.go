package records

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	volumehelper "k8s.io/component-helpers/storage/volume"
	csitranslation "k8s.io/csi-translation-lib"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/snapshot/facts"
)

// volumePlace holds the nodes on which a volume is available.
type volumePlace struct {
	// volume is the name of the volume for messages.
	volume string
	nodes  *nodeaffinity.NodeSelector
	// key is equal for volumes that are available on the same nodes.
	key string
}

// Volumes are what a pod's volumes require of a node.
type Volumes struct {
	Places []*volumePlace
	// Drivers has the number of volumes that a node must attach, by driver.
	Drivers map[string]int64
	// Problem is why no node can currently run the pod, or "" if there is no problem.
	Problem string
}

// Key returns a string that is equal for pods whose volumes require the same of a node. It is "" for nil.
func (v *Volumes) Key() string {
	if v == nil {
		return ""
	}
	var b strings.Builder
	for _, p := range v.Places {
		b.WriteString(p.key)
		b.WriteByte('\n')
	}
	for _, driver := range slices.Sorted(maps.Keys(v.Drivers)) {
		fmt.Fprintf(&b, "%s %d\n", driver, v.Drivers[driver])
	}
	return b.String() + v.Problem
}

func (v *Volumes) Refusal() *planner.Refusal {
	if v == nil || v.Problem == "" {
		return nil
	}
	return &planner.Refusal{Reason: planner.ReasonVolumes, Message: v.Problem}
}

// Storage looks up the volumes of pods.
type Storage struct {
	index   *facts.Index
	classes map[string]*storagev1.StorageClass
	// places caches the places by the name of the object that determines them.
	places map[string]*volumePlace
	// users has the pods that may use exclusive claims.
	users func() map[string]*corev1.Pod
}

func StorageOf(c *facts.Cluster) *Storage {
	s := &Storage{index: c.Indexed(), classes: map[string]*storagev1.StorageClass{}, places: map[string]*volumePlace{}}
	s.users = sync.OnceValue(s.index.ExclusiveUsers)
	for i := range c.StorageClasses {
		s.classes[c.StorageClasses[i].Name] = &c.StorageClasses[i]
	}
	return s
}

// Of returns the volumes of a pod, or nil if it has none with a PersistentVolumeClaim.
func (s *Storage) Of(pod *corev1.Pod) *Volumes {
	var v *Volumes
	seen := map[string]bool{}
	for i := range pod.Spec.Volumes {
		name, ok := facts.ClaimName(pod, &pod.Spec.Volumes[i])
		if !ok || seen[name] {
			continue
		}
		seen[name] = true
		if v == nil {
			v = &Volumes{Drivers: map[string]int64{}}
		}
		if v.Problem = s.addClaim(v, pod, name, pod.Spec.Volumes[i].Ephemeral != nil); v.Problem != "" {
			return v
		}
	}
	if v != nil {
		slices.SortFunc(v.Places, func(a, b *volumePlace) int { return strings.Compare(a.key, b.key) })
		v.Places = slices.CompactFunc(v.Places, func(a, b *volumePlace) bool { return a.key == b.key })
	}
	return v
}

// addClaim adds the demands of a PersistentVolumeClaim to the volumes. It returns the problem if no node can run the pod, or "" otherwise.
func (s *Storage) addClaim(v *Volumes, pod *corev1.Pod, name string, ephemeral bool) string {
	claim := s.index.VolumeClaim(pod.Namespace + "/" + name)
	named := fmt.Sprintf("PersistentVolumeClaim %s/%s", pod.Namespace, name)
	switch {
	case claim == nil && ephemeral:
		return named + " does not exist yet: it is made for the pod's ephemeral volume; see the events of the pod"
	case claim == nil:
		return named + " does not exist: create it"
	case ephemeral && !metav1.IsControlledBy(claim, pod):
		return named + " is not of this pod, though it has the name of its ephemeral volume: delete it, or rename the volume"
	case !claim.DeletionTimestamp.IsZero():
		return named + " is being deleted: create it anew once it is gone"
	case s.whyInUse(claim, pod, named) != "":
		return s.whyInUse(claim, pod, named)
	case claim.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("%s has lost its PersistentVolume %s: delete the claim and create it anew", named, claim.Spec.VolumeName)
	case claim.Spec.VolumeName != "":
		return s.addBound(v, claim, named)
	default:
		return s.addUnbound(v, claim, named)
	}
}

func (s *Storage) addBound(v *Volumes, claim *corev1.PersistentVolumeClaim, named string) string {
	if !metav1.HasAnnotation(claim.ObjectMeta, volumehelper.AnnBindCompleted) {
		return fmt.Sprintf("%s is not bound to PersistentVolume %s yet: see the events of the claim", named, claim.Spec.VolumeName)
	}
	pv := s.index.Volume(claim.Spec.VolumeName)
	if pv == nil {
		return fmt.Sprintf("%s is bound to PersistentVolume %s, which does not exist: delete the claim and create it anew", named, claim.Spec.VolumeName)
	}
	if driver := DriverOf(pv); driver != "" {
		v.Drivers[driver]++
	}
	if zones := zonesOf(pv); zones != nil {
		if problem := s.addPlace(v, "PersistentVolume "+pv.Name+" with its zone", zones); problem != "" {
			return problem
		}
	}
	if affinity := pv.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		return s.addPlace(v, "PersistentVolume "+pv.Name, affinity.Required)
	}
	return ""
}

// zonesOf returns a selector for the zones in the volume's zone label, which separates several zones by "__". It returns nil without the label. Old volumes
// have only this label, and the scheduler still uses it.
func zonesOf(pv *corev1.PersistentVolume) *corev1.NodeSelector {
	named := cmp.Or(pv.Labels[corev1.LabelTopologyZone], pv.Labels[corev1.LabelFailureDomainBetaZone])
	if named == "" {
		return nil
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
		Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: strings.Split(named, "__"),
	}}}}}
}

// addUnbound handles a PersistentVolumeClaim whose volume is created after the scheduler has chosen a node. The StorageClass defines where the volume can
// be.
func (s *Storage) addUnbound(v *Volumes, claim *corev1.PersistentVolumeClaim, named string) string {
	name := volumehelper.GetPersistentVolumeClaimClass(claim)
	class := s.classes[name]
	switch {
	case name == "":
		return named + " is not bound and names no StorageClass: name one, or bind it to a PersistentVolume"
	case class == nil:
		return fmt.Sprintf("%s is not bound and its StorageClass %s does not exist: create it", named, name)
	case class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Sprintf("%s is not bound yet, and its StorageClass %s binds without waiting for a node: see the events of the claim", named, name)
	case class.Provisioner == noProvisioner:
		return fmt.Sprintf("%s is not bound, and its StorageClass %s makes no volumes, which Karve does not plan for: set the claim's spec.volumeName", named, name)
	}
	v.Drivers[csiName(class.Provisioner)]++
	if len(class.AllowedTopologies) == 0 {
		return ""
	}
	allowed := &corev1.NodeSelector{}
	for _, topology := range class.AllowedTopologies {
		var nodes corev1.NodeSelectorTerm
		for _, e := range topology.MatchLabelExpressions {
			nodes.MatchExpressions = append(nodes.MatchExpressions, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values})
		}
		allowed.NodeSelectorTerms = append(allowed.NodeSelectorTerms, nodes)
	}
	return s.addPlace(v, "a volume of StorageClass "+name, allowed)
}

// addPlace adds the demand that the volume is available only on the nodes that match. It returns a problem if the selector is invalid.
func (s *Storage) addPlace(v *Volumes, volume string, on *corev1.NodeSelector) string {
	p := s.places[volume]
	if p == nil {
		if facts.MemoryOf(on) > facts.MaxBytes {
			return fmt.Sprintf("%s has a node affinity of more than %d KiB, which Karve does not read: select nodes by a label that they share", volume, facts.MaxBytes>>10)
		}
		nodes, err := nodeaffinity.NewNodeSelector(on)
		if err != nil {
			return fmt.Sprintf("the nodes on which %s can be had cannot be read: %v", volume, err)
		}
		key, err := json.Marshal(on)
		if err != nil {
			return fmt.Sprintf("the nodes on which %s can be had cannot be written down: %v", volume, err)
		}
		p = &volumePlace{volume, nodes, facts.ShortText(string(key))}
		s.places[volume] = p
	}
	v.Places = append(v.Places, p)
	return ""
}

// noProvisioner is the provisioner of StorageClasses whose volumes are not created on demand.
const noProvisioner = "kubernetes.io/no-provisioner"

// drivers maps the volume plugins of Kubernetes to the CSI drivers that have replaced them.
var drivers = csitranslation.New()

func csiName(provisioner string) string {
	if driver, err := drivers.GetCSINameFromInTreeName(provisioner); err == nil {
		return driver
	}
	return provisioner
}

// DriverOf returns the driver that attaches a volume, or "" if no driver has to.
func DriverOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.CSI != nil {
		return pv.Spec.CSI.Driver
	}
	plugin, err := drivers.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return ""
	}
	return csiName(plugin)
}

// whyInUse returns why a waiting pod cannot use a PersistentVolumeClaim now, or "" if it can.
func (s *Storage) whyInUse(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod, named string) string {
	if !facts.IsExclusive(claim) || pod.Spec.NodeName != "" {
		return ""
	}
	user := s.users()[claim.Namespace+"/"+claim.Name]
	switch {
	case user == nil || facts.PodName(user) == facts.PodName(pod):
		return ""
	case user.Spec.NodeName != "":
		return fmt.Sprintf("%s has the access mode ReadWriteOncePod and pod %s uses it: wait until that pod is gone, or use ReadWriteOnce", named, facts.PodName(user))
	}
	return fmt.Sprintf("%s has the access mode ReadWriteOncePod and pod %s, which waits too, uses it first: wait until that pod is gone, or use ReadWriteOnce", named, facts.PodName(user))
}
