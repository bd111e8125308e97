package instancetype_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	ec2v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	clocktesting "k8s.io/utils/clock/testing"

	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/cloud/aws/api"
	"karve.sh/karve/pkg/cloud/aws/instancetype"
	"karve.sh/karve/pkg/metrics"
	fakeaws "karve.sh/karve/test/harness/aws"
)

// patience is the timeout of every wait, on a busy machine too.
const patience = 2 * time.Minute

// world is a region, a catalog that reads it, and a clock that only the test moves.
type world struct {
	*instancetype.Catalog
	t       *testing.T
	server  *fakeaws.Server
	clock   *clocktesting.FakeClock
	metrics *metrics.Metrics
}

func newWorld(t *testing.T, region fakeaws.Config, edits ...func(*instancetype.Config)) *world {
	t.Helper()
	server, err := fakeaws.Start(t.Context(), region)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	w := &world{
		t: t, server: server, clock: clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), metrics: metrics.New(prometheus.NewRegistry()),
	}
	config := instancetype.Config{
		Options: instancetype.Options{VMMemoryOverheadPercent: 0.075}, Metrics: w.metrics, Clock: w.clock,
		Load: func(context.Context) (*api.Clients, error) { return api.New(fakeaws.ClientConfig(server.URL)), nil },
	}
	for _, edit := range edits {
		edit(&config)
	}
	w.Catalog = instancetype.New(config)
	w.start()
	return w
}

func (w *world) start() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Start(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// until steps the clock until the listing of a class satisfies the predicate.
func (w *world) until(class *unstructured.Unstructured, what string, is func(catalog.Listing) bool) (listing catalog.Listing) {
	w.t.Helper()
	w.poll(func() bool {
		if listing = w.InstanceTypes(w.t.Context(), class); is(listing) {
			return true
		}
		w.clock.Step(10 * time.Second)
		return false
	}, func() string {
		return fmt.Sprintf("not %s: %d types, %s: %s", what, len(listing.InstanceTypes), listing.Reason, listing.Message)
	})
	return listing
}

// waitFor waits for the catalog and steps the clock a second at a time, because the catalog may start a timer only after the test has made a large step.
func (w *world) waitFor(what string, is func() bool) {
	w.t.Helper()
	w.poll(func() bool {
		w.clock.Step(time.Second)
		return is()
	}, func() string { return "not " + what })
}

// poll calls is every 3 ms.
func (w *world) poll(is func() bool, otherwise func() string) {
	w.t.Helper()
	if err := wait.PollUntilContextTimeout(w.t.Context(), 3*time.Millisecond, patience, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		w.t.Fatal(otherwise())
	}
}

func fresh(l catalog.Listing) bool { return l.Reason == "" && len(l.InstanceTypes) > 0 }

func because(reason string) func(catalog.Listing) bool {
	return func(l catalog.Listing) bool { return l.Reason == reason }
}

var zones = []string{"us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f"}

// nodeClass returns an EC2NodeClass of AL2023 as Karpenter leaves it: with subnets in five zones, and images with and without NVIDIA's driver.
func nodeClass(name string, edits ...func(*ec2v1.EC2NodeClass)) *ec2v1.EC2NodeClass {
	class := &ec2v1.EC2NodeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "karpenter.k8s.aws/v1", Kind: "EC2NodeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, ResourceVersion: "1"},
		Spec:       ec2v1.EC2NodeClassSpec{AMISelectorTerms: []ec2v1.AMISelectorTerm{{Alias: "al2023@latest"}}},
	}
	for i, zone := range zones {
		class.Status.Subnets = append(class.Status.Subnets, ec2v1.Subnet{ID: fmt.Sprintf("subnet-%d", i), Zone: zone, ZoneID: fmt.Sprintf("use1-az%d", i+1)})
	}
	for _, arch := range []string{"amd64", "arm64"} {
		class.Status.AMIs = append(class.Status.AMIs, image(arch, corev1.NodeSelectorOpDoesNotExist), image(arch, corev1.NodeSelectorOpExists))
	}
	for _, edit := range edits {
		edit(class)
	}
	return class
}

