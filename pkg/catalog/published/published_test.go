package published_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"karve.sh/karve/pkg/apis/v1alpha1"
	"karve.sh/karve/pkg/catalog"
	"karve.sh/karve/pkg/catalog/builtin"
	"karve.sh/karve/pkg/catalog/published"
)

func ref(name string) v1alpha1.NodeClassReference {
	return v1alpha1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: name}
}

// sample returns the built-in instance types for two node classes, one of which has learned that a type has less memory.
func sample(t testing.TB) published.Catalog {
	t.Helper()
	types, err := builtin.InstanceTypes()
	if err != nil {
		t.Fatal(err)
	}
	learned := append([]catalog.InstanceType(nil), types...)
	learned[3].Allocatable.MemoryBytes -= 1 << 20
	learned[4].Extended = map[string]int64{"vpc.amazonaws.com/efa": 1}
	reserved := append([]catalog.InstanceType(nil), types...)
	slot := catalog.Offering{Zone: "us-east-1a", CapacityType: "reserved", Labels: map[string]string{"karpenter.k8s.aws/capacity-reservation-id": "cr-1"}}
	slot.Reserve("cr-1", 40_000_000)
	reserved[5].Offerings = append(append([]catalog.Offering(nil), reserved[5].Offerings...), slot)
	read := time.Date(2026, 11, 23, 11, 59, 30, 0, time.UTC)
	return published.Catalog{
		ref("reserved"): {InstanceTypes: reserved, Reservations: []catalog.Reservation{
			{ID: "cr-1", InstanceType: reserved[5].Name, Zone: "us-east-1a", Free: 2, Total: 3, Read: read, End: read.Add(time.Hour), Leaves: read.Add(time.Minute), ListMicroUSDPerHour: 40_000_000},
			{ID: "cr-2", InstanceType: reserved[5].Name, Zone: "us-east-1a"},
		}},
		ref("gpu"): {InstanceTypes: types}, ref("other"): {InstanceTypes: learned, Reason: "PricesStale", Message: "the prices are of yesterday"}, ref("empty"): {},
	}
}

