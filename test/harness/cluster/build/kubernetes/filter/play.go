package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// play plays a scene and returns the objections of the filters.
func play(ctx context.Context, sc *scene) (*findings, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s, found, err := carriedOut(ctx, sc)
	if err != nil || len(found.Stuck) > 0 || len(found.Daemons) > 0 {
		// The refused pods can only be judged in the final state, which was not reached.
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

// carriedOut returns the scene with all pods in their places. It tries several orders: if a pod may start a group, a pod that arrives before it can
// prevent that.
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

// follows returns 0 for pods that must be with other pods. They should come before those that can go anywhere.
func follows(pod *corev1.Pod) int {
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return 0
	}
	return 1
}

// place binds the pods to their nodes in an order in which each passes the filters. It binds any pod that passes next, so a pod whose rules depend on
// another pod comes after it.
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

// daemons binds daemon pods to the nodes whose labels and taints admit them, as the DaemonSet controller does with the same plugins.
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
