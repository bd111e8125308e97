package reconcile

import (
	"testing"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/snapshot/snapshottest"
)

// wantHealth checks how Flux (kstatus) and Argo CD (its script in examples) judge a GPUNodeClass.
func (w *world) wantHealth(name string, flux status.Status, argo string) {
	w.t.Helper()
	o := &unstructured.Unstructured{}
	o.SetAPIVersion(v1alpha1.Group + "/v1alpha1")
	o.SetKind(v1alpha1.Kind)
	if err := w.Get(w.t.Context(), client.ObjectKey{Name: name}, o); err != nil {
		w.t.Fatal(err)
	}
	judged, err := status.Compute(o)
	if err != nil || judged.Status != flux {
		w.t.Errorf("kstatus says of %s %+v, %v; want %s", name, judged, err, flux)
	}
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", toLua(l, o.Object))
	script, err := l.LoadFile("../../../examples/integrations/argocd-health.lua")
	if err != nil {
		w.t.Fatal(err)
	}
	l.Push(script)
	if err := l.PCall(0, 1, nil); err != nil {
		w.t.Fatal(err)
	}
	if got := l.GetField(l.Get(-1), "status").String(); got != argo {
		w.t.Errorf("Argo CD says of %s %s (%s), want %s", name, got, l.GetField(l.Get(-1), "message"), argo)
	}
}

func toLua(l *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case map[string]any:
		table := l.NewTable()
		for key, field := range value {
			table.RawSetString(key, toLua(l, field))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, item := range value {
			table.Append(toLua(l, item))
		}
		return table
	case string:
		return lua.LString(value)
	case bool:
		return lua.LBool(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	}
	return lua.LNil
}

func TestToolsJudgeAGPUNodeClassByItsLatestGeneration(t *testing.T) {
	w := newWorld(t)
	w.shared("health")
	controller := w.poolController()
	w.wantHealth("health", status.CurrentStatus, "Progressing") // Without any status, kstatus assumes that there is nothing to wait for.
	w.reconciles(controller, "")
	w.wantHealth("health", status.CurrentStatus, "Healthy")

	class := &v1alpha1.GPUNodeClass{}
	class.Name = "health"
	w.read(class)
	class.Spec.Consolidation.IdleAfter = "7m"
	if err := w.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	w.wantHealth("health", status.InProgressStatus, "Progressing")
	w.reconcilesPools(controller)
	w.wantHealth("health", status.CurrentStatus, "Healthy")

	lost := snapshottest.Class("lost", 10)
	lost.Spec.NodeClassRef.Name = "missing"
	if err := w.Create(t.Context(), &lost); err != nil {
		t.Fatal(err)
	}
	w.reconcilesPools(controller)
	w.wantHealth("lost", status.InProgressStatus, "Progressing")
}
