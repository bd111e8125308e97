package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// play lets happen what the scene says and tells what the filters had against it.
func play(ctx context.Context, sc *scene) (*findings, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s, found, err := carriedOut(ctx, sc)
	if err != nil || len(found.Stuck) > 0 || len(found.Daemons) > 0 {
		// What would be refused is only told of the state at the end, which there is not.
		return found, err
	}
	if err := s.addNodes(sc.Fresh); err != nil {
		return nil, err
	}
	nodes := sc.Judged
	var fresh []string
	for _, node := range sc.Fresh {
		if !node.Spec.Unschedulable {
			fresh = append(fresh, node.Name)
		}
	}
	if err := s.daemons(ctx, found, sc.Daemons, fresh); err != nil {
		return nil, err
	}
	nodes = append(nodes, fresh...)
	for _, pod := range sc.Refused {
		verdicts, err := s.judge(ctx, pod, nodes...)
		if err != nil {
			return nil, err
		}
		for _, node := range nodes {
			if verdicts[node] == nil {
				found.Taken = append(found.Taken, verdict{Pod: nameOf(pod), Node: node})
			}
		}
	}
	return found, nil
}

// carriedOut is the scene with all pods in their places, in one of several orders in which they may come: where one pod may begin a group, whoever
// comes before it can end that.
func carriedOut(ctx context.Context, sc *scene) (*stage, *findings, error) {
	drawn := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // Repeatable.
	order := slices.Clone(sc.Place)
	const orders = 12
	for n := range orders {
		s, err := newStage(ctx, sc)
		if err != nil {
			return nil, nil, err
		}
		found := &findings{}
		if err := s.daemons(ctx, found, sc.Daemons, sc.New); err != nil {
			return nil, nil, err
		}
		if found.Stuck, err = s.place(ctx, order); err != nil {
			return nil, nil, err
		}
		if len(found.Stuck) == 0 || n == orders-1 {
			return s, found, nil
		}
		if n == 0 {
			slices.SortStableFunc(order, func(a, b placement) int { return follows(a.Pod) - follows(b.Pod) })
			continue
		}
		drawn.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	panic("there is a last order")
}

// follows is 0 for pods that have to be with others, who had better come before those that come anywhere.
func follows(pod *corev1.Pod) int {
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return 0
	}
	return 1
}

// place binds the pods to their nodes in an order in which the filters let each pass. It takes any that passes next: where a rule of one
// pod waits for another pod, the other one comes first.
func (s *stage) place(ctx context.Context, placements []placement) ([]verdict, error) {
	for {
		var waiting []placement
		var stuck []verdict
		for _, p := range placements {
			verdicts, err := s.judge(ctx, p.Pod, p.Node)
			if err != nil {
				return nil, err
			}
			if v := verdicts[p.Node]; v != nil {
				waiting, stuck = append(waiting, p), append(stuck, *v)
				continue
			}
			if err := s.bind(p.Pod, p.Node); err != nil {
				return nil, err
			}
		}
		if len(waiting) == 0 || len(waiting) == len(placements) {
			return stuck, nil
		}
		placements = waiting
	}
}

// daemons binds to the nodes the daemons that their labels and taints admit, as the DaemonSet controller does, which asks the same plugins.
func (s *stage) daemons(ctx context.Context, found *findings, daemons []*corev1.Pod, nodes []string) error {
	for _, daemon := range daemons {
		for _, node := range nodes {
			pod := daemon.DeepCopy()
			pod.Name = fmt.Sprintf("%s-%s", daemon.Name, node)
			verdicts, err := s.judge(ctx, pod, node)
			if err != nil {
				return err
			}
			switch v := verdicts[node]; {
			case v == nil:
				if err := s.bind(pod, node); err != nil {
					return err
				}
			case v.Plugin != names.NodeAffinity && v.Plugin != names.TaintToleration && v.Plugin != names.NodeName:
				found.Daemons = append(found.Daemons, *v)
			}
		}
	}
	return nil
}
