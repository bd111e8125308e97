package chart_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"karve.sh/karve/test/harness/await"
	"karve.sh/karve/test/harness/chart"
	"karve.sh/karve/test/harness/cluster"
	"karve.sh/karve/test/harness/karve"
)

const (
	// older is a version of Kubernetes without MutatingAdmissionPolicies, and newer one with them.
	older, newer = "--kube-version=1.34.0", "--kube-version=1.36.0"
	aliasValues  = "memoryAliases.gpuNodeClass=gpu-memory,memoryAliases.hamiGPUMemoryMiB=15360"
	inMiB        = "memoryAliases.gpushareUnit=MiB"
)

// aliasPods are pods of gpushare and HAMi, and others.
func aliasPods() map[string]*corev1.Pod {
	pods := map[string]*corev1.Pod{
		"gpushare":               aliased(amounts{"aliyun.com/gpu-mem": "3"}),
		"gpushare, as in MiB":    aliased(amounts{"aliyun.com/gpu-mem": "3000"}),
		"gpushare, exactly":      aliased(amounts{"aliyun.com/gpu-mem": "8"}),
		"gpushare, nothing":      aliased(amounts{"aliyun.com/gpu-mem": "0"}),
		"several containers":     aliased(amounts{"aliyun.com/gpu-mem": "3"}, amounts{}, amounts{"aliyun.com/gpu-mem": "5"}),
		"one is too large":       aliased(amounts{"aliyun.com/gpu-mem": "3"}, amounts{"aliyun.com/gpu-mem": "9000"}),
		"HAMi":                   aliased(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}),
		"HAMi with cores":        aliased(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4097", "nvidia.com/gpucores": "30"}),
		"HAMi in percent":        aliased(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "11"}),
		"too many percent":       aliased(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "90"}),
		"too much of gpushare":   aliased(amounts{"aliyun.com/gpu-mem": "9000"}),
		"too much of HAMi":       aliased(amounts{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "9001"}),
		"two GPUs of HAMi":       aliased(amounts{"nvidia.com/gpu": "2", "nvidia.com/gpumem": "3000"}),
		"a whole GPU of HAMi":    aliased(amounts{"nvidia.com/gpu": "1"}),
		"a slot already":         aliased(amounts{"nvidia.com/gpu-4gb": "1"}),
		"a slot and its alias":   aliased(amounts{"nvidia.com/gpu-4gb": "2", "aliyun.com/gpu-mem": "3"}),
		"no limits":              aliased(amounts{}),
		"with an init container": aliased(amounts{"aliyun.com/gpu-mem": "3"}),
		"with CPU":               aliased(amounts{"aliyun.com/gpu-mem": "3", "cpu": "0.5", "memory": "1Gi"}),
		"with tolerations":       aliased(amounts{"nvidia.com/gpumem": "100"}),
	}
	pods["with an init container"].Spec.InitContainers = aliased(amounts{"aliyun.com/gpu-mem": "1"}, amounts{}).Spec.Containers
	for i := range pods["with an init container"].Spec.InitContainers {
		pods["with an init container"].Spec.InitContainers[i].Name = fmt.Sprintf("i%d", i)
	}
	pods["with tolerations"].Spec.Tolerations = []corev1.Toleration{{Key: "other", Operator: corev1.TolerationOpExists}}
	return pods
}

// admitted returns the specs of the pods as the API server admits them, or why it does not.
func admitted(t *testing.T, k client.Client) map[string]string {
	t.Helper()
	specs := map[string]string{}
	for name, pod := range aliasPods() {
		err := k.Create(t.Context(), pod, client.DryRunAll)
		text, jsonErr := json.Marshal(pod.Spec)
		if jsonErr != nil {
			t.Fatal(jsonErr)
		}
		specs[name] = string(text)
		if err != nil {
			_, why, _ := strings.Cut(err.Error(), "container ")
			specs[name] = "refused: " + why
		}
	}
	return specs
}

