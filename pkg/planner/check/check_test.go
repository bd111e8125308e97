package check_test

import (
	"strings"
	"testing"

	"karve.sh/karve/pkg/planner"
	"karve.sh/karve/pkg/planner/check"
	"karve.sh/karve/pkg/planner/plantest"
)

// sound returns a snapshot with all kinds of objects, and a valid plan for it that the cases of this file break: the node takes two pods, two machines are
// launched from the limited pool, one pod is blocked, and one is too large.
func sound() (planner.Snapshot, planner.Plan) {
	s := planner.Snapshot{
		Pools:     []planner.Pool{plantest.Pool("a"), plantest.Pool("b")},
		Offerings: plantest.Offerings(plantest.G4dn()[:2], 2),
		Nodes:     []planner.Node{{Name: "node-1", Free: planner.Resources{MilliCPU: 2000, MemoryBytes: 4 * plantest.Gi, Pods: 5, Replicas: 2}}},
	}
	s.Pools[0].Remaining.Nodes = 2
	s.Classes = []planner.Class{
		plantest.Class(s, "web", 6, plantest.Request(1000, 1024, 1)),
		plantest.Class(s, "blocked", 1, plantest.Request(1000, 1024, 1)),
		plantest.Class(s, "huge", 1, plantest.Request(1000, 1024, 9)),
	}
	s.Classes[1].Blocked = &planner.Refusal{Reason: planner.ReasonUnsupported, Message: "uses host ports"}
	p := planner.Plan{
		Placements: []planner.Placement{{Node: 0, Pods: []string{"default/web-00000", "default/web-00001"}}},
		Launches: []planner.Launch{
			{Offering: 0, Pods: []string{"default/web-00002", "default/web-00003"}},
			{Offering: 0, Pods: []string{"default/web-00004", "default/web-00005"}},
		},
		Unplaced: []planner.Unplaced{
			{Pod: "default/blocked-00000", Refusal: *s.Classes[1].Blocked},
			{Pod: "default/huge-00000", Refusal: planner.Refusal{Reason: planner.ReasonTooLarge, Message: "asks for 9 replicas"}},
		},
		Price: 1_052_000, Bound: 1_052_000,
	}
	return s, p
}

func TestCheckAcceptsValidPlan(t *testing.T) {
	t.Parallel()
	if err := check.Plan(sound()); err != nil {
		t.Fatal(err)
	}
}

