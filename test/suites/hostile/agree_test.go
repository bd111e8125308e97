package hostile_test

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/hostile"
)

var apiServer *cluster.Cluster

func TestMain(m *testing.M) { os.Exit(cluster.RunWithAPIServer(m, &apiServer)) }

// compared is how many objects are sent to the API server.
const compared = 300

// TestAPIServerAgreesWithTheValidator sends objects with bad values to a real API server. It must accept what the validator accepts, and reject what it rejects.
func TestAPIServerAgreesWithTheValidator(t *testing.T) {
	cluster.Require(t)
	v := validator(t, 3*time.Second)
	config := apiServer.RESTConfig()
	config.WarningHandlerWithContext = rest.NoWarnings{}
	api, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	const namespace = hostile.Namespace
	for _, o := range []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}} {
		if err := api.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	accepted := 0
	for seed := range uint64(compared) {
		g := hostile.New("t", seed)
		a := &attack{seed: seed, objects: g.Tenant(), copies: 1}
		a.bad = g.Below(len(a.objects))
		for _, e := range g.Edits(a.objects[a.bad]) {
			a.edits = append(a.edits, e)
		}
		o := a.written(0, 8)[a.bad]
		_, refused := v.Create(o)
		if refused != nil && strings.Contains(refused.Error(), "does not answer") {
			continue // The API server would not answer soon either.
		}
		err := api.Create(t.Context(), o, client.DryRunAll)
		if err == nil && refused == nil {
			accepted++
		}
		if (err == nil) != (refused == nil) {
			t.Errorf("%s\nthe API server says: %.1000v\nthe validator says: %.1000v", a, err, refused)
		}
	}
	t.Logf("both accept %d of %d objects", accepted, compared)
}