func encoded(t testing.TB, c published.Catalog) []byte {
	t.Helper()
	b, err := published.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestACatalogIsReadAsItWasPublished(t *testing.T) {
	t.Parallel()
	c := sample(t)
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	m := published.ConfigMap("karve-system", encoded(t, c), published.Quotas{}, "v1", published.DefaultSettings(), now)
	got, at, err := published.Read(m)
	if err != nil || !at.Equal(now) {
		t.Fatalf("%v, %v", at, err)
	}
	if diff := cmp.Diff(c, got); diff != "" {
		t.Errorf("(-published +read)\n%s", diff)
	}
	if !bytes.Equal(encoded(t, got), published.Encoded(m)) {
		t.Error("equal catalogs have different bytes")
	}
	if size := m.Size(); size > 64<<10 {
		t.Errorf("%d bytes for two node classes", size)
	}
	class := &unstructured.Unstructured{}
	class.SetAPIVersion("karpenter.k8s.aws/v1")
	class.SetKind("EC2NodeClass")
	class.SetName("other")
	if l := got.InstanceTypes(t.Context(), class); len(l.InstanceTypes) != 59 || l.Reason != "PricesStale" {
		t.Errorf("%d types, %s", len(l.InstanceTypes), l.Reason)
	}
	class.SetName("new")
	if l := got.InstanceTypes(t.Context(), class); len(l.InstanceTypes) != 0 || l.Message != `the controller has not published the instance types of EC2NodeClass "new" yet` {
		t.Errorf("a node class that was not published: %+v", l)
	}
}

func TestACatalogThatIsTooLargeIsNotPublished(t *testing.T) {
	t.Parallel()
	letters := make([]byte, 4<<20)
	r := rand.New(rand.NewSource(1))
	for i := range letters {
		letters[i] = byte('a' + r.Intn(26))
	}
	c := published.Catalog{ref("gpu"): {InstanceTypes: []catalog.InstanceType{{Name: "a"}}, Message: string(letters)}}
	if b, err := published.Encode(c); err == nil || !strings.Contains(err.Error(), "at most 921600 are published") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func compress(t testing.TB, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestACorruptCatalogIsRefused(t *testing.T) {
	t.Parallel()
	good := encoded(t, sample(t))
	of := func(types, classes string) []byte {
		return compress(t, `{"version": 1, "types": [`+types+`], "nodeClasses": [`+classes+`]}`)
	}
	class := func(types string) string { return `{"group": "g", "kind": "K", "name": "n", "types": [` + types + `]}` }
	for name, c := range map[string]struct {
		content []byte
		want    string
	}{
		"not compressed":          {[]byte("{}"), "it is not compressed with gzip"},
		"nothing":                 {[]byte{}, "it is not compressed with gzip"},
		"cut off":                 {good[:len(good)/2], "decompressing it: unexpected EOF"},
		"a changed byte":          {append(append([]byte{}, good[:len(good)-6]...), 1, 2, 3, 4, 5, 6), "decompressing it"},
		"words":                   {compress(t, "words"), "it is not JSON"},
		"another version":         {compress(t, `{"version": 2}`), "its format has version 2, and this program reads version 1: use the kubectl karve of the controller's release"},
		"no version":              {compress(t, `{}`), "its format has version 0"},
		"another shape":           {compress(t, `{"version": 1, "types": 4}`), "cannot unmarshal number"},
		"more than memory":        {compress(t, strings.Repeat(" ", 65<<20)), "it has more than 67108864 bytes"},
		"a type without a name":   {of(`{}`, ""), `instance type "": it has no name`},
		"a negative amount":       {of(`{"name": "a", "allocatable": {"pods": -1}}`, ""), `instance type "a": an amount of its resources is negative`},
		"an amount beyond sense":  {of(`{"name": "a", "capacity": {"memoryBytes": 9223372036854775807}}`, ""), "beyond that of any machine"},
		"an extended one":         {of(`{"name": "a", "extended": {"x": -1}}`, ""), "-1 of x is negative"},
		"a thousand GPUs":         {of(`{"name": "a", "gpu": {"count": 1000}}`, ""), "its GPUs are not those of any machine"},
		"an offering nowhere":     {of(`{"name": "a", "offerings": [{"capacityType": "spot", "microUSDPerHour": 1}]}`, ""), "an offering has no zone"},
		"an offering for nothing": {of(`{"name": "a", "offerings": [{"zone": "z", "capacityType": "spot"}]}`, ""), "a price of 0 micro-dollars"},
		"a type that is not":      {of(`{"name": "a"}`, class("1")), `K "n" has an instance type that does not exist`},
		"a type twice":            {of(`{"name": "a"}`, class("0,0")), "is there twice"},
		"a class twice":           {of("", class("")+","+class("")), "is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _, err := published.Read(published.ConfigMap("karve-system", c.content, published.Quotas{}, "v1", published.DefaultSettings(), time.Now()))
			if err == nil || got != nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "ConfigMap karve-system/karve-catalog cannot be read: ") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for name, m := range map[string]*corev1.ConfigMap{"no content": {}, "no time": {BinaryData: map[string][]byte{"catalog.json.gz": good}}} {
		if _, _, err := published.Read(m); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// FuzzDecode checks that what is read is valid: it can be published again and is then read as the same.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{
		`{"version": 1, "types": [{"name": "a", "gpu": {"count": 1}, "offerings": [{"zone": "z", "capacityType": "spot", "microUSDPerHour": 5}]}], "nodeClasses": [{"group": "g", "kind": "K", "name": "n", "types": [0]}]}`,
		`{"version": 1, "types": null}`, `{"version": 1, "nodeClasses": [{"kind": "K", "name": "n", "types": [0]}]}`, `[]`, ``,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := published.Decode(compress(t, string(text)))
		if err != nil {
			return
		}
		again, err := published.Decode(encoded(t, c))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(encoded(t, again), encoded(t, c)) {
			t.Error("it is not the same when published again")
		}
	})
}
