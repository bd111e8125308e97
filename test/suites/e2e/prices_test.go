package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"karve.sh/karve/pkg/apis/v1alpha1"
)

// ownPrices are rules of the shared cluster's controller, for one node class: there, a g4dn.2xlarge costs less than a g4dn.xlarge.
var ownPrices = []string{
	"prices[0].name=contract", "prices[0].price=0.30",
	"prices[0].requirements[0].key=karpenter.k8s.aws/ec2nodeclass", "prices[0].requirements[0].operator=In", "prices[0].requirements[0].values={own-prices}",
	"prices[0].requirements[1].key=" + corev1.LabelInstanceTypeStable, "prices[0].requirements[1].operator=In", "prices[0].requirements[1].values={g4dn.2xlarge}",
}

// TestMachineIsTheCheapestByOwnPrices has EC2 choose among the types of the NodeClaim by its own list, where the g4dn.xlarge costs less.
func TestMachineIsTheCheapestByOwnPrices(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	s := w.scene(t, "own-prices")
	s.class("10m", func(spec *v1alpha1.GPUNodeClassSpec) { spec.Launch.MaxPremiumPercent = new(int32(100)) })
	s.pool(poolOptions{})
	s.deploy("inference", 10)
	s.until(enough, "all pods run", func() (bool, string) { return s.running() == 10, "" })
	claims := s.claims()
	if len(claims) != 1 || claims[0].instanceType != "g4dn.2xlarge" || claims[0].price != 300_000 {
		t.Errorf("the claims are\n%s\nwant one g4dn.2xlarge for 300000 micro-USD", lines(claims))
	}
	for _, n := range s.nodes(s.name) {
		if launched := n.Labels[corev1.LabelInstanceTypeStable]; launched != "g4dn.2xlarge" {
			t.Errorf("EC2 launched a %s", launched)
		}
	}
}
