// Package servingcert keeps the certificate of an admission webhook. The replicas share it in a Secret, each of them replaces it before it expires, and each writes
// its CA to the MutatingWebhookConfiguration. Nothing needs a restart: a replica that reads a new certificate serves it for the next connection.
package servingcert

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// every is the interval at which the Secret and the configuration are read. It bounds how long the webhook is away after somebody resets one of them.
const every = 10 * time.Second

// Config configures a Keeper.
type Config struct {
	// Client writes the objects, and Live reads them from the API server: informers would need the rights to list them.
	Client client.Writer
	Live   client.Reader
	Clock  clock.WithTicker
	// Secret is the Secret with the certificate. It exists, and may be empty.
	Secret client.ObjectKey
	// Webhooks is the name of the MutatingWebhookConfiguration.
	Webhooks string
	// Host is the DNS name of the webhook's Service.
	Host string
	// Owner is the field manager of the writes.
	Owner client.FieldOwner
}

// Keeper keeps a certificate. It is a Runnable of the manager.
type Keeper struct {
	config  Config
	serving atomic.Pointer[tls.Certificate]
	problem string
}

// New returns a Keeper.
func New(config Config) *Keeper { return &Keeper{config: config} }

// NeedLeaderElection returns false, because every replica serves the webhook.
func (k *Keeper) NeedLeaderElection() bool { return false }

// GetCertificate returns the certificate for a connection, for [tls.Config].
func (k *Keeper) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := k.serving.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("the certificate was not read yet")
}

// Start keeps the certificate until the context ends. It logs failures once and retries.
func (k *Keeper) Start(ctx context.Context) error {
	ticker := k.config.Clock.NewTicker(every)
	defer ticker.Stop()
	for {
		problem := ""
		if err := k.Keep(ctx); err != nil && ctx.Err() == nil {
			problem = err.Error()
		}
		if problem != "" && problem != k.problem {
			log.FromContext(ctx).Info("The certificate of the webhook is not kept", "error", problem)
		}
		k.problem = problem
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Keep reads the certificate, replaces it if necessary, and writes its CA to the configuration.
func (k *Keeper) Keep(ctx context.Context) error {
	var s state
	// Of replicas that replace the certificate at the same time, one succeeds and the others read what it has written.
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) { s, err = k.read(ctx); return err }); err != nil {
		return err
	}
	k.serving.Store(s.serving(k.config.Clock.Now()))
	return k.publish(ctx, s.bundle())
}

// +kubebuilder:rbac:feature=memory-aliases,groups="",namespace=karve-system,resources=secrets,resourceNames=karve-memory-aliases,verbs=get;update
// +kubebuilder:rbac:feature=memory-aliases,groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=karve-memory-aliases,verbs=get;patch

// read returns the state of the Secret after it has replaced a stale certificate.
func (k *Keeper) read(ctx context.Context) (state, error) {
	var secret corev1.Secret
	if err := k.config.Live.Get(ctx, k.config.Secret, &secret); err != nil {
		return state{}, fmt.Errorf("reading Secret %s: %w", k.config.Secret, err)
	}
	now := k.config.Clock.Now()
	s := stateOf(&secret, k.config.Host, now)
	if !s.stale(now) {
		return s, nil
	}
	if err := renew(&secret, s, k.config.Host); err != nil {
		return state{}, err
	}
	if err := k.config.Client.Update(ctx, &secret, k.config.Owner); err != nil {
		return state{}, fmt.Errorf("writing Secret %s: %w", k.config.Secret, err)
	}
	s = stateOf(&secret, k.config.Host, k.config.Clock.Now())
	if !s.newest.exists() {
		return state{}, fmt.Errorf("the new certificate in Secret %s is not valid now", k.config.Secret)
	}
	log.FromContext(ctx).Info("Replaced the certificate of the webhook", "until", s.newest.certificate.Leaf.NotAfter)
	return s, nil
}

// publish writes the CAs to the configuration if it has others.
func (k *Keeper) publish(ctx context.Context, bundle []byte) error {
	var old admissionv1.MutatingWebhookConfiguration
	if err := k.config.Live.Get(ctx, client.ObjectKey{Name: k.config.Webhooks}, &old); err != nil {
		return fmt.Errorf("reading MutatingWebhookConfiguration %s: %w", k.config.Webhooks, err)
	}
	changed, wanted := false, old.DeepCopy()
	for i := range wanted.Webhooks {
		if c := &wanted.Webhooks[i].ClientConfig; !bytes.Equal(c.CABundle, bundle) {
			c.CABundle, changed = bundle, true
		}
	}
	if !changed {
		return nil
	}
	if err := k.config.Client.Patch(ctx, wanted, client.StrategicMergeFrom(&old), k.config.Owner); err != nil {
		return fmt.Errorf("writing MutatingWebhookConfiguration %s: %w", k.config.Webhooks, err)
	}
	return nil
}