// image returns an image for machines with or without GPUs.
func image(arch string, gpus corev1.NodeSelectorOperator) ec2v1.AMI {
	return ec2v1.AMI{ID: "ami-" + strings.ToLower(arch+string(gpus)), Name: "image", Requirements: []corev1.NodeSelectorRequirement{
		{Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: []string{arch}},
		{Key: ec2v1.LabelInstanceGPUCount, Operator: gpus},
	}}
}

// kubelet changes the kubelet configuration of a class, and uses the instance store for ephemeral storage.
// configureKubelet sets spec.kubelet, which has the JSON of any configuration.
func configureKubelet(class *ec2v1.EC2NodeClass, k ec2v1.ParsedKubeletConfig) {
	text, err := json.Marshal(k)
	if err == nil {
		err = json.Unmarshal(text, &class.Spec.Kubelet)
	}
	if err != nil {
		panic(err)
	}
}

func kubelet(class *ec2v1.EC2NodeClass) {
	configureKubelet(class, ec2v1.ParsedKubeletConfig{
		MaxPods: new(intstr.FromInt32(60)), PodsPerCore: new(int32(10)),
		KubeReserved:   map[string]string{"cpu": "250m", "memory": "1Gi", "ephemeral-storage": "3Gi"},
		SystemReserved: map[string]string{"cpu": "100m", "memory": "512Mi"},
		EvictionHard:   map[string]string{"memory.available": "5%", "nodefs.available": "12%"},
		EvictionSoft:   map[string]string{"memory.available": "8%"},
	})
	class.Spec.InstanceStorePolicy = new(ec2v1.InstanceStorePolicyRAID0)
}

func bottlerocket(class *ec2v1.EC2NodeClass) {
	class.Spec.AMISelectorTerms = []ec2v1.AMISelectorTerm{{Alias: "bottlerocket@latest"}}
	class.Spec.BlockDeviceMappings = []*ec2v1.BlockDeviceMapping{{DeviceName: new("/dev/xvdb"), EBS: &ec2v1.BlockDevice{VolumeSize: new(resource.MustParse("200Gi"))}}}
}

func object(t *testing.T, class *ec2v1.EC2NodeClass) *unstructured.Unstructured {
	t.Helper()
	data, err := json.Marshal(class)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return u
}

func named(t *testing.T, l catalog.Listing, name string) catalog.InstanceType {
	t.Helper()
	i := slices.IndexFunc(l.InstanceTypes, func(it catalog.InstanceType) bool { return it.Name == name })
	if i < 0 {
		t.Fatalf("there is no %s: %s %s", name, l.Reason, l.Message)
	}
	return l.InstanceTypes[i]
}

// priceOf returns the price of the only offering in a zone with a capacity type; 0 if there is none.
func priceOf(it catalog.InstanceType, zone, capacityType string) int64 {
	for _, o := range it.Offerings {
		if o.Zone == zone && o.CapacityType == capacityType {
			return o.MicroUSDPerHour
		}
	}
	return 0
}

func TestOneRefreshServesAllClasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	if n := w.calls(); n != 0 {
		t.Errorf("%d calls before anyone asked", n)
	}
	classes := []*unstructured.Unstructured{object(t, nodeClass("a")), object(t, nodeClass("b", kubelet)), object(t, nodeClass("c", bottlerocket))}
	var asking sync.WaitGroup
	for range 4 {
		for _, class := range classes {
			asking.Go(func() {
				if l := w.InstanceTypes(t.Context(), class); !fresh(l) {
					t.Errorf("%d types, %s: %s", len(l.InstanceTypes), l.Reason, l.Message)
				}
			})
		}
	}
	asking.Wait()
	first := w.callsByAction()
	for action, n := range first {
		if n == 0 {
			t.Errorf("%s was not called", action)
		}
	}
	for i := range 100 {
		classes[i%3].SetResourceVersion(fmt.Sprint(i))
		if l := w.InstanceTypes(t.Context(), classes[i%3]); !fresh(l) {
			t.Fatalf("%s: %s", l.Reason, l.Message)
		}
	}
	if diff := cmp.Diff(first, w.callsByAction()); diff != "" {
		t.Errorf("calls for asking again (-before +after):\n%s", diff)
	}

	// Spot prices are due after an hour, and every source once after half a day.
	w.clock.Step(time.Hour + 6*time.Minute)
	w.waitFor("read again", func() bool { return w.reads("spot-prices") == 2 })
	want := maps.Clone(first)
	want["DescribeSpotPriceHistory"] *= 2
	if diff := cmp.Diff(want, w.callsByAction()); diff != "" {
		t.Errorf("calls after an hour (-want +got):\n%s", diff)
	}
	w.clock.Step(13 * time.Hour)
	w.waitFor("all read again", func() bool {
		return w.reads("spot-prices") == 3 && w.reads("on-demand-prices") == 2 && w.reads("zones") == 2 && w.reads("instance-types") == 2
	})
	for action, n := range first {
		want[action] += n
	}
	if diff := cmp.Diff(want, w.callsByAction()); diff != "" {
		t.Errorf("calls after half a day (-want +got):\n%s", diff)
	}
}

