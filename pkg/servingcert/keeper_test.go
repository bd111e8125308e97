package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

const host = "webhook.karve-system.svc"

// world has a Secret and two webhooks, as the chart makes them.
type world struct{ client.Client }

func newWorld() world {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "karve-system", Name: "webhook"}}
	webhooks := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "webhook"}, Webhooks: []admissionv1.MutatingWebhook{
		{Name: "a.karve.sh", TimeoutSeconds: new(int32(2)), ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "karve-system", Name: "webhook"}}},
		{Name: "b.karve.sh", ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte("another")}},
	}}
	return world{fake.NewClientBuilder().WithObjects(secret, webhooks).Build()}
}

func (w world) keeper() *Keeper {
	return New(Config{Client: w, Live: w, Clock: clock.RealClock{}, Secret: client.ObjectKey{Namespace: "karve-system", Name: "webhook"}, Webhooks: "webhook", Host: host, Owner: "karve"})
}

func (w world) secret(t *testing.T) *corev1.Secret {
	t.Helper()
	var s corev1.Secret
	if err := w.Get(t.Context(), client.ObjectKey{Namespace: "karve-system", Name: "webhook"}, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (w world) webhooks(t *testing.T) *admissionv1.MutatingWebhookConfiguration {
	t.Helper()
	var c admissionv1.MutatingWebhookConfiguration
	if err := w.Get(t.Context(), client.ObjectKey{Name: "webhook"}, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func keep(t *testing.T, k *Keeper) {
	t.Helper()
	if err := k.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// served returns what a replica serves, after checking that the API server trusts it.
func (w world) served(t *testing.T, k *Keeper) *x509.Certificate {
	t.Helper()
	c, err := k.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, webhook := range w.webhooks(t).Webhooks {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(webhook.ClientConfig.CABundle) {
			t.Fatalf("%s has no CA", webhook.Name)
		}
		if _, err := c.Leaf.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Fatalf("%s: %v", webhook.Name, err)
		}
	}
	return c.Leaf
}

func TestReplicasThatStartTogetherServeOneCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld()
	replicas := []*Keeper{w.keeper(), w.keeper(), w.keeper(), w.keeper()}
	if _, err := replicas[0].GetCertificate(nil); err == nil {
		t.Error("there is a certificate before it was read")
	}
	var wg sync.WaitGroup
	for _, k := range replicas {
		wg.Go(func() {
			if err := k.Keep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	first := w.served(t, replicas[0])
	for _, k := range replicas {
		if !w.served(t, k).Equal(first) {
			t.Error("two replicas serve different certificates")
		}
	}
}

// TestReplacedCertificateIsTrustedAllTheTime follows two replicas that read the Secret at different times through two replacements.
func TestReplacedCertificateIsTrustedAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		a, b := w.keeper(), w.keeper()
		keep(t, a)
		keep(t, b)
		var all []*x509.Certificate
		for end := time.Now().Add(600 * 24 * time.Hour); time.Now().Before(end); {
			step := 12 * time.Hour
			if leaf := stateOf(w.secret(t), host, time.Now()).newest.certificate.Leaf; time.Since(leaf.NotBefore) < 4*time.Hour || time.Until(leaf.NotAfter) < renewal+12*time.Hour {
				step = 25 * time.Minute
			}
			time.Sleep(step)
			keep(t, a)
			w.served(t, b) // It has not read the Secret again.
			time.Sleep(every)
			w.served(t, a)
			keep(t, b)
			if c := w.served(t, b); !slices.ContainsFunc(all, c.Equal) {
				all = append(all, c)
			}
		}
		if len(all) != 3 {
			t.Errorf("%d certificates were served in 600 days, want 3", len(all))
		}
		if n := bytes.Count(w.webhooks(t).Webhooks[0].ClientConfig.CABundle, []byte("BEGIN CERTIFICATE")); n > 2 {
			t.Errorf("the bundle has %d CAs", n)
		}
	})
}

func TestWhatOthersDamageIsRepaired(t *testing.T) {
	t.Parallel()
	w := newWorld()
	k := w.keeper()
	keep(t, k)
	first := w.served(t, k)

	c := w.webhooks(t)
	c.Webhooks[0].ClientConfig.CABundle = nil
	if err := w.Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	keep(t, k)
	if !w.served(t, k).Equal(first) {
		t.Error("the certificate was replaced")
	}
	if h := w.webhooks(t).Webhooks[0]; *h.TimeoutSeconds != 2 || h.ClientConfig.Service == nil || h.ClientConfig.Service.Name != "webhook" {
		t.Errorf("the webhook is %+v", h)
	}
	for what, data := range map[string]map[string][]byte{
		"empty":         nil,
		"no PEM":        {newestCertificate: []byte("a"), newestKey: []byte("b"), previousCertificate: []byte("c")},
		"another's key": {newestCertificate: w.secret(t).Data[newestCertificate], newestKey: other(t)[newestKey]},
		"another host":  other(t),
	} {
		s := w.secret(t)
		s.Data = data
		if err := w.Update(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		keep(t, k)
		if w.served(t, k).Equal(first) {
			t.Errorf("%s: the certificate is the same", what)
		}
	}
}

// other returns the data of a Secret for another host.
func other(t *testing.T) map[string][]byte {
	t.Helper()
	var s corev1.Secret
	if err := renew(&s, state{}, "other.svc"); err != nil {
		t.Fatal(err)
	}
	return s.Data
}

func TestMissingObjectsAreErrors(t *testing.T) {
	t.Parallel()
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "karve-system", Name: "webhook"}},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "webhook"}},
	} {
		w := newWorld()
		if err := w.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if err := w.keeper().Keep(t.Context()); err == nil || !strings.Contains(err.Error(), "webhook") {
			t.Errorf("without %T: %v", o, err)
		}
	}
}

func TestKeeperRunsUntilContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s := w.secret(t)
		if err := w.Delete(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		k := w.keeper()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- k.Start(ctx) }()
		time.Sleep(3 * every)
		s.ResourceVersion = ""
		if err := w.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		time.Sleep(every + time.Second)
		w.served(t, k)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
