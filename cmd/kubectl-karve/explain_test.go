package main

import (
	"bytes"
	"strings"
	"testing"

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
		got, err := c.owner(typed)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "is not a kind that can be explained: name a pod, a node, or what creates pods") {
			t.Errorf("%s is %q, %v, want %q", typed, got, err, want)
		}
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