// slotOf returns the resources of a pod of gpushare that has been created as a dry run.
func slotOf(ctx context.Context, k client.Client, gpuMem string) (string, error) {
	pod := aliased(amounts{"aliyun.com/gpu-mem": gpuMem})
	err := k.Create(ctx, pod, client.DryRunAll)
	return strings.Join(slices.Sorted(maps.Keys(stringKeys(pod.Spec.Containers[0].Resources.Limits))), ","), err
}

func stringKeys(list corev1.ResourceList) map[string]bool {
	keys := map[string]bool{}
	for name := range list {
		keys[string(name)] = true
	}
	return keys
}

// untilSlot waits until pods of gpushare get the resource. The amount is 3 in GiB, and as much in MiB.
func untilSlot(t *testing.T, k client.Client, gpuMem, want string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		got, err := slotOf(t.Context(), k, gpuMem)
		if err == nil && got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("pods have %s, want %s: %v", got, want, err)
		}
	}
}

// aliasPolicies returns the policies of the chart.
func aliasPolicies(t *testing.T, values string) chart.Objects {
	t.Helper()
	var policies chart.Objects
	for _, o := range objects(t, needed, "--set=node.enabled=false,"+values, newer) {
		if strings.HasSuffix(o.GetName(), "-memory-aliases") {
			policies = append(policies, o)
		}
	}
	return policies
}

// behindLocalhost makes the API server reach the webhook on a port of this machine. It knows the Service by its name, as ever.
func behindLocalhost(t *testing.T, k client.Client, port int) {
	t.Helper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: karve.Namespace, Name: "karve-memory-aliases"}}
	if err := k.Get(t.Context(), client.ObjectKeyFromObject(service), service); err != nil {
		t.Fatal(err)
	}
	if service.Spec.Type != corev1.ServiceTypeExternalName {
		if err := k.Delete(t.Context(), service); err != nil {
			t.Fatal(err)
		}
		create(t, k, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
		})
	}
	patch := fmt.Sprintf(`[{"op": "replace", "path": "/webhooks/0/clientConfig/service/port", "value": %d}]`, port)
	if err := k.Patch(t.Context(), aliasWebhook(), client.RawPatch(types.JSONPatchType, []byte(patch))); err != nil {
		t.Fatal(err)
	}
}

func aliasWebhook() *admissionv1.MutatingWebhookConfiguration {
	return &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "karve-memory-aliases"}}
}

