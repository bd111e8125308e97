package plan

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"karve.sh/karve/pkg/doctor"
	"karve.sh/karve/test/harness/chart"
)

// viewers asks kubectl what those may do who are bound to the chart's ClusterRole for viewers, and to Kubernetes' own.
func (w *world) viewers(t *testing.T) {
	objects, err := chart.Chart{Name: "karve", Release: "karve", Namespace: namespaces.Controller}.Template(t.Context(), "--set=controller.image.repository=controller,node.image.repository=node")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects.Kind("ClusterRole") {
		if !strings.HasPrefix(o.GetName(), "karve-view") {
			continue
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "role.json")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		w.does(t, "apply", "-f", file)
	}
	w.does(t, "create", "clusterrolebinding", "karve-viewers", "--clusterrole=karve-viewer", "--group=viewers")
	w.does(t, "create", "clusterrolebinding", "views", "--clusterrole=view", "--group=views")
	may := func(group string, r doctor.Right) bool {
		what := r.Resource
		if r.Group != "" {
			what += "." + r.Group
		}
		resource, sub, _ := strings.Cut(r.Resource, "/")
		if sub != "" {
			what = strings.Replace(what, r.Resource, resource, 1)
		}
		args := []string{"auth", "can-i", r.Verb, what, "--subresource=" + sub, "--as=somebody", "--as-group=" + group}
		if r.Name != "" {
			args[3] += "/" + r.Name
		}
		if r.Namespace == "" {
			args = append(args, "--all-namespaces")
		} else {
			args = append(args, "--namespace="+r.Namespace)
		}
		_, _, ok := w.kubectl(t, w.cluster.Kubeconfig(), args...)
		return ok
	}
	own := doctor.Right{Verb: "watch", Group: "karve.sh", Resource: "gpuimagerollouts"}
	if err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return may("views", own) && may("viewers", own), nil // Roles are aggregated after a moment.
	}); err != nil {
		t.Fatalf("who may view may not %s: %v", own, err)
	}
	if nodes := (doctor.Right{Verb: "list", Resource: "nodes"}); may("views", nodes) {
		t.Errorf("the ClusterRole view may now %s", nodes)
	}
	for _, r := range doctor.UserRights(namespaces) {
		if w.served(r.Right) && may("viewers", r.Right) == r.Apart {
			t.Errorf("a viewer may %s: %t", r, !r.Apart)
		}
	}
}
