package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"karve.sh/karve/pkg/explain"
	"karve.sh/karve/pkg/overview/overviewtest"
)

func TestWhatCannotBeExplained(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                    "error: name one object: pod/NAME, node/NAME or a workload such as deployment/NAME\n",
		"pod/":                "error: name one object: pod/NAME, node/NAME or a workload such as deployment/NAME\n",
		"pod/a/b":             "error: name one object: pod/NAME, node/NAME or a workload such as deployment/NAME\n",
		"pod a b":             "error: name one object: pod/NAME, node/NAME or a workload such as deployment/NAME\n",
		"pod/a -o xml":        "error: --output must be wide, json or yaml, not \"xml\"\n",
		"pod/a --context=not": "error: no cluster is selected: context \"not\" does not exist: select one with --kubeconfig or --context\n",
	} {
		var out, errOut bytes.Buffer
		status := run(t.Context(), append([]string{"explain"}, strings.Fields(args)...), streams{strings.NewReader(""), &out, &errOut})
		if status != 1 || out.Len() > 0 || errOut.String() != want {
			t.Errorf("%q: status %d, %s%s, want %s", args, status, &out, &errOut, want)
		}
	}
}

func TestEveryKindThatMayCreatePodsIsExplained(t *testing.T) {
	t.Parallel()
	flags := clusterFlags()
	flags.KubeConfig = new(serve(t, overviewtest.Example()))
	c, err := reach(flags, "")
	if err != nil {
		t.Fatal(err)
	}
	for typed, want := range map[string]string{
		"Deployment": "Deployment", "CronJob": "CronJob", "nodepool": "NodePool", "nodepools.karpenter.sh": "NodePool", "NodeClaims": "NodeClaim",
		"service": "", "pytorchjob": "", "nodepools.example.com": "",
	} {
		got, err := c.workloadKind(typed)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "is not a kind that can be explained: name a pod, a node, or what creates pods") {
			t.Errorf("%s is %q, %v, want %q", typed, got, err, want)
		}
	}
}

// TestOwnersOfOwnersAreListedOnce asks for the Jobs of a workload among those of others, one of which owns itself.
func TestOwnersOfOwnersAreListedOnce(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := batchv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	job := func(name, kind, owner string) (explain.Owner, *batchv1.Job) {
		j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		j.OwnerReferences = []metav1.OwnerReference{{APIVersion: map[bool]string{true: "batch/v1", false: "example.com/v1"}[kind == "Job"], Kind: kind, Name: owner, Controller: new(true)}}
		return explain.Owner{APIVersion: "batch/v1", Kind: "Job", Name: name}, j
	}
	var all, want []explain.Owner
	var objects []client.Object
	for i := range 50 {
		o, j := job(fmt.Sprint("mine-", i), "JobSet", "sweep")
		other, k := job(fmt.Sprint("other-", i), "JobSet", "other")
		all, want, objects = append(all, o, other), append(want, o), append(objects, j, k)
	}
	through, j := job("through", "Job", "mine-7")
	circle, k := job("circle", "Job", "circle")
	all, want, objects = append(all, through, circle), append(want, through), append(objects, j, k)
	lists := map[string]int{}
	c := connection{Client: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			lists[list.GetObjectKind().GroupVersionKind().Kind]++
			return c.List(ctx, list, options...)
		},
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("one by one")
		},
	})}
	if diff := cmp.Diff(want, c.ownedBy(t.Context(), "JobSet", "team", "sweep", all)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(map[string]int{"JobList": 1, "JobSetList": 1}, lists); diff != "" {
		t.Errorf("lists (-want +got)\n%s", diff)
	}
	clear(lists)
	if got := c.ownedBy(t.Context(), "Job", "team", "through", all); got != nil || len(lists) > 0 {
		t.Errorf("got %v after %v", got, lists)
	}
}

func TestObjectsAreNamedAsInKubectl(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{"pod/a": "pod a", "po/a": "pod a", "pods a": "pod a", "Node/a": "node a", "no a": "node a", "nodeclaim/a": "node a", "deploy/a": "Deployment a", "jobs a": "Job a", "sts/a": "StatefulSet a", "cj/a": "CronJob a", "PyTorchJob/a": "PyTorchJob a"} {
		if kind, name, err := object(strings.Fields(args)); err != nil || kind+" "+name != want {
			t.Errorf("%q is %s %s, %v; want %s", args, kind, name, err, want)
		}
	}
}
