package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// binDir is where the builder puts the binaries, relative to the repository's root.
const binDir = "_output/bin"

// layout chooses the ports and command lines of all components of the cluster.
func (c *Cluster) layout(ctx context.Context) ([]*part, error) {
	port := map[string]int{}
	for _, user := range []string{"etcd", "peer", "apiserver", "scheduler", "controllers", "aws", "kwok", "metrics", "health"} {
		free, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		port[user] = free
		c.ports = append(c.ports, free)
	}
	c.url = fmt.Sprintf("https://%s:%d", loopback, port["apiserver"])
	etcd := fmt.Sprintf("http://%s:%d", loopback, port["etcd"])
	c.etcdURL = etcd
	parts := []*part{
		c.etcd(etcd, fmt.Sprintf("http://%s:%d", loopback, port["peer"])),
		c.apiServer(etcd, port["apiserver"]),
	}
	for _, name := range c.config.Components {
		switch name {
		case Scheduler:
			parts = append(parts, c.scheduler(port["scheduler"]))
		case ControllerManager:
			parts = append(parts, c.controllerManager(port["controllers"]))
		case AWS:
			parts = append(parts, c.localAWS(port["aws"]))
		case Karpenter:
			parts = append(parts, c.karpenter(port["metrics"], port["health"]))
		case Machines:
			parts = append(parts, c.fleet())
		case KWOK:
			parts = append(parts, c.kwok(port["kwok"]))
		case Simulator:
			parts = append(parts, c.simulator())
		default:
			return nil, fmt.Errorf("no component is called %q, or it is always there", name)
		}
	}
	return parts, nil
}

func (c *Cluster) etcd(client, peer string) *part {
	return c.binary(Etcd, httpOK(http.DefaultClient, client+"/health"),
		"--data-dir="+filepath.Join(c.dir, "etcd"),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		// The data is deleted with the cluster, so it need not reach the disk.
		"--unsafe-no-fsync", "--log-level=warn")
}

func (c *Cluster) apiServer(etcd string, port int) *part {
	// /readyz also waits for the built-in roles. It needs no authentication.
	return c.binary(APIServer, httpOK(c.trusting(), c.url+"/readyz"), c.gated(
		"--etcd-servers="+etcd,
		"--bind-address="+loopback, "--advertise-address="+loopback, "--secure-port="+strconv.Itoa(port),
		"--cert-dir="+c.dir, "--tls-cert-file="+c.pki.cert, "--tls-private-key-file="+c.pki.key,
		"--client-ca-file="+c.pki.ca, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.pki.serviceAccount, "--service-account-signing-key-file="+c.pki.serviceAccount,
		"--service-cluster-ip-range=10.96.0.0/16",
		// With this plugin a pod would have to wait for its namespace's service account. Nothing reads the token of a simulated pod.
		"--disable-admission-plugins=ServiceAccount",
		// There is one API server: it needs no endpoint leases, and no endpoints that point to loopback.
		"--endpoint-reconciler-type=none",
		// Some clusters enable this plugin: whoever creates an object that blocks the deletion of its owner needs permission to update the owner's
		// finalizers.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--audit-policy-file="+c.auditPolicy(), "--audit-log-path="+filepath.Join(c.dir, auditLog), "--audit-log-maxsize=100", "--audit-log-maxbackup=3",
		"--allow-privileged=true", "--profiling=false", "--runtime-config="+c.config.APIs)...)
}

// trusting returns a client that trusts the certificates of the cluster.
func (c *Cluster) trusting() *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(c.authority.cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
	}}
}

// gated adds the feature gates of Kubernetes to the arguments of a component.
func (c *Cluster) gated(args ...string) []string {
	if c.config.KubernetesGates == "" {
		return args
	}
	return append(args, "--feature-gates="+c.config.KubernetesGates)
}

