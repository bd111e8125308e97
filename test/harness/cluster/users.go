package cluster

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const adminGroup = "system:masters"

// Kubeconfig returns the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// RESTConfig returns a copy of the administrator's configuration, without client-side rate limits.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// KubeconfigFor returns the path of a kubeconfig for a user with the permissions that RBAC grants to the user and the groups. A service account has the
// name that the API server uses, system:serviceaccount:<namespace>:<name>, and belongs to the groups of service accounts.
func (c *Cluster) KubeconfigFor(user string, groups ...string) (string, error) {
	if account, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(account, ":")
		groups = append(groups, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	file := strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/\: `, r) {
			return '-'
		}
		return r
	}, strings.Join(append([]string{user}, groups...), "+"))
	path := filepath.Join(c.dir, "users", file+".kubeconfig")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("writing a kubeconfig for %s: %w", user, err)
	}
	if err := c.writeKubeconfig(path, user, groups...); err != nil {
		return "", err
	}
	return path, nil
}

// writeKubeconfig authenticates users by client certificates. Unlike with a token file, the users need not be known when the API server starts.
func (c *Cluster) writeKubeconfig(path, user string, groups ...string) error {
	cert, key, err := c.authority.issue(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	// The API server is on the same machine. To compress 50,000 pods for a client takes it three seconds of processor time.
	config.Clusters["karve"] = &clientcmdapi.Cluster{Server: c.url, CertificateAuthorityData: c.authority.pem, DisableCompression: true}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["karve"] = &clientcmdapi.Context{Cluster: "karve", AuthInfo: user}
	config.CurrentContext = "karve"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing a kubeconfig for %s: %w", user, err)
	}
	return nil
}

func (c *Cluster) writeAdmin() error {
	if err := c.writeKubeconfig(c.Kubeconfig(), "admin", adminGroup); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.QPS = -1
	c.admin = config
	return nil
}