// reads returns how often a source was read successfully.
func (w *world) reads(source string) int {
	return int(testutil.ToFloat64(w.metrics.CatalogRefreshes.WithLabelValues(source, "Success")))
}

func (w *world) callsByAction() map[string]int {
	calls := map[string]int{}
	for _, action := range []string{"DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory", "GetProducts"} {
		calls[action] = w.server.Calls(action)
	}
	return calls
}

func (w *world) calls() (n int) {
	for _, calls := range w.callsByAction() {
		n += calls
	}
	return n
}

func TestPricesAreRefreshedWhenDue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	class := object(t, nodeClass("gpu"))
	before := named(t, w.until(class, "fresh", fresh), "g4dn.xlarge")
	w.server.SetSpotPrice("g4dn.xlarge", "us-east-1b", 0.111)
	if now := named(t, w.InstanceTypes(t.Context(), class), "g4dn.xlarge"); !cmp.Equal(before, now) {
		t.Error("prices changed before they were due")
	}
	w.clock.Step(time.Hour + 6*time.Minute)
	listing := w.until(class, "at the new spot price", func(l catalog.Listing) bool {
		return priceOf(named(t, l, "g4dn.xlarge"), "us-east-1b", "spot") == 111_000
	})
	if now := named(t, listing, "g4dn.xlarge"); priceOf(now, "us-east-1a", "spot") != priceOf(before, "us-east-1a", "spot") || priceOf(now, "us-east-1b", "on-demand") != 526_000 {
		t.Errorf("offerings %+v", now.Offerings)
	}
	w.server.SetPrice("g4dn.xlarge", 0.666)
	w.clock.Step(13 * time.Hour)
	w.until(class, "at the new price", func(l catalog.Listing) bool {
		return priceOf(named(t, l, "g4dn.xlarge"), "us-east-1b", "on-demand") == 666_000
	})
}

