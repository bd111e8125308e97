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

	"karve.sh/karve/pkg/gather"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// compareTrimmed compares what the controller keeps of two objects.
func compareTrimmed(t *testing.T, name string, whole, part any) {
	t.Helper()
	trim := gather.Trim()
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
			err = bulk{api: api, pods: []selection{allPods}}.List(t.Context(), &corev1.PodList{})
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

// objectsIn returns the encoded objects of an encoded list.
func objectsIn(list []byte) (messages [][]byte, err error) {
	batches := make(chan *batch)
	go func() {
		defer close(batches)
		err = readObjects(context.Background(), bytes.NewReader(list), batches)
	}()
	for b := range batches {
		for _, m := range b.messages {
			messages = append(messages, bytes.Clone(m))
		}
		batchPool.Put(b)
	}
	return messages, err
}

func encoded(tb testing.TB, list *corev1.PodList) []byte {
	tb.Helper()
	var out bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(list, &out); err != nil {
		tb.Fatal(err)
	}
	return out.Bytes()
}

func TestAnEncodedListHasTheObjectsOfTheList(t *testing.T) {
	t.Parallel()
	large := snapshottest.Pod("large")
	large.Annotations = map[string]string{"text": strings.Repeat("x", 3*batchBytes)}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: append(snapshottest.Large(200).Pods, large)}
	answer := encoded(t, list)
	messages, err := objectsIn(answer)
	if err != nil || len(messages) != len(list.Items) {
		t.Fatalf("%d of %d objects, %v", len(messages), len(list.Items), err)
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
	for _, cut := range []int{4, 5, 100, len(answer) / 2, len(answer) - 1000} {
		if messages, err := objectsIn(answer[:cut]); cut > 4 && err == nil {
			t.Errorf("of %d bytes: %d objects", cut, len(messages))
		}
	}
}

func FuzzEncodedLists(f *testing.F) {
	for _, items := range [][]corev1.Pod{nil, snapshottest.Large(2).Pods} {
		f.Add(encoded(f, &corev1.PodList{Items: items}))
	}
	f.Fuzz(func(t *testing.T, list []byte) {
		messages, _ := objectsIn(list)
		size := 0
		for _, m := range messages {
			size += len(m)
		}
		if size > len(list) {
			t.Errorf("a list of %d bytes has objects of %d", len(list), size)
		}
	})
}
