package gpus

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"karve.sh/karve/test/harness/kubelet"
)

// Churn creates and deletes pods all the time.
type Churn struct {
	// Ran counts the pods that ran. Failed counts those that never did.
	Ran, Failed int
	// Failures are the reasons and messages of failed pods and of failed requests.
	Failures []string
	// Refused counts the pods that the kubelet refused during an absence of the kubelet or the plugin. The scheduler keeps assigning pods to a node that
	// has lost either for a moment, and a kubelet without a plugin refuses them.
	Refused int

	mu sync.Mutex
	// absences counts the absences. absent is true during one.
	absences int
	absent   bool
	stop     context.CancelFunc
	group    sync.WaitGroup
	node     *kubelet.Node
}

// StartChurn starts the given number of workers. Each creates a pod with one replica, waits until it runs or fails, and deletes it. The names begin with
// prefix.
func (m *Machine) StartChurn(ctx context.Context, prefix string, workers int) *Churn {
	ctx, stop := context.WithCancel(ctx)
	c := &Churn{stop: stop, node: m.Node}
	for w := range workers {
		c.group.Go(func() {
			for i, last := 0, false; !last; i++ {
				last = ctx.Err() != nil
				// A pod that was created is followed to its end.
				c.one(context.WithoutCancel(ctx), fmt.Sprintf("%s-%d-%d", prefix, w, i))
			}
		})
	}
	return c
}

// Absence runs during, in which the kubelet or the plugin stops and comes back.
func (c *Churn) Absence(during func()) {
	set := func(absent bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.absent = absent
		if absent {
			c.absences++
		}
	}
	set(true)
	defer set(false)
	during()
}

// ended returns the number of absences that are over.
func (c *Churn) ended() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.absent {
		return c.absences - 1
	}
	return c.absences
}

// Stop creates one more pod for each worker and waits until the last pods are deleted. So pods have also run after the last absence, however slow the machine is.
func (c *Churn) Stop() {
	c.stop()
	c.group.Wait()
}

func (c *Churn) one(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	pods := c.node.Client().CoreV1().Pods(c.node.Namespace())
	pod := c.node.Pod(name, Resource, 1)
	// Such a pod fails only if the kubelet refuses it. If the kubelet stops while it starts a container (containerd reports StartError, context
	// canceled), the container is restarted, as with any workload that has a controller.
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	before := c.ended()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		c.count(false, false, err.Error())
		return
	}
	failure, refused := "", false
	for failure == "" {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil:
			failure = err.Error()
			continue
		case pod.Status.Phase == corev1.PodFailed:
			failure = fmt.Sprintf("%s: %s: %s", name, pod.Status.Reason, pod.Status.Message)
			refused = pod.Status.Reason == "UnexpectedAdmissionError"
			continue
		}
		if pod.Status.Phase == corev1.PodRunning {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.count(failure == "", refused && c.begun() > before, failure)
	_ = pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})
	for ctx.Err() == nil {
		if _, err := pods.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// begun returns the number of absences that have begun.
func (c *Churn) begun() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.absences
}

func (c *Churn) count(ran, absent bool, failure string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ran:
		c.Ran++
		return
	case absent:
		c.Refused++
		return
	}
	c.Failed++
	c.Failures = append(c.Failures, failure)
}