// A class is not launched for without the required data. Optional data may be missing.
func TestCatalogWorksWithoutOptionalData(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault  func(*fakeaws.Server)
		reason string
		words  []string
		// without says that no instance type is known.
		without bool
	}{
		"DescribeInstanceTypes denied":         {func(s *fakeaws.Server) { s.Deny("DescribeInstanceTypes") }, "AccessDenied", []string{"EC2 DescribeInstanceTypes", "IAM policy"}, true},
		"DescribeInstanceTypeOfferings denied": {func(s *fakeaws.Server) { s.Deny("DescribeInstanceTypeOfferings") }, "AccessDenied", []string{"DescribeInstanceTypeOfferings"}, true},
		"spot prices denied":                   {func(s *fakeaws.Server) { s.Deny("DescribeSpotPriceHistory") }, "AccessDenied", []string{"DescribeSpotPriceHistory", "as much as on demand"}, false},
		"on-demand prices denied":              {func(s *fakeaws.Server) { s.Deny("GetProducts") }, "AccessDenied", []string{"Pricing GetProducts", "was released with"}, false},
		"throttling":                           {func(s *fakeaws.Server) { s.Throttle("EC2") }, "Throttled", []string{"tried again"}, true},
		"Pricing unreachable":                  {func(s *fakeaws.Server) { s.Cut("Pricing") }, "Unreachable", []string{"Pricing GetProducts", "us-east-1", "AWS_REGION"}, false},
		"AWS unreachable":                      {func(s *fakeaws.Server) { s.Cut() }, "Unreachable", []string{"region us-east-1"}, true},
		"a page of HTML with status 503":       {func(s *fakeaws.Server) { s.Down("EC2") }, "Garbled", []string{"an answer with HTTP status 503", "outage", "proxies"}, true},
		"prices as HTML with status 503":       {func(s *fakeaws.Server) { s.Down("Pricing") }, "Garbled", []string{"Pricing GetProducts", "HTTP status 503"}, false},
		"an undecodable response":              {func(s *fakeaws.Server) { s.Garble("EC2") }, "Garbled", []string{"that cannot be decoded"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, fakeaws.Config{})
			tc.fault(w.server)
			class := object(t, nodeClass("gpu"))
			listing := w.InstanceTypes(t.Context(), class)
			if listing.Reason != tc.reason || (len(listing.InstanceTypes) == 0) != tc.without {
				t.Errorf("%d types, %s: %s", len(listing.InstanceTypes), listing.Reason, listing.Message)
			}
			for _, words := range tc.words {
				if !strings.Contains(listing.Message, words) {
					t.Errorf("%q does not say %q", listing.Message, words)
				}
			}
			if !tc.without {
				it := named(t, listing, "g4dn.xlarge")
				if spot := priceOf(it, "us-east-1a", "spot"); priceOf(it, "us-east-1a", "on-demand") != 526_000 || spot <= 0 || spot > 526_000 {
					t.Errorf("offerings %+v", it.Offerings)
				}
			}
			w.server.Heal()
			w.until(class, "fresh again", fresh)
		})
	}
}

// If AWS does not answer, the catalog keeps what it has read. It reports only data that is too old.
func TestCatalogKeepsDataDuringOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	class := object(t, nodeClass("gpu"))
	before := w.until(class, "fresh", fresh)
	w.server.Cut()
	w.clock.Step(time.Hour + 6*time.Minute)
	w.waitFor("tried again", func() bool {
		return testutil.ToFloat64(w.metrics.CatalogRefreshes.WithLabelValues("spot-prices", "Unreachable")) > 0
	})
	if l := w.InstanceTypes(t.Context(), class); !cmp.Equal(l, before) {
		t.Errorf("a short outage changes the listing: %s %s", l.Reason, l.Message)
	}
	w.clock.Step(time.Hour)
	stale := w.until(class, "stale", because("Unreachable"))
	if !cmp.Equal(stale.InstanceTypes, before.InstanceTypes) || !strings.Contains(stale.Message, "the spot prices are those of 2026-03-01T12:00:00Z") {
		t.Errorf("%d types: %s", len(stale.InstanceTypes), stale.Message)
	}
	w.server.Heal()
	w.until(class, "fresh again", fresh)
}

func TestFailedCallsAreRetriedWithBackoff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	w.server.Throttle()
	class := object(t, nodeClass("gpu"))
	w.InstanceTypes(t.Context(), class)
	tries := func() int { return w.server.Calls("DescribeInstanceTypes") }
	// Retries follow after 5 s, 10 s, … up to 5 minutes: seven in the first six minutes, give or take the jitter of a tenth.
	seconds := 0
	w.waitFor("six minutes later", func() bool {
		seconds++
		return seconds == 6*60
	})
	if n := tries(); n < 4 || n > 9 {
		t.Errorf("%d tries in six minutes", n)
	}
	w.server.Heal()
	w.until(class, "fresh", fresh)
	if n := testutil.ToFloat64(w.metrics.CatalogRefreshes.WithLabelValues("instance-types", "Throttled")); int(n) < 3 {
		t.Errorf("%v throttled tries are counted", n)
	}
	if n := testutil.ToFloat64(w.metrics.CatalogRefreshed.WithLabelValues("instance-types")); int64(n) < w.clock.Now().Add(-time.Hour).Unix() {
		t.Errorf("read at %v", n)
	}
}

