package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countedLists answers lists of pods with one pod and those of nodes with an error, and counts the requests.
type countedLists struct {
	client.Reader
	requests atomic.Int32
}

func (c *countedLists) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	c.requests.Add(1)
	if pods, ok := list.(*corev1.PodList); ok {
		pods.Items = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: (&client.ListOptions{}).ApplyOptions(options).Namespace}}}
		return nil
	}
	return errors.New("no rights")
}

func TestListsThatWereRequestedAheadAreReadOnce(t *testing.T) {
	t.Parallel()
	from := &countedLists{}
	a := &ahead{Reader: from}
	a.request(t.Context(), from, &corev1.PodList{})
	a.request(t.Context(), from, &corev1.NodeList{})
	for range 2 {
		var pods corev1.PodList
		if err := a.List(t.Context(), &pods); err != nil || len(pods.Items) != 1 {
			t.Errorf("%d pods, %v", len(pods.Items), err)
		}
		var nodes corev1.NodeList
		if err := a.List(t.Context(), &nodes); err == nil || !strings.Contains(err.Error(), "listing objects of kind Node: no rights") {
			t.Errorf("nodes: %v", err)
		}
	}
	if n := from.requests.Load(); n != 2 {
		t.Errorf("%d requests for two lists", n)
	}
	if err := a.wait(); err == nil || strings.Contains(err.Error(), "Pod") {
		t.Errorf("all lists together: %v", err)
	}
	var pods corev1.PodList
	if err := a.List(t.Context(), &pods, client.InNamespace("team")); err != nil || pods.Items[0].Namespace != "team" || from.requests.Load() != 3 {
		t.Errorf("a part of a list: %v, %v", pods.Items, err)
	}
}
