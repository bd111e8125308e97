package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	smithytime "github.com/aws/smithy-go/time"

	"karve.sh/karve/pkg/node/nvml/nvmltest"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/kubelet"
	"karve.sh/karve/test/harness/kubelet/gpus"
)

const (
	cards           = 4
	replicas, fewer = 10, 8 // replicas per GPU of the two configurations, which alternate
	patience        = 90 * time.Second
	xid             = 79 // The GPU has fallen off the bus.
)

// bench measures one plugin on a node of its own.
type bench struct {
	plugin  gpus.Plugin
	machine *gpus.Machine
	node    *kubelet.Node
	seen    *observer
	result  map[string]any
}

// machineOf starts a node with GPUs. stop stops it, and must be called.
func machineOf(ctx context.Context, c *cluster.Cluster, name string) (machine *gpus.Machine, stop func() error, err error) {
	// The kubelet reports its status every second instead of every ten, so that its delay does not hide that of the plugin.
	n, err := kubelet.Start(ctx, c, kubelet.Config{Name: name, StatusInterval: time.Second})
	if err != nil {
		return nil, nil, err
	}
	stop = func() error { return errors.Join(n.Stop(), n.Leave(context.WithoutCancel(ctx))) }
	if machine, err = gpus.New(ctx, n, nvmltest.T4(cards)); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return machine, stop, nil
}

func measure(ctx context.Context, c *cluster.Cluster, name string, p gpus.Plugin, starts, reloads int) (result map[string]any, err error) {
	machine, stop, err := machineOf(ctx, c, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	n := machine.Node
	b := &bench{plugin: p, node: n, machine: machine, result: map[string]any{"plugin": p.Name}}
	if b.seen, err = observe(ctx, n); err != nil {
		return nil, err
	}
	defer b.seen.stop()
	info, err := os.Stat(p.Path)
	if err != nil {
		return nil, err
	}
	b.result["binaryBytes"] = info.Size()
	if err := b.machine.Share(replicas); err != nil {
		return nil, err
	}
	// By then the pod that gpus.New created runs.
	if err := smithytime.SleepWithContext(ctx, 3*time.Second); err != nil {
		return nil, err
	}
	process, err := b.start(ctx, starts)
	if err != nil {
		return nil, err
	}
	if err := b.reload(ctx, process, reloads); err != nil {
		return nil, err
	}
	if err := b.churn(ctx, process, reloads); err != nil {
		return nil, err
	}
	if err := b.event(ctx); err != nil {
		return nil, err
	}
	select {
	case <-process.Done():
		return nil, fmt.Errorf("it has ended; see %s", process.Log())
	default:
	}
	p.Stop(process)
	return b.result, nil
}

// start starts the plugin several times and measures how long that takes. It returns the last process, which still runs.
func (b *bench) start(ctx context.Context, starts int) (*kubelet.Process, error) {
	var inKubelet, onNode []time.Duration
	for i := 1; ; i++ {
		began := time.Now()
		process, err := b.machine.Start(b.plugin)
		if err != nil {
			return nil, err
		}
		for _, side := range []struct {
			of    *[]time.Duration
			where *series
		}{{&inKubelet, &b.seen.kubelet}, {&onNode, &b.seen.node}} {
			at, err := side.where.reached(ctx, cards*replicas, began)
			if err != nil {
				return nil, err
			}
			*side.of = append(*side.of, at.Sub(began))
		}
		if i < starts {
			b.plugin.Stop(process)
			for _, where := range []*series{&b.seen.kubelet, &b.seen.node} {
				if _, err := where.reached(ctx, 0, time.Now()); err != nil {
					return nil, err
				}
			}
			continue
		}
		b.result["startKubeletMs"], b.result["startNodeMs"] = median(inKubelet), median(onNode)
		if err := smithytime.SleepWithContext(ctx, 5*time.Second); err != nil {
			return nil, err
		}
		b.result["residentKiB"], err = process.ResidentKiB()
		return process, err
	}
}

// configure applies the i-th configuration and returns the number of replicas that the node then has.
func (b *bench) configure(process *kubelet.Process, i int) (int, error) {
	each := fewer
	if i%2 == 1 {
		each = replicas
	}
	if err := b.machine.Share(each); err != nil {
		return 0, err
	}
	return cards * each, b.plugin.Reload(process)
}

func (b *bench) reload(ctx context.Context, process *kubelet.Process, reloads int) error {
	var inKubelet, onNode []time.Duration
	var zeroKubelet, zeroNode time.Duration
	for i := range reloads {
		began := time.Now()
		want, err := b.configure(process, i)
		if err != nil {
			return err
		}
		at, err := b.seen.kubelet.reached(ctx, want, began)
		if err != nil {
			return err
		}
		inKubelet = append(inKubelet, at.Sub(began))
		if at, err = b.seen.node.reached(ctx, want, began); err != nil {
			return err
		}
		onNode = append(onNode, at.Sub(began))
		// Start the next reload at a different phase of the kubelet's interval.
		if err := smithytime.SleepWithContext(ctx, time.Second+time.Duration(i)*137*time.Millisecond); err != nil {
			return err
		}
		zeroKubelet += b.seen.kubelet.atZero(began, time.Now())
		zeroNode += b.seen.node.atZero(began, time.Now())
	}
	b.result["reloadKubeletMs"], b.result["reloadKubeletMaxMs"] = median(inKubelet), milliseconds(slices.Max(inKubelet))
	b.result["reloadNodeMs"] = median(onNode)
	b.result["reloadZeroKubeletMs"] = milliseconds(zeroKubelet / time.Duration(reloads))
	b.result["reloadZeroNodeMs"] = milliseconds(zeroNode / time.Duration(reloads))
	return nil
}

// churn reloads the plugin while pods come and go. All of them fit with either configuration.
func (b *bench) churn(ctx context.Context, process *kubelet.Process, reloads int) error {
	pods := b.machine.StartChurn(ctx, b.node.Name(), 6)
	for i := range reloads {
		if err := smithytime.SleepWithContext(ctx, 2*time.Second+time.Duration(i)*137*time.Millisecond); err != nil {
			break // Stop waits for the pods.
		}
		if _, err := b.configure(process, i); err != nil {
			break
		}
	}
	pods.Stop()
	for _, failure := range pods.Failures {
		fmt.Fprintln(os.Stderr, " ", failure)
	}
	b.result["podsRan"], b.result["podsFailed"] = pods.Ran, pods.Failed
	return ctx.Err()
}

// event makes one GPU report an XID and counts the replicas that are no longer allocatable.
func (b *bench) event(ctx context.Context) error {
	before := b.seen.kubelet.last()
	began := time.Now()
	if err := b.machine.Change(func(s *nvmltest.State) { s.XIDs = append(s.XIDs, nvmltest.XID{Device: 1, XID: xid}) }); err != nil {
		return err
	}
	// NVIDIA's plugin checks for events every five seconds.
	if err := smithytime.SleepWithContext(ctx, 12*time.Second); err != nil {
		return err
	}
	after := b.seen.kubelet.last()
	b.result["xidUnhealthyPercent"] = float64(100*(before-after)*cards) / float64(before)
	b.result["xidKubeletMs"] = nil
	if after != before {
		at, err := b.seen.kubelet.reached(ctx, after, began)
		if err != nil {
			return err
		}
		b.result["xidKubeletMs"] = milliseconds(at.Sub(began))
	}
	return nil
}

func median(of []time.Duration) float64 {
	slices.Sort(of)
	return milliseconds(of[len(of)/2])
}

func milliseconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}
