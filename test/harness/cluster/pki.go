package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of the API server and of its users. It uses elliptic curves, because generating RSA keys would take much of the time
// that an API server needs to start.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

const certificateLife = 7 * 24 * time.Hour

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the authority's key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "karve-cluster"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(certificateLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the authority's certificate: %w", err)
	}
	return &authority{key: key, cert: cert, pem: encode("CERTIFICATE", der)}, nil
}

// issue creates a key and a certificate, both PEM-encoded.
func (a *authority) issue(subject pkix.Name, usage x509.ExtKeyUsage) (cert, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key for %s: %w", subject.CommonName, err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate for %s: %w", subject.CommonName, err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	if usage == x509.ExtKeyUsageServerAuth {
		template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		template.IPAddresses = []net.IP{net.ParseIP(loopback)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, k.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("making a certificate for %s: %w", subject.CommonName, err)
	}
	key, err = privateKey(k)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), key, nil
}

// pkiFiles are the paths of the files that the API server and the controller-manager read.
type pkiFiles struct{ ca, cert, key, serviceAccount string }

// ServingCertificate returns the paths of a certificate for servers on loopback and of its key. The CA of RESTConfig signed it.
func (c *Cluster) ServingCertificate() (cert, key string) { return c.pki.cert, c.pki.key }

func (a *authority) write(dir string) (pkiFiles, error) {
	files := pkiFiles{
		ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "apiserver.crt"),
		key: filepath.Join(dir, "apiserver.key"), serviceAccount: filepath.Join(dir, "service-account.key"),
	}
	cert, key, err := a.issue(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return files, err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return files, fmt.Errorf("making the key of service account tokens: %w", err)
	}
	tokenKey, err := privateKey(tokens)
	if err != nil {
		return files, err
	}
	for path, content := range map[string][]byte{files.ca: a.pem, files.cert: cert, files.key: key, files.serviceAccount: tokenKey} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return files, fmt.Errorf("writing keys: %w", err)
		}
	}
	return files, nil
}

func privateKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
