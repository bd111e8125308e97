package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"karve.sh/karve/pkg/controllers/gather"
	"karve.sh/karve/pkg/overview"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// TestNothingIsOmittedThatDecisionsRead compares what the controller keeps of objects with what it would keep of those that lack the omitted fields.
func TestNothingIsOmittedThatDecisionsRead(t *testing.T) {
	t.Parallel()
	trim := gather.Trim()
	compare := func(name string, whole, part any) {
		a, err := trim(whole)
		if err != nil {
			t.Fatal(err)
		}
		b, err := trim(part)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Errorf("%s (-whole +part):\n%s", name, diff)
		}
	}
	cluster := snapshottest.Large(20)
	ended := &cluster.Pods[0]
	ended.Status.Phase = corev1.PodSucceeded
	ended.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: ended.CreationTimestamp}}}}
	cluster.Pods[1].Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
	}
	cluster.Pods[2].Spec.InitContainers = []corev1.Container{{Name: "sidecar", Image: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{HostPort: 80}}}}
	before, after := 0, 0
	for i := range cluster.Pods {
		pod := &cluster.Pods[i]
		message, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		less, err := ofPods.from(nil, message)
		if err != nil {
			t.Fatal(err)
		}
		before, after = before+len(message), after+len(less)
		part := &corev1.Pod{}
		if err := part.Unmarshal(less); err != nil {
			t.Fatal(err)
		}
		if overview.Concerns(pod) && !concerns(message) {
			t.Errorf("an overview would not show pod %s", pod.Name)
		}
		compare("pod "+pod.Name, pod, part)
	}
	if after > before*3/4 {
		t.Errorf("%d of %d bytes of pods are left", after, before)
	}
	for i := range cluster.Nodes {
		node := &cluster.Nodes[i]
		message, err := node.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		less, err := ofNodes.from(nil, message)
		if err != nil {
			t.Fatal(err)
		}
		part := &corev1.Node{}
		if err := part.Unmarshal(less); err != nil {
			t.Fatal(err)
		}
		compare("node "+node.Name, node, part)
	}
}

func TestAnAnswerThatIsNoListOfPodsIsAnError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status     int
		body, want string
	}{
		"forbidden":    {http.StatusForbidden, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "you may not list pods", "code": 403}`, "you may not list pods"},
		"JSON":         {http.StatusOK, `{"kind": "PodList", "apiVersion": "v1"}`, "the API server does not answer in protobuf"},
		"cut":          {http.StatusOK, "k8s\x00\x12\x05\x12", "decoding pods: unexpected EOF"},
		"a cut object": {http.StatusOK, "k8s\x00\x12\x04\x12\x02\x0a\x05", "decoding pods: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body)) // The client reports what is missing.
			}))
			t.Cleanup(server.Close)
			api, err := apiutil.RESTClientForGVK(corev1.SchemeGroupVersion.WithKind("Pod"), false, false, &rest.Config{Host: server.URL}, scheme.Codecs, server.Client())
			if err != nil {
				t.Fatal(err)
			}
			err = each(t.Context(), api, "pods", ofPods, nil, func(*corev1.Pod) {})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func FuzzOmittedFields(f *testing.F) {
	cluster := snapshottest.Large(2)
	for i := range cluster.Pods {
		message, err := cluster.Pods[i].Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		less, err := ofPods.from(nil, message)
		if err != nil {
			return
		}
		if again, err := ofPods.from(nil, less); err != nil || !bytes.Equal(again, less) {
			t.Errorf("%x becomes %x, and that becomes %x: %v", message, less, again, err)
		}
	})
}

// pagesOf returns the objects of a page.
func pagesOf(page []byte) (messages [][]byte, next string, err error) {
	batches := make(chan *batch)
	go func() {
		defer close(batches)
		next, err = readPage(context.Background(), bytes.NewReader(page), batches)
	}()
	for b := range batches {
		for _, m := range b.messages {
			messages = append(messages, bytes.Clone(m))
		}
		batchPool.Put(b)
	}
	return messages, next, err
}

func TestAPageHasTheObjectsOfTheList(t *testing.T) {
	t.Parallel()
	large := snapshottest.Pod("large")
	large.Annotations = map[string]string{"text": strings.Repeat("x", 3*batchBytes)}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: append(snapshottest.Large(200).Pods, large)}
	var page bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &page); err != nil {
		t.Fatal(err)
	}
	messages, next, err := pagesOf(page.Bytes())
	if err != nil || next != "more" || len(messages) != len(list.Items) {
		t.Fatalf("%d of %d objects, %q, %v", len(messages), len(list.Items), next, err)
	}
	for i, message := range messages {
		want, err := list.Items[i].Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(message, want) {
			t.Fatalf("object %d is %.300q, want %.300q", i, message, want)
		}
	}
	for _, cut := range []int{4, 5, 100, page.Len() / 2, page.Len() - 1000} {
		if messages, next, err := pagesOf(page.Bytes()[:cut]); cut > 4 && err == nil {
			t.Errorf("of %d bytes: %d objects, %q", cut, len(messages), next)
		}
	}
}

func FuzzPages(f *testing.F) {
	for _, items := range [][]corev1.Pod{nil, snapshottest.Large(2).Pods} {
		var page bytes.Buffer
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(&corev1.PodList{Items: items}, &page); err != nil {
			f.Fatal(err)
		}
		f.Add(page.Bytes())
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		messages, _, _ := pagesOf(page)
		size := 0
		for _, m := range messages {
			size += len(m)
		}
		if size > len(page) {
			t.Errorf("a page of %d bytes has objects of %d", len(page), size)
		}
	})
}
