package scale

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// podRecord is a pod that should exist.
type podRecord struct {
	key     client.ObjectKey
	uid     types.UID
	created time.Time
	app     string
	shape   shape
	node    string
	// nominated is the node that the controller nominated for the pod.
	nominated string
	// told is true once the scheduler has found the pod unschedulable.
	told bool
}

func newPod(namespace, name, app string, s shape) *podRecord {
	return &podRecord{key: client.ObjectKey{Namespace: namespace, Name: name}, uid: uuid.NewUUID(), created: time.Now(), app: app, shape: s}
}

// successor returns the pod that a ReplicaSet creates to replace r.
func (w *World) successor(r *podRecord) *podRecord {
	return newPod(r.key.Namespace, fmt.Sprintf("%s-6f4c9d7b58-r%d", r.app, w.serial.Add(1)), r.app, r.shape)
}

// phase tells what the kubelet has reported of a pod.
type phase bool

const (
	waits phase = false
	runs  phase = true
)

// pod returns the object of a pod, as the API server stores it.
func (w *World) pod(r *podRecord, is phase) *corev1.Pod {
	like := w.originals.otherPod
	if r.shape.replicas > 0 {
		like = w.originals.gpuPod
	}
	p := copied(like, r.key.Namespace, r.key.Name)
	p.UID, p.CreationTimestamp = r.uid, metav1.NewTime(r.created)
	p.Labels["app.kubernetes.io/name"], p.Labels["app.kubernetes.io/instance"], p.OwnerReferences[0].Name = r.app, r.app+"-"+p.Namespace, r.app
	p.Spec.Containers[0].Resources, p.Spec.NodeSelector = r.shape.resources(), r.shape.selector()
	p.Spec.NodeName = r.node
	if is == runs {
		p.Status = runningStatus(p, time.Now())
		return p
	}
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable, NominatedNodeName: r.nominated}
	if r.told && r.node == "" {
		p.Status.Conditions = []corev1.PodCondition{unschedulable(time.Now())}
	}
	return p
}

// objects returns the objects of pods.
func (w *World) objects(pods []*podRecord, is phase) []client.Object {
	now := make([]podRecord, len(pods))
	w.mu.Lock()
	for i, r := range pods {
		now[i] = *r
	}
	w.mu.Unlock()
	objects := make([]client.Object, len(pods))
	for i := range now {
		objects[i] = w.pod(&now[i], is)
	}
	return objects
}

// add creates pods. A pod with a node runs at once. A pod without a node waits for the scheduler.
func (w *World) add(ctx context.Context, pods []*podRecord) {
	if !w.insist(ctx, etcd.put, w.objects(pods, waits)) {
		return
	}
	var running []*podRecord
	w.mu.Lock()
	for _, r := range pods {
		w.keep(r)
		if r.node != "" {
			running = append(running, r)
		}
	}
	w.mu.Unlock()
	w.update(ctx, running, runs)
}

// update writes the state of pods, unless they were deleted.
func (w *World) update(ctx context.Context, pods []*podRecord, is phase) {
	w.insist(ctx, etcd.replace, w.objects(pods, is))
}

// finish deletes pods. It removes the records first, so that the scheduler creates no successors.
func (w *World) finish(ctx context.Context, pods []*podRecord) {
	w.mu.Lock()
	for _, r := range pods {
		if w.pods[r.key] == r {
			w.drop(r)
		}
	}
	w.mu.Unlock()
	w.insist(ctx, etcd.remove, w.objects(pods, waits))
}

// insist writes objects until that succeeds, and returns true. It returns false if the context ends first.
func (w *World) insist(ctx context.Context, write func(etcd, context.Context, []client.Object) error, objects []client.Object) bool {
	for {
		err := w.write(ctx, write, objects)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		w.log("%v", err)
		time.Sleep(time.Second)
	}
}
