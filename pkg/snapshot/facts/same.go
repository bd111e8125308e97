package facts

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"

	"karve.sh/karve/pkg/amount"
)

// Same reports whether two versions of an object are equal as far as decisions are concerned, such as those of a Node before and after a heartbeat. The
// objects are pointers of one type.
func Same(a, b metav1.Object) bool {
	return semantic.DeepEqual(withoutVersion(a), withoutVersion(b))
}

// semantic is the equality of the API machinery, which compares quantities by value, with quantities that a tenant wrote compared in bounded time.
var semantic = func() conversion.Equalities {
	e := equality.Semantic.Copy()
	_ = e.AddFunc(amount.Equal) // It fails only for functions of another form.
	return e
}()

// withoutVersion returns a copy of an object without its resource version, managed fields and heartbeat times.
func withoutVersion(o metav1.Object) metav1.Object {
	value := reflect.New(reflect.TypeOf(o).Elem())
	value.Elem().Set(reflect.ValueOf(o).Elem())
	same, _ := reflect.TypeAssert[metav1.Object](value)
	if node, ok := same.(*corev1.Node); ok {
		node.Status.Conditions = slices.Clone(node.Status.Conditions)
		for i := range node.Status.Conditions {
			node.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	same.SetResourceVersion("")
	same.SetManagedFields(nil)
	return same
}

// differ reports whether two versions of an object differ as far as decisions are concerned. Nil means that there is no object.
func differ[T any, P interface {
	*T
	metav1.Object
}](before, after P) bool {
	if before == nil || after == nil {
		return before != after
	}
	return before != after && !Same(before, after)
}
