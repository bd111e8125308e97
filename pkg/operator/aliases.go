package operator

import (
	"crypto/tls"
	"errors"
	"fmt"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	aliases "karve.sh/karve/pkg/memoryalias/webhook"
	"karve.sh/karve/pkg/servingcert"
)

const (
	// aliasesName is the name of the webhook's Secret, Service and MutatingWebhookConfiguration in the chart.
	aliasesName = "karve-memory-aliases"
	aliasesPath = "/memory-aliases"
)

// serveAliases serves the webhook for pods of gpushare and HAMi in every replica, if the chart enables it. A replica is ready once it serves the webhook.
func serveAliases(m ctrl.Manager, o Options) error {
	if !o.MemoryAliases.Enabled() {
		return nil
	}
	namespace := o.namespace()
	if namespace == "" {
		return errors.New("--memory-aliases needs --leader-election-namespace outside of a cluster")
	}
	keeper := servingcert.New(servingcert.Config{
		Client: m.GetClient(), Live: m.GetAPIReader(), Clock: clock.RealClock{}, Owner: leaseName,
		Secret: client.ObjectKey{Namespace: namespace, Name: aliasesName}, Webhooks: aliasesName, Host: aliasesName + "." + namespace + ".svc",
	})
	server := webhook.NewServer(webhook.Options{Port: o.MemoryAliases.Port, TLSOpts: []func(*tls.Config){func(c *tls.Config) {
		c.GetCertificate, c.MinVersion = keeper.GetCertificate, tls.VersionTLS13
	}}})
	server.Register(aliasesPath, aliases.New(&aliases.Handler{Options: o.MemoryAliases, Classes: m.GetClient()}))
	if err := errors.Join(m.Add(keeper), m.Add(server)); err != nil {
		return fmt.Errorf("adding the webhook: %w", err)
	}
	return m.AddReadyzCheck("webhook", server.StartedChecker())
}