func TestCheckReportsEachBrokenRule(t *testing.T) {
	t.Parallel()
	refused := &planner.Refusal{Reason: planner.ReasonUnavailable, Message: "no capacity"}
	for _, c := range []struct {
		name  string
		spoil func(s *planner.Snapshot, p *planner.Plan)
		want  string
	}{
		{"a pod is missing", func(_ *planner.Snapshot, p *planner.Plan) { p.Unplaced = p.Unplaced[:1] }, "pod default/huge-00000 is in the plan 0 times"},
		{"a pod is in two launches", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[1].Pods[0] = "default/web-00003" }, "pod default/web-00003 is in the plan 2 times"},
		{"a pod is placed and unplaced", func(_ *planner.Snapshot, p *planner.Plan) {
			p.Unplaced = append(p.Unplaced, planner.Unplaced{Pod: "default/web-00000", Refusal: *refused})
		}, "pod default/web-00000 is in the plan 2 times"},
		{"a launched pod is unknown", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Pods[1] = "default/xyz" }, "launch 0 of g4dn.xlarge: pod default/xyz is not in the snapshot"},
		{"an unplaced pod is unknown", func(_ *planner.Snapshot, p *planner.Plan) { p.Unplaced[0].Pod = "default/xyz" }, "unplaced 0: pod default/xyz is not in the snapshot"},
		{"a pod is launched for where it is not admitted", func(s *planner.Snapshot, _ *planner.Plan) { s.Classes[0].Offerings = []int{1} }, "launch 0 of g4dn.xlarge: pod default/web-00002 is not admitted"},
		{"a pod is placed where it is not admitted", func(s *planner.Snapshot, _ *planner.Plan) { s.Classes[0].Nodes = nil }, "placement 0 on node node-1: pod default/web-00000 is not admitted"},
		{"a blocked pod is planned for", func(_ *planner.Snapshot, p *planner.Plan) {
			p.Launches[0].Pods[0], p.Unplaced[0].Pod = "default/blocked-00000", "default/web-00002"
		}, "nothing may be planned for pod default/blocked-00000: uses host ports"},
		{"half of a group is placed", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Groups = []planner.Group{{Name: "PodGroup ml/job", Classes: []int{0, 2}, Min: 7}}
		}, "PodGroup ml/job: needs 7 pods at once, the plan places 6"},
		{"CPU is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[0].Free.MilliCPU = 1999 }, "asks for 1000 of CPU, 999 are left"},
		{"memory is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[0].Free.MemoryBytes = 2*plantest.Gi - 1 }, "of memory, 1073741823 are left"},
		{"ephemeral storage is exceeded", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Classes[0].Requests.EphemeralBytes = 60 * plantest.Gi
			s.Nodes[0].Free.EphemeralBytes = 120 * plantest.Gi
		}, "of ephemeral storage"},
		{"pod slots are exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[0].Free.Pods = 1 }, "asks for 1 of pod slots, 0 are left"},
		{"replicas are exceeded", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Offerings[0].Free.Replicas, s.Offerings[0].GPUs = 1, nil
		}, "asks for 1 of replicas, 0 are left"},
		{"a node is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Nodes[0].Free.Replicas = 1 }, "placement 0 on node node-1: pod default/web-00001 asks for 1 of replicas"},
		{"a node is used twice", func(_ *planner.Snapshot, p *planner.Plan) {
			p.Placements = []planner.Placement{{Node: 0, Pods: p.Placements[0].Pods[:1]}, {Node: 0, Pods: p.Placements[0].Pods[1:]}}
		}, "placement 1: an earlier placement uses node 0 already"},
		{"the limit of nodes is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Remaining.Nodes = 1 }, "launch 1: counts 1 nodes, the limit of pool a leaves 0"},
		{"the limit of GPUs is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Remaining.GPUs = 1 }, "launch 1: counts 1 GPUs, the limit of pool a leaves 0"},
		{"the limit of CPU is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Remaining.MilliCPU = 7999 }, "launch 1: counts 4000 CPU, the limit of pool a leaves 3999"},
		{"the limit of memory is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Remaining.MemoryBytes = plantest.Gi }, "memory, the limit of pool a leaves 1073741824"},
		{"the limit of replicas is exceeded", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Remaining.Replicas = 3 }, "launch 1: counts 2 replicas, the limit of pool a leaves 1"},
		{"a pod with device memory is on no GPU", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Classes[0].GPUMemoryBytes = 1
		}, "launch 0 of g4dn.xlarge: pod default/web-00002 states device memory and is on no GPU"},
		{"a pod is on an unknown GPU", func(s *planner.Snapshot, p *planner.Plan) {
			s.Classes[0].GPUMemoryBytes, p.Launches[0].GPUs = 1, []int{0, 1}
		}, "launch 0 of g4dn.xlarge: pod default/web-00003 states device memory and is on no GPU"},
		{"a pod without device memory is on a GPU", func(_ *planner.Snapshot, p *planner.Plan) {
			p.Launches[0].GPUs = []int{-1, 0}
		}, "pod default/web-00003 states no device memory and is on GPU 0"},
		{"only some pods have a GPU", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].GPUs = []int{-1} }, "tells the GPUs of 1 pods, has 2"},
		{"the memory of a GPU is exceeded", func(s *planner.Snapshot, p *planner.Plan) {
			s.Classes[0].GPUMemoryBytes, p.Launches[0].GPUs = 8*plantest.Gi, []int{0, 0}
		}, "asks for 8589934592 of device memory, 7516192768 are left on GPU 0"},
		{"the replicas of a GPU are exceeded though the machine has some", func(s *planner.Snapshot, p *planner.Plan) {
			s.Classes[0].GPUMemoryBytes, p.Launches[0].GPUs = 1, []int{0, 0}
			s.Offerings[0].GPUs = []planner.GPU{{Replicas: 1, MemoryBytes: 9}, {Replicas: 1, MemoryBytes: 9}}
		}, "asks for 1 replicas of one GPU, 0 are left on GPU 0"},
		{"a quota is exceeded", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Quotas = []planner.Quota{{Name: "host port 80/TCP", Each: 1}}
			s.Classes[0].Quotas = []planner.Amount{{Quota: 0, Count: 1}}
		}, "launch 0 of g4dn.xlarge: pod default/web-00003 takes 1 of host port 80/TCP, 0 are left"},
		{"a quota of a node is exceeded", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Quotas = []planner.Quota{{Name: "volumes", Each: 9}}
			s.Nodes[0].Quotas = []planner.Amount{{Quota: 0, Count: 0}}
			s.Classes[0].Quotas = []planner.Amount{{Quota: 0, Count: 1}}
		}, "placement 0 on node node-1: pod default/web-00000 takes 1 of volumes, 0 are left"},
		{"pods with anti-affinity share a machine", func(s *planner.Snapshot, _ *planner.Plan) {
			s.Rules = []planner.Rule{{Kind: planner.Apart, Name: "anti-affinity", Topology: planner.PerNode, Classes: []int{0}, Counted: []int{0}}}
		}, "launch 0 of g4dn.xlarge: pod default/web-00002 shares the machine with 1 pods that anti-affinity keeps it apart from"},
		{"a closed pool is launched from", func(s *planner.Snapshot, _ *planner.Plan) { s.Pools[0].Closed = refused }, "pool a is closed: no capacity"},
		{"an unavailable offering is launched", func(s *planner.Snapshot, _ *planner.Plan) { s.Offerings[0].Unavailable = refused }, "the offering is unavailable: no capacity"},
		{"the price is not the sum", func(_ *planner.Snapshot, p *planner.Plan) { p.Price++ }, "the price is 1052001, the launches sum to 1052000"},
		{"the bound is above the price", func(_ *planner.Snapshot, p *planner.Plan) { p.Bound++ }, "the bound 1052001 is not within 0 and the price 1052000"},
		{"the bound is negative", func(_ *planner.Snapshot, p *planner.Plan) { p.Bound = -1 }, "the bound -1 is not within 0"},
		{"an offering is out of range", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Offering = 2 }, "launch 0: there is no offering 2"},
		{"an offering is below range", func(_ *planner.Snapshot, p *planner.Plan) { p.Launches[0].Offering = -1 }, "launch 0: there is no offering -1"},
		{"a node is out of range", func(_ *planner.Snapshot, p *planner.Plan) { p.Placements[0].Node = 1 }, "placement 0: there is no node 1"},
		{"the pods of a launch are not sorted", func(_ *planner.Snapshot, p *planner.Plan) {
			l := p.Launches[0].Pods
			l[0], l[1] = l[1], l[0]
		}, "launch 0 of g4dn.xlarge: pods are not sorted"},
		{"a launch has no pods", func(_ *planner.Snapshot, p *planner.Plan) {
			p.Launches = append(p.Launches, planner.Launch{Offering: 0})
		}, "launch 2 of g4dn.xlarge: has no pods"},
		{"a placement has no pods", func(s *planner.Snapshot, p *planner.Plan) {
			s.Nodes = append(s.Nodes, planner.Node{Name: "node-2"})
			p.Placements = append(p.Placements, planner.Placement{Node: 1})
		}, "placement 1 on node node-2: has no pods"},
		{"a refusal has no reason", func(_ *planner.Snapshot, p *planner.Plan) { p.Unplaced[1].Reason = "" }, "pod default/huge-00000 has no reason or no message"},
		{"a refusal has no message", func(_ *planner.Snapshot, p *planner.Plan) { p.Unplaced[1].Message = "" }, "pod default/huge-00000 has no reason or no message"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, p := sound()
			c.spoil(&s, &p)
			err := check.Plan(s, p)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestCheckReportsAllBrokenRulesAtOnce(t *testing.T) {
	t.Parallel()
	s, p := sound()
	p.Price, p.Launches[0].Offering, p.Unplaced = 1, 7, nil
	err := check.Plan(s, p)
	for _, want := range []string{"there is no offering 7", "default/blocked-00000 is in the plan 0 times", "the price is 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestValidateReportsInvalidSnapshots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		spoil func(s *planner.Snapshot)
		want  string
	}{
		{"duplicate pool names", func(s *planner.Snapshot) { s.Pools[1].Name = "a" }, `pool 1: the name "a" repeats`},
		{"duplicate node names", func(s *planner.Snapshot) { s.Nodes = append(s.Nodes, s.Nodes[0]) }, `node 1: the name "node-1" repeats`},
		{"an offering without a pool", func(s *planner.Snapshot) { s.Offerings[1].Pool = 2 }, "offering 1: there is no pool 2"},
		{"an offering with price zero", func(s *planner.Snapshot) { s.Offerings[1].Price = 0 }, "offering 1: the price 0"},
		{"negative free capacity", func(s *planner.Snapshot) { s.Offerings[1].Free.Replicas = -1 }, "offering 1: free capacity is negative"},
		{"a negative physical amount", func(s *planner.Snapshot) { s.Offerings[1].Physical.GPUs = -1 }, "offering 1: physical amounts"},
		{"an offering that counts two machines", func(s *planner.Snapshot) { s.Offerings[1].Physical.Nodes = 2 }, "offering 1: physical amounts"},
		{"a node with negative capacity", func(s *planner.Snapshot) { s.Nodes[0].Free.Pods = -1 }, "node 0: free capacity is negative"},
		{"a negative request", func(s *planner.Snapshot) { s.Classes[0].Requests.MilliCPU = -1 }, "class 0: requests"},
		{"a pod that requests two pods", func(s *planner.Snapshot) { s.Classes[0].Requests.Pods = 2 }, "class 0: requests"},
		{"pods out of order", func(s *planner.Snapshot) { s.Classes[0].Pods[0] = "z" }, "class 0: pods are not sorted"},
		{"a pod in two classes", func(s *planner.Snapshot) { s.Classes[1].Pods[0] = "default/web-00000" }, "class 1: pod default/web-00000 is in class 0 as well"},
		{"duplicate names of groups", func(s *planner.Snapshot) { s.Groups = []planner.Group{{Name: "g", Min: 1}, {Name: "g", Min: 1}} }, `group 1: the name "g" repeats`},
		{"a group that needs no pod", func(s *planner.Snapshot) { s.Groups = []planner.Group{{Name: "g"}} }, "group 0: needs fewer pods than one"},
		{"a group of an unknown class", func(s *planner.Snapshot) { s.Groups = []planner.Group{{Name: "g", Min: 1, Classes: []int{9}}} }, "group 0: classes"},
		{"a class in two groups", func(s *planner.Snapshot) {
			s.Groups = []planner.Group{{Name: "g", Min: 1, Classes: []int{0}}, {Name: "h", Min: 1, Classes: []int{0}}}
		}, "group 1: class 0 is in group 0 as well"},
		{"duplicate quota names", func(s *planner.Snapshot) { s.Quotas = []planner.Quota{{Name: "q"}, {Name: "q"}} }, `quota 1: the name "q" repeats`},
		{"a negative quota", func(s *planner.Snapshot) { s.Quotas = []planner.Quota{{Name: "q", Each: -1}} }, "quota 0: each machine"},
		{"an amount of an unknown quota", func(s *planner.Snapshot) { s.Classes[0].Quotas = []planner.Amount{{Quota: 0}} }, "class 0: quotas"},
		{"amounts of a node out of order", func(s *planner.Snapshot) {
			s.Quotas = []planner.Quota{{Name: "p"}, {Name: "q"}}
			s.Nodes[0].Quotas = []planner.Amount{{Quota: 1}, {Quota: 0}}
		}, "node 0: quotas"},
		{"negative device memory", func(s *planner.Snapshot) { s.Classes[0].GPUMemoryBytes = -1 }, "class 0: device memory"},
		{"a GPU with negative replicas", func(s *planner.Snapshot) { s.Nodes[0].GPUs = []planner.GPU{{MemoryBytes: -1}} }, "node 0: GPU 0"},
		{"GPUs without the replicas of the machine", func(s *planner.Snapshot) { s.Offerings[0].GPUs[0].Replicas = 1 }, "offering 0: its GPUs have 1 replicas"},
		{"domains of unknown topologies", func(s *planner.Snapshot) { s.Nodes[0].Domains = []int{0} }, "node 0: has domains of 1 topologies"},
		{"an unknown domain", func(s *planner.Snapshot) {
			s.Topologies = []planner.Topology{{Key: "zone", Domains: []string{"a"}}}
			s.Offerings[0].Domains = []int{1}
		}, "offering 0: topology zone has no domain 1"},
		{"a rule with an unknown class", func(s *planner.Snapshot) {
			s.Rules = []planner.Rule{{Kind: planner.Apart, Topology: planner.PerNode, Classes: []int{9}}}
		}, "rule 0: classes"},
		{"an offering out of range", func(s *planner.Snapshot) { s.Classes[0].Offerings = []int{0, 9} }, "class 0: offerings"},
		{"a node below range", func(s *planner.Snapshot) { s.Classes[0].Nodes = []int{-1} }, "class 0: nodes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, _ := sound()
			c.spoil(&s)
			if err := planner.Validate(s); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}
