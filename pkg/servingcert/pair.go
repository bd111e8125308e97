package servingcert

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

// The keys of the Secret. The previous certificate is served until the API server has had time to read the CA of the newest one.
const (
	newestCertificate, newestKey     = corev1.TLSCertKey, corev1.TLSPrivateKeyKey
	previousCertificate, previousKey = "previous.crt", "previous.key"
)

const (
	lifetime = 365 * 24 * time.Hour
	// renewal is the rest of its lifetime at which a certificate is replaced.
	renewal = lifetime / 4
	// backdated is the age of a new certificate, for clocks that differ.
	backdated = time.Hour
	// handover is how long the previous certificate is served after a new one was stored.
	handover = time.Hour
)

// pair is a certificate with its key. The zero value is no certificate.
type pair struct {
	certificate tls.Certificate
	// ca is the certificate of its CA in PEM.
	ca []byte
}

// read returns a pair of the Secret, or the zero value if there is none that is valid for the host now.
func read(data map[string][]byte, certificate, key, host string, now time.Time) pair {
	c, err := tls.X509KeyPair(data[certificate], data[key])
	if err != nil || c.Leaf == nil || c.Leaf.VerifyHostname(host) != nil || now.Before(c.Leaf.NotBefore) || !now.Before(c.Leaf.NotAfter) {
		return pair{}
	}
	ca := c.Certificate[len(c.Certificate)-1]
	return pair{certificate: c, ca: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: ca})}
}

func (p pair) exists() bool { return p.certificate.Leaf != nil }

// state is what a Secret says at a time.
type state struct{ newest, previous pair }

func stateOf(secret *corev1.Secret, host string, now time.Time) state {
	return state{
		newest:   read(secret.Data, newestCertificate, newestKey, host, now),
		previous: read(secret.Data, previousCertificate, previousKey, host, now),
	}
}

// stale reports whether a new certificate is needed.
func (s state) stale(now time.Time) bool {
	return !s.newest.exists() || s.newest.certificate.Leaf.NotAfter.Sub(now) < renewal
}

// serving returns the certificate that all replicas serve.
func (s state) serving(now time.Time) *tls.Certificate {
	if s.previous.exists() && now.Before(s.newest.certificate.Leaf.NotBefore.Add(backdated+handover)) {
		return &s.previous.certificate
	}
	return &s.newest.certificate
}

// bundle returns the CAs of all certificates that replicas may serve.
func (s state) bundle() []byte { return bytes.Join([][]byte{s.newest.ca, s.previous.ca}, nil) }

// renew replaces the newest certificate of the Secret. The CA is made for this certificate alone, and its key is stored nowhere.
func renew(secret *corev1.Secret, s state, host string) error {
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: host, MaxAge: lifetime})
	if err != nil {
		return fmt.Errorf("making a certificate for %s: %w", host, err)
	}
	data := map[string][]byte{newestCertificate: certificate, newestKey: key}
	if s.newest.exists() {
		data[previousCertificate], data[previousKey] = secret.Data[newestCertificate], secret.Data[newestKey]
	}
	secret.Data = data
	return nil
}