// scheduler gets a higher limit than its default of 50 requests per second, like the controller manager, whose default is 20. Tests that share a cluster
// must not wait for each other's pods.
func (c *Cluster) scheduler(port int) *part {
	qps := cmp.Or(c.config.SchedulerQPS, 500)
	return c.binary(Scheduler, c.secure(port), c.gated(
		"--kubeconfig="+c.Kubeconfig(), "--leader-elect=false", "--kube-api-qps="+strconv.Itoa(qps), "--kube-api-burst="+strconv.Itoa(2*qps),
		"--bind-address="+loopback, "--secure-port="+strconv.Itoa(port))...)
}

func (c *Cluster) controllerManager(port int) *part {
	return c.binary(ControllerManager, c.secure(port), c.gated(
		"--kubeconfig="+c.Kubeconfig(), "--leader-elect=false", "--kube-api-qps=500", "--kube-api-burst=1000",
		"--bind-address="+loopback, "--secure-port="+strconv.Itoa(port),
		"--service-account-private-key-file="+c.pki.serviceAccount, "--root-ca-file="+c.pki.ca,
		// By default, HorizontalPodAutoscalers look at their metrics every 15 seconds only.
		"--horizontal-pod-autoscaler-sync-period=2s")...)
}

func (c *Cluster) kwok(port int) *part {
	address := fmt.Sprintf("%s:%d", loopback, port)
	return c.binary(KWOK, httpOK(http.DefaultClient, "http://"+address+"/healthz"),
		"--kubeconfig="+c.Kubeconfig(), "--config="+c.stages(), "--server-address="+address,
		// This is the annotation that Karpenter's kwok provider puts on its nodes.
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
		// Renew leases, as kubelets do. Without leases the control plane marks every node unhealthy after 50 seconds. The node recovers, but its pods do
		// not.
		"--node-lease-duration-seconds=40")
}

// stages returns the path of the file that configures how kwok handles Nodes and Pods.
func (c *Cluster) stages() string {
	return filepath.Join(c.root, "test", "harness", "cluster", "kwok.yaml")
}

// karpenter listens on all addresses with its two ports. Karpenter has no flag to change that.
func (c *Cluster) karpenter(metrics, health int) *part {
	ready := httpOK(http.DefaultClient, fmt.Sprintf("http://%s:%d/readyz", loopback, health))
	return &part{name: Karpenter, ready: ready, launch: func(context.Context) (running, error) {
		region := c.aws // StartComponent holds the lock
		if region == nil {
			return nil, fmt.Errorf("it needs the component %s", AWS)
		}
		env := slices.Concat(region.KarpenterEnv(), []string{
			"KUBECONFIG=" + c.Kubeconfig(),
			"SYSTEM_NAMESPACE=kube-system",
			"DISABLE_LEADER_ELECTION=true",
			"METRICS_PORT=" + strconv.Itoa(metrics),
			"HEALTH_PROBE_PORT=" + strconv.Itoa(health),
			"FEATURE_GATES=" + c.gates,
		}, c.config.KarpenterEnv)
		return startBinary(c.bin(string(Karpenter)), nil, env, c.Log(Karpenter))
	}}
}

func (c *Cluster) binary(name Component, ready func(context.Context) error, args ...string) *part {
	return &part{name: name, ready: ready, launch: func(context.Context) (running, error) {
		return startBinary(c.bin(string(name)), args, nil, c.Log(name))
	}}
}

// startBinary starts a component, which collects its garbage less often: the components take most of the processors, and a seventh of that time otherwise.
func startBinary(path string, args, env []string, log string) (running, error) {
	p, err := startProcess(path, args, append([]string{"GOGC=300"}, env...), log)
	if err != nil {
		return nil, err // return a nil interface, not a nil *process
	}
	return p, nil
}

// secure checks the health of a component that serves with a self-signed certificate.
func (c *Cluster) secure(port int) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, //nolint:gosec // see above
	}}
	return httpOK(client, fmt.Sprintf("https://%s:%d/healthz", loopback, port))
}

func httpOK(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		// A component that accepts connections but does not answer yet must not block the next attempt.
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s", url, res.Status)
		}
		return nil
	}
}