// After an outage of any length, the data that launches require is read again soon. Prices can wait.
func TestRequiredDataIsReadSoonAfterOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	w.server.Cut()
	class := object(t, nodeClass("gpu"))
	w.InstanceTypes(t.Context(), class)
	seconds := 0
	w.waitFor("six minutes later", func() bool {
		seconds++
		return seconds == 6*60
	})
	if n := w.server.Calls("DescribeInstanceTypes"); n < 9 {
		t.Errorf("%d tries in six minutes, want one every half a minute", n)
	}
}

// The SDK's clients retry by themselves and return another error in the end.
func TestRetryingClientsReportThrottling(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{}, func(c *instancetype.Config) {
		load := c.Load
		c.Load = func(ctx context.Context) (*api.Clients, error) {
			quick, err := load(ctx)
			server := *quick.EC2.Options().BaseEndpoint
			patient := awssdk.Config{Region: "us-east-1", BaseEndpoint: &server, Credentials: quick.EC2.Options().Credentials}
			return api.New(patient), err
		}
	})
	w.server.Throttle()
	class := object(t, nodeClass("gpu"))
	w.until(class, "throttled", because("Throttled"))
}

func TestMissingCredentialsOrRegionAreReported(t *testing.T) {
	t.Parallel()
	class := object(t, nodeClass("gpu"))
	for name, tc := range map[string]struct {
		load   func(*fakeaws.Server) (*api.Clients, error)
		reason string
		words  string
	}{
		"no configuration": {
			func(*fakeaws.Server) (*api.Clients, error) {
				return nil, errors.New("finding the AWS region, which AWS_REGION would tell: none")
			},
			"NoConfiguration", "AWS_REGION",
		},
		"no credentials": {func(s *fakeaws.Server) (*api.Clients, error) {
			c := fakeaws.ClientConfig(s.URL)
			c.Credentials = awssdk.CredentialsProviderFunc(func(context.Context) (awssdk.Credentials, error) {
				return awssdk.Credentials{}, errors.New("no EC2 IMDS role found")
			})
			return api.New(c), nil
		}, "NoCredentials", "EKS Pod Identity or IRSA"},
		"a region that does not exist": {func(s *fakeaws.Server) (*api.Clients, error) {
			c := fakeaws.ClientConfig(s.URL)
			c.Region, c.BaseEndpoint = "us-nowhere-9", nil
			c.HTTPClient = doer(func(r *http.Request) (*http.Response, error) {
				return nil, fmt.Errorf("lookup %s: no such host", r.URL.Host)
			})
			return api.New(c), nil
		}, "Unreachable", "us-nowhere-9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, err := fakeaws.Start(t.Context(), fakeaws.Config{})
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, fakeaws.Config{}, func(c *instancetype.Config) {
				c.Load = func(context.Context) (*api.Clients, error) { return tc.load(server) }
			})
			listing := w.until(class, "told", because(tc.reason))
			if len(listing.InstanceTypes) != 0 || !strings.Contains(listing.Message, tc.words) {
				t.Errorf("%d types: %s", len(listing.InstanceTypes), listing.Message)
			}
		})
	}
}

type doer func(*http.Request) (*http.Response, error)

func (d doer) Do(r *http.Request) (*http.Response, error) { return d(r) }

func TestClassOfOtherRegionIsReported(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fakeaws.Config{})
	class := object(t, nodeClass("gpu", func(c *ec2v1.EC2NodeClass) {
		for i := range c.Status.Subnets {
			c.Status.Subnets[i].Zone = strings.Replace(c.Status.Subnets[i].Zone, "us-east-1", "eu-west-1", 1)
		}
	}))
	listing := w.until(class, "told", because("WrongRegion"))
	for _, words := range []string{`EC2NodeClass "gpu"`, "eu-west-1a", "us-east-1", "AWS_REGION"} {
		if !strings.Contains(listing.Message, words) {
			t.Errorf("%q does not say %q", listing.Message, words)
		}
	}
}

// allZones gives a class a subnet in each zone of the region.
func allZones(class *ec2v1.EC2NodeClass) {
	class.Status.Subnets = nil
	for i, letter := range "abcdef" {
		class.Status.Subnets = append(class.Status.Subnets, ec2v1.Subnet{ID: "subnet-" + string(letter), Zone: "us-east-1" + string(letter), ZoneID: fmt.Sprintf("use1-az%d", i+1)})
	}
}
