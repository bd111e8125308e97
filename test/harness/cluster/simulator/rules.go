package simulator

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// The name of the ConfigMap with the rules, and its default key.
const (
	ConfigMapNamespace = "kube-system"
	ConfigMapName      = "karve-simulator"
	// DefaultKey is the key of the rule for Karve's nodes without a rule of their own.
	DefaultKey = "default"
)

// StartupTaintKey is a startup taint for NodePools. The simulator removes it from registered nodes, as the agent of another vendor does.
const StartupTaintKey = "simulator.karve.sh/agent-not-ready"

// DefaultDelay is the default time from a node's registration to its replicas.
const DefaultDelay = 2 * time.Second

// The values of Rule.Offer that are not a number.
const (
	OfferAll  = "all"
	OfferNone = "none"
)

// Rule configures the plugin on the nodes of a NodePool or an image.
type Rule struct {
	// Delay is the time from the node's registration to its first replicas.
	Delay *metav1.Duration `json:"delay,omitempty"`
	// Offer is "all" (the default), "none" or the number of replicas of the whole node. It can change at any time. "none" on a node that had replicas
	// simulates a crashed plugin.
	Offer *intstr.IntOrString `json:"offer,omitempty"`
	// ReplicasPerGPU overrides the node's annotation. A node without Karve's annotations gets replicas only from a rule that sets it. This simulates
	// NVIDIA's plugin on the nodes of a stock NodePool.
	ReplicasPerGPU int32 `json:"replicasPerGPU,omitempty"`
	// Resource overrides the node's annotation; nvidia.com/gpu.shared if neither is set.
	Resource string `json:"resource,omitempty"`
	// Flap makes the replicas come and go: present for this long, then absent for this long, in turn.
	Flap *metav1.Duration `json:"flap,omitempty"`
	// KeepTaint leaves StartupTaintKey on the nodes, like an agent that never becomes ready.
	KeepTaint bool `json:"keepTaint,omitempty"`
	// Forever pins the rule: nodes that register while it applies follow it for their lifetime.
	Forever bool `json:"forever,omitempty"`
}

// Rules are the rules by image ("ami-…"), NodePool or DefaultKey. The first one that exists applies, in this order.
type Rules map[string]Rule

// ParseRules reads the rules of a ConfigMap. nil has no rules.
func ParseRules(cm *corev1.ConfigMap) (Rules, error) {
	rules := Rules{}
	if cm == nil {
		return rules, nil
	}
	for key, value := range cm.Data {
		var rule Rule
		if err := yaml.UnmarshalStrict([]byte(value), &rule); err != nil {
			return nil, fmt.Errorf("reading the rule %q of ConfigMap %s: %w", key, ConfigMapName, err)
		}
		if err := rule.validate(); err != nil {
			return nil, fmt.Errorf("reading the rule %q of ConfigMap %s: %w", key, ConfigMapName, err)
		}
		rules[key] = rule
	}
	return rules, nil
}

func (r Rule) validate() error {
	if r.Delay != nil && r.Delay.Duration < 0 {
		return fmt.Errorf("delay is %s, below zero", r.Delay.Duration)
	}
	if r.Flap != nil && r.Flap.Duration <= 0 {
		return fmt.Errorf("flap is %s, not above zero", r.Flap.Duration)
	}
	if r.ReplicasPerGPU < 0 {
		return fmt.Errorf("replicasPerGPU is %d, below zero", r.ReplicasPerGPU)
	}
	if r.Offer == nil {
		return nil
	}
	if r.Offer.Type == intstr.Int && r.Offer.IntVal < 0 {
		return fmt.Errorf("offer is %d, below zero", r.Offer.IntVal)
	}
	if r.Offer.Type == intstr.String && r.Offer.StrVal != OfferAll && r.Offer.StrVal != OfferNone {
		return fmt.Errorf("offer is %q, not %q, %q or a number", r.Offer.StrVal, OfferAll, OfferNone)
	}
	return nil
}

func (r Rule) delay() time.Duration {
	if r.Delay == nil {
		return DefaultDelay
	}
	return r.Delay.Duration
}

// replicas returns how many of all replicas are offered.
func (r Rule) replicas(all int64) int64 {
	switch {
	case r.Offer == nil || *r.Offer == intstr.FromString(OfferAll):
		return all
	case *r.Offer == intstr.FromString(OfferNone):
		return 0
	default:
		return int64(r.Offer.IntVal)
	}
}