// TestWebhookDoesWhatPoliciesDo runs the policies on a real API server, and then two replicas of the controller with the webhook, one of which does not lead.
func TestWebhookDoesWhatPoliciesDo(t *testing.T) {
	c := cluster.ForTest(t, cluster.Config{})
	k, err := karve.Client(c)
	if err != nil {
		t.Fatal(err)
	}
	class := withSlots()
	create(t, k, class)

	policies := map[string]map[string]string{}
	for _, unit := range []string{"memoryAliases.gpushareUnit=GiB", inMiB} {
		all := aliasPolicies(t, aliasValues+","+unit)
		for _, o := range all {
			create(t, k, o)
		}
		untilRefused(t, k)
		if unit == inMiB {
			untilSlot(t, k, "3000", "nvidia.com/gpu-4gb")
		} else {
			untilSlot(t, k, "3", "nvidia.com/gpu-4gb")
		}
		policies[unit] = admitted(t, k)
		for _, o := range all {
			if err := k.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		untilSlot(t, k, "90000", "aliyun.com/gpu-mem")
	}

	start := func(replica, unit string) *karve.Controller {
		r, err := karve.Start(t.Context(), c, karve.Options{Replica: replica, KubeVersion: "1.34.0", Values: []string{aliasValues, unit}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	inGiB, second := start("", "memoryAliases.gpushareUnit=GiB"), start("-2", inMiB)
	replicas := []*karve.Controller{inGiB, second}
	for _, r := range []struct {
		*karve.Controller
		unit, three string
	}{{inGiB, "memoryAliases.gpushareUnit=GiB", "3"}, {second, inMiB, "3000"}} {
		behindLocalhost(t, k, r.WebhookPort)
		untilSlot(t, k, r.three, "nvidia.com/gpu-4gb")
		if diff := cmp.Diff(policies[r.unit], admitted(t, k)); diff != "" {
			t.Errorf("%s (-policies +webhook):\n%s", r.unit, diff)
		}
	}
	if policies[inMiB]["gpushare, as in MiB"] == policies["memoryAliases.gpushareUnit=GiB"]["gpushare, as in MiB"] {
		t.Error("the units do not differ")
	}
	behindLocalhost(t, k, inGiB.WebhookPort)
	untilSlot(t, k, "3", "nvidia.com/gpu-4gb")

	t.Run("the class changes", func(t *testing.T) {
		for _, sizes := range [][]string{{"6Gi"}, {"1536Mi", "4Gi", "8Gi"}} {
			old := class.DeepCopy()
			class.Spec.Sharing.Memory.Sizes = sizes
			if err := k.Patch(t.Context(), class, client.MergeFrom(old)); err != nil {
				t.Fatal(err)
			}
			untilSlot(t, k, "3", map[int]string{1: "nvidia.com/gpu-6gb", 3: "nvidia.com/gpu-4gb"}[len(sizes)])
		}
	})
	t.Run("the configuration is reset", func(t *testing.T) {
		if err := k.Patch(t.Context(), aliasWebhook(), client.RawPatch(types.JSONPatchType, []byte(`[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`))); err != nil {
			t.Fatal(err)
		}
		await.Nil(t, time.Minute, func() error { // For a moment, the API server calls the webhook with the former CA.
			var webhook admissionv1.MutatingWebhookConfiguration
			if err := k.Get(t.Context(), client.ObjectKeyFromObject(aliasWebhook()), &webhook); err != nil {
				return err
			}
			if len(webhook.Webhooks[0].ClientConfig.CABundle) == 0 {
				return errors.New("the controller has not written the CA")
			}
			return nil
		})
		untilSlot(t, k, "3", "nvidia.com/gpu-4gb")
	})
	t.Run("the controller writes only the CA", func(t *testing.T) { onlyTheCA(t, c, inGiB.User) })
	t.Run("the certificate ends", func(t *testing.T) { twoReplaceOne(t, c, k, replicas) })
	t.Run("the webhook hangs", func(t *testing.T) { hangs(t, k, inGiB) })
	t.Run("Kubernetes is upgraded", func(t *testing.T) { toPolicies(t, c, k) })
}

// untilRefused waits until a pod that no slot can serve is refused.
func untilRefused(t *testing.T, k client.Client) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := slotOf(t.Context(), k, "90000"); err != nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the policies are not in force")
		}
	}
}

// onlyTheCA tries what somebody with the controller's token could do to all pods.
func onlyTheCA(t *testing.T, c *cluster.Cluster, user string) {
	config := c.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:serviceaccounts", "system:authenticated"}}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	patch := func(patch string) error {
		_, err := api.AdmissionregistrationV1().MutatingWebhookConfigurations().Patch(t.Context(), "karve-memory-aliases", types.JSONPatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for _, p := range []string{
		`[{"op": "replace", "path": "/webhooks/0/clientConfig/service/name", "value": "mine"}]`,
		`[{"op": "replace", "path": "/webhooks/0/matchConditions", "value": []}]`,
		`[{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Fail"}]`,
		`[{"op": "remove", "path": "/webhooks/0"}]`,
		`[{"op": "add", "path": "/metadata/labels/a", "value": "b"}]`,
	} {
		if err := patch(p); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if err := patch(`[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`); err != nil {
		t.Errorf("the CA: %v", err)
	}
	secrets := api.CoreV1().Secrets(karve.Namespace)
	if _, err := secrets.List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("other Secrets: %v", err)
	}
}

// twoReplaceOne starts two replicas at once with a certificate that ends in a month.
func twoReplaceOne(t *testing.T, c *cluster.Cluster, k client.Client, replicas []*karve.Controller) {
	for _, r := range replicas {
		if err := c.StopComponent(r.Name); err != nil {
			t.Fatal(err)
		}
	}
	const host = "karve-memory-aliases." + karve.Namespace + ".svc"
	certificate, key, err := cert.GenerateSelfSignedCertKeyWithOptions(cert.SelfSignedCertKeyOptions{Host: host, MaxAge: 30 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := k.Get(t.Context(), client.ObjectKey{Namespace: karve.Namespace, Name: "karve-memory-aliases"}, secret); err != nil {
		t.Fatal(err)
	}
	secret.Data = map[string][]byte{"tls.crt": certificate, "tls.key": key}
	if err := k.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, r := range replicas {
		wg.Go(func() {
			if err := c.StartComponent(t.Context(), r.Name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	untilSlot(t, k, "3", "nvidia.com/gpu-4gb")
	if err := k.Get(t.Context(), client.ObjectKeyFromObject(secret), secret); err != nil {
		t.Fatal(err)
	}
	if string(secret.Data["previous.crt"]) != string(certificate) || string(secret.Data["tls.crt"]) == string(certificate) {
		t.Error("the certificate was not replaced once")
	}
	configuration := aliasWebhook()
	if err := k.Get(t.Context(), client.ObjectKeyFromObject(configuration), configuration); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(configuration.Webhooks[0].ClientConfig.CABundle)
	for _, r := range replicas {
		conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13}}).DialContext(t.Context(), "tcp", net.JoinHostPort("localhost", strconv.Itoa(r.WebhookPort)))
		if err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		if served := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]; time.Until(served.NotAfter) > 40*24*time.Hour {
			t.Errorf("%s serves the new certificate before the API servers have its CA", r.Name)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// hangs stops the process that serves the webhook, without closing its connections.
func hangs(t *testing.T, k client.Client, r *karve.Controller) {
	pid, err := r.PID()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	got, err := slotOf(t.Context(), k, "3")
	if took := time.Since(before); err != nil || got != "aliyun.com/gpu-mem" || took > 5*time.Second {
		t.Errorf("after %s: %s, %v", took, got, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/app"}}}}
	before = time.Now()
	if err := k.Create(t.Context(), pod, client.DryRunAll); err != nil || time.Since(before) > time.Second {
		t.Errorf("another pod, after %s: %v", time.Since(before), err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	untilSlot(t, k, "3", "nvidia.com/gpu-4gb")
}

// toPolicies replaces the webhook in the order of helm upgrade: it creates what is new and deletes at once what is no longer there, while pods come.
func toPolicies(t *testing.T, c *cluster.Cluster, k client.Client) {
	done := make(chan struct{})
	type missed struct{ first, last time.Time }
	result := make(chan missed)
	go func() {
		var m missed
		for {
			select {
			case <-done:
				result <- m
				return
			default:
			}
			if got, err := slotOf(t.Context(), k, "3"); err != nil || got != "nvidia.com/gpu-4gb" {
				m.last = time.Now()
				if m.first.IsZero() {
					m.first = m.last
				}
			}
		}
	}()
	for _, o := range aliasPolicies(t, aliasValues) {
		create(t, k, o)
	}
	if err := k.Delete(t.Context(), aliasWebhook()); err != nil {
		t.Error(err)
	}
	time.Sleep(5 * time.Second)
	close(done)
	if m := <-result; m.last.Sub(m.first) > 3*time.Second {
		t.Errorf("pods were not changed for %s", m.last.Sub(m.first))
	} else {
		t.Logf("pods were not changed for %s", m.last.Sub(m.first))
	}
	if err := c.StopComponent(karve.Component); err != nil {
		t.Error(err)
	}
	untilRefused(t, k)
}

// TestOnlyOneOfPoliciesAndWebhookIsRendered renders the chart for Kubernetes with and without MutatingAdmissionPolicies, and without memoryAliases.
func TestOnlyOneOfPoliciesAndWebhookIsRendered(t *testing.T) {
	t.Parallel()
	kinds := func(options ...string) []string {
		var kinds []string
		for _, o := range objects(t, append([]string{needed, "--set=node.enabled=false,networkPolicy.enabled=true"}, options...)...) {
			if strings.HasSuffix(o.GetName(), "-memory-aliases") || strings.HasSuffix(o.GetName(), "-memory-webhook") {
				kinds = append(kinds, o.GetKind())
			}
		}
		slices.Sort(kinds)
		return kinds
	}
	policies := []string{"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
	webhook := []string{
		"ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "Role", "RoleBinding", "Secret", "Service", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
	}
	for version, want := range map[string][]string{
		"1.30.0": webhook, "1.34.0": webhook, "1.35.9": webhook, "v1.35.2-eks-1a2b3c4": webhook,
		"1.36.0-alpha.1": policies, "1.36.0": policies, "v1.36.2-eks-1a2b3c4": policies, "1.37.1": policies,
	} {
		if diff := cmp.Diff(want, kinds("--set="+aliasValues, "--kube-version="+version)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
		if off := kinds("--kube-version=" + version); len(off) > 0 {
			t.Errorf("%s: without a GPUNodeClass there are %v", version, off)
		}
	}
	if diff := cmp.Diff(policies, kinds("--set="+aliasValues, older, mutating)); diff != "" {
		t.Errorf("with the kind in the API (-want +got):\n%s", diff)
	}
	for _, options := range [][]string{{older}, {newer, "--set=" + aliasValues}} {
		given, o := started(t, append([]string{needed}, options...)...)
		if _, ok := given["memory-aliases"]; ok || o.MemoryAliases.Enabled() {
			t.Errorf("%v: the controller serves the webhook", options)
		}
	}
}

func TestWebhookIsReachedAndHarmless(t *testing.T) {
	t.Parallel()
	all := objects(t, needed, "--set=node.enabled=false,networkPolicy.enabled=true,"+aliasValues+",memoryAliases.taintKey=gpus", older)
	if again := objects(t, needed, "--set=node.enabled=false,networkPolicy.enabled=true,"+aliasValues+",memoryAliases.taintKey=gpus", older); !cmp.Equal(all, again) {
		t.Error("the chart renders other objects the second time")
	}
	_, o := started(t, needed, "--set="+aliasValues+",memoryAliases.taintKey=gpus", older)
	if got := o.MemoryAliases.String(); got != "gpuNodeClass=gpu-memory,gpushareUnit=GiB,hamiGPUMemoryMiB=15360,taintKey=gpus,port=9443" {
		t.Errorf("the controller has %s", got)
	}
	if secret := into[corev1.Secret](t, all, "Secret"); len(secret.Data)+len(secret.StringData) > 0 {
		t.Errorf("the Secret has %v", secret.Data)
	}
	d, service := into[appsv1.Deployment](t, all, "Deployment"), into[corev1.Service](t, all, "Service")
	c := d.Spec.Template.Spec.Containers[0]
	if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
		return p.Name == service.Spec.Ports[0].TargetPort.StrVal && int(p.ContainerPort) == o.MemoryAliases.Port
	}) || c.Lifecycle.PreStop.Sleep.Seconds != 5 {
		t.Errorf("the ports are %v, and before it stops %v", c.Ports, c.Lifecycle)
	}
	pod := labels.Set(d.Spec.Template.Labels)
	policy := into[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
	if !labels.SelectorFromSet(service.Spec.Selector).Matches(pod) ||
		!slices.ContainsFunc(policy.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool { return r.Ports[0].Port.StrVal == "webhook" }) {
		t.Errorf("the Service selects %v, and the network policy lets in %v", service.Spec.Selector, policy.Spec.Ingress)
	}
	w := into[admissionv1.MutatingWebhookConfiguration](t, all, "MutatingWebhookConfiguration").Webhooks[0]
	selector, err := metav1.LabelSelectorAsSelector(w.ObjectSelector)
	if err != nil || selector.Matches(pod) || !selector.Matches(labels.Set{"app.kubernetes.io/name": "inference"}) {
		t.Errorf("it selects %v: %v", w.ObjectSelector, err)
	}
	if *w.FailurePolicy != admissionv1.Ignore || *w.TimeoutSeconds > 2 || *w.SideEffects != admissionv1.SideEffectClassNone || len(w.MatchConditions) != 1 || w.ClientConfig.CABundle != nil ||
		w.ClientConfig.Service.Name != service.Name || *w.ClientConfig.Service.Port != service.Spec.Ports[0].Port {
		t.Errorf("the webhook is %+v", w)
	}
}
